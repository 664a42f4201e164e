// Package configfile reads the YAML configuration file of a program into its
// options. Unknown keys are refused, so that a misspelt one is not ignored.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v4"
)

// Load reads the file at path over into, whose values are the defaults for keys
// that the file leaves out. into is a pointer to a struct with yaml tags.
func Load(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	return nil
}

// Marshal writes options as a file that Load reads.
func Marshal(options any) ([]byte, error) {
	b, err := yaml.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b, nil
}
