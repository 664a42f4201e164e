package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type options struct {
	Site  string `yaml:"site"`
	Nodes []node `yaml:"nodes"`
}

type node struct {
	Address string        `yaml:"address"`
	Wait    time.Duration `yaml:"wait"`
}

// TestLoad reads files that are good, and says of others what is wrong, without the names of types.
func TestLoad(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"site: plant\nnodes: [{address: a, wait: 3s}]\n": "",
		"":                        "",
		"sit: plant\n":            `line 1: there is no key "sit": did you mean site?`,
		"nodes:\n- adress: a\n":   `line 2: there is no key "adress": did you mean address?`,
		"site: a\nunheard: of\n":  `line 2: there is no key "unheard"`,
		"sit: a\nnodes: [{q: 1}]": `line 2: there is no key "q"`,
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Load(path, &options{Site: "default"})
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "configfile.")) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
