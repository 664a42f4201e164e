package up

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/lo"
)

// TestConfigurationIsDocumented holds docs/configuration.md to the options of the
// roles: each key is there, and no other.
func TestConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []struct {
		section string
		options any
	}{{"CO", co.Options{}}, {"LO", lo.Options{}}, {"EN", en.Options{}}} {
		_, text, ok := strings.Cut(string(b), "\n## "+role.section+"\n")
		if !ok {
			t.Errorf("no section %s", role.section)
			continue
		}
		text, _, _ = strings.Cut(text, "\n## ")
		documented := map[string]bool{}
		for line := range strings.Lines(text) {
			cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
			for i, part := range strings.Split(cell, "`") {
				if i%2 == 1 && strings.HasPrefix(line, "| `") {
					documented[part] = true
				}
			}
		}
		for _, key := range keys("", reflect.TypeOf(role.options)) {
			if !documented[key] {
				t.Errorf("%s: key %s is not documented", role.section, key)
			}
			delete(documented, key)
		}
		for key := range documented {
			t.Errorf("%s: key %s is documented, and there is none", role.section, key)
		}
	}
}

// keys returns the keys of a configuration file, dotted.
func keys(prefix string, typ reflect.Type) []string {
	var out []string
	for f := range typ.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "-" {
			continue
		}
		if f.Tag.Get("yaml") == ",inline" {
			out = append(out, keys(prefix, f.Type)...)
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			out = append(out, keys(prefix+key+".", f.Type)...)
			continue
		}
		out = append(out, prefix+key)
	}
	return out
}

// TestConfigurationIsReadBack checks that what is written for the roles is what
// they read, and that a misspelt key is refused.
func TestConfigurationIsReadBack(t *testing.T) {
	t.Parallel()
	s := &supervisor{opts: DefaultOptions(), dir: &stateDir{path: t.TempDir()}}
	if err := os.Mkdir(s.dir.sub("config"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.opts.DatabaseURL, s.opts.GitRemote = "postgres:///x", "/git"
	for role, pair := range map[string][2]any{
		"co": {s.coConfig(), new(co.Options)}, "lo": {s.loConfig(), new(lo.Options)}, "en": {s.enConfig(), new(en.Options)},
	} {
		path, err := s.writeConfig(role, pair[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := configfile.Load(path, pair[1]); err != nil {
			t.Fatal(err)
		}
		want, err1 := configfile.Marshal(pair[0])
		got, err2 := configfile.Marshal(pair[1])
		if err1 != nil || err2 != nil || string(want) != string(got) {
			t.Errorf("%s: wrote\n%s\nread\n%s (%v, %v)", role, want, got, err1, err2)
		}
		if err := os.WriteFile(path, append(want, "nonsense: 1\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := configfile.Load(path, pair[1]); err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("%s: a misspelt key: %v", role, err)
		}
	}
}

// The CO may read the registries that are named, besides its own.
func TestImportRegistries(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.ImportRegistries = []string{"docker.io", "ghcr.io"}
	s := &supervisor{opts: o, dir: &stateDir{path: t.TempDir()}}
	if got := s.coConfig().Import.Registries; !slices.Equal(got, o.ImportRegistries) {
		t.Errorf("registries %q, want %q", got, o.ImportRegistries)
	}
}
