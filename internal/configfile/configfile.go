// Package configfile reads the YAML configuration file of a program into its
// options. Unknown keys are refused, so that a misspelt one is not ignored.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/internal/misspelt"
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
		if text := unknownKey.ReplaceAllStringFunc(err.Error(), func(text string) string { return explain(text, reflect.TypeOf(into)) }); text != err.Error() {
			return fmt.Errorf("configuration %s: %s", path, strings.TrimSpace(strings.TrimPrefix(text, "yaml: construct errors:")))
		}
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	return nil
}

// unknownKey is what package yaml says of a key that a type has no field for.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)

// explain says the same with the key that was likely meant.
func explain(text string, into reflect.Type) string {
	key := unknownKey.FindStringSubmatch(text)[1]
	meant := misspelt.Nearest(key, keys(into, nil))
	if meant != "" {
		meant = fmt.Sprintf(": did you mean %s?", meant)
	}
	return fmt.Sprintf("there is no key %q%s", key, meant)
}

// keys are those of a type and of the types of its fields.
func keys(t reflect.Type, seen []reflect.Type) (all []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || slices.Contains(seen, t) {
		return nil
	}
	for f := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(f).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			all = append(all, name)
		}
		all = append(all, keys(t.Field(f).Type, append(seen, t))...)
	}
	return all
}

// Marshal writes options as a file that Load reads.
func Marshal(options any) ([]byte, error) {
	b, err := yaml.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b, nil
}
