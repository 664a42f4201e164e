package packaging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/protocol"
)

// licences are the files of a vendor that say what may be done with the Compose file.
var licences = []string{"LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING"}

// resources adds the files that the catalog entry names.
func (p *Package) resources(folder fs.FS, name string, content []byte, o Options) {
	text := fmt.Sprintf("# %s\n\nMade from %s, %s.\n", displayName(p.ID, o), name, protocol.DigestOf(content))
	p.Files["resources/description.md"] = archive.File{Mode: 0o644, Content: []byte(text)}
	for _, licence := range licences {
		if b, err := readFile(folder, licence, maxCompose); err == nil {
			p.Files["resources/"+licence] = archive.File{Mode: 0o644, Content: b}
			return
		}
	}
}

func displayName(id string, o Options) string {
	if o.Name != "" {
		return o.Name
	}
	return id
}

// prose is a text for people. A {{placeholder}} in one is to Margo a template that was
// not filled in, so it is taken apart.
func prose(text string) string {
	return quoted(strings.ReplaceAll(text, "{{", "{ {"))
}

// quoted is a text as YAML and JSON both read it.
func quoted(text string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		return `""` // a text can always be encoded
	}
	return strings.TrimSpace(b.String())
}

// description returns the margo.yaml.
func (p *Package) description(from string, o Options) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Made by colony app init from %s. It is yours now: edit it.", from)
	line("apiVersion: v1\nid: %s\nmetadata:", word(p.ID))
	line("  name: %s\n  version: %s", prose(displayName(p.ID, o)), quoted(p.Version))
	line("  catalog:\n    application:\n      descriptionFile: ./resources/description.md")
	for _, licence := range licences {
		if _, ok := p.Files["resources/"+licence]; ok {
			line("      licenseFile: ./resources/%s", licence)
		}
	}
	organization := o.Organization
	if organization == "" {
		organization = "unknown"
		p.note(location{}, "margo.yaml names no organization that publishes the application: write it there, or give --organization")
	}
	line("    organization:\n      - name: %s", prose(organization))
	line("deploymentProfiles:\n  - type: compose\n    id: %s\n    components:", word(p.Component))
	line("      - name: %s\n        properties:\n          repository: %s\n          revision: %s", word(p.Component), p.Repository+"/"+"compose", quoted(p.Version))
	if len(p.Parameters) == 0 {
		return []byte(b.String())
	}
	line("parameters:")
	for _, q := range p.Parameters {
		line("  %s:", word(q.Name))
		if q.Default != nil && q.Port {
			line("    value: %s", *q.Default)
		} else if q.Default != nil {
			line("    value: %s", quoted(*q.Default))
		} else if !q.Required {
			line("    # no value: where a deployment gives none, the files of the component say what holds")
		} else {
			line("    # no value: every deployment must give one")
		}
		line("    targets:\n      - pointer: %s\n        components: [%s]", word(q.Name), word(p.Component))
	}
	line("configuration:\n  sections:\n    - name: %s\n      settings:", prose(displayName(p.ID, o)))
	used := map[string]bool{}
	for _, q := range p.Parameters {
		schema := q.schema()
		used[schema] = true
		line("        - parameter: %s\n          name: %s\n          description: %s\n          schema: %s",
			word(q.Name), quoted(q.Name), prose(q.Description), schema)
	}
	line("  schema:")
	for _, name := range slices.Sorted(maps.Keys(used)) {
		line("    - %s", schemas[name])
	}
	return []byte(b.String())
}

// word is a name as it is written in YAML: in quotes where it would not be a text.
func word(name string) string {
	switch strings.ToLower(name) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return quoted(name)
	}
	if strings.IndexAny(name, "0123456789") == 0 { // a number or a date, as the name of a folder may be
		return quoted(name)
	}
	return name
}

// schemas are the rules of parameters by their name.
var schemas = map[string]string{
	"port":          "{name: port, dataType: integer, minValue: 1, maxValue: 65535}",
	"text":          "{name: text, dataType: string}",
	"text-or-empty": "{name: text-or-empty, dataType: string, allowEmpty: true}",
}

// schema returns the name of the rules that the values of a parameter keep.
func (p Parameter) schema() string {
	switch {
	case p.Port:
		return "port"
	case !p.Required && value(p.Default) == "":
		return "text-or-empty"
	default:
		return "text"
	}
}

// Write writes the package into dir, which is made where it is missing, and must be empty
// else: nothing is ever overwritten. Where it fails, the files that it wrote are removed.
func (p *Package) Write(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the package: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("read the folder of the package: %w", err)
	}
	entries, err := f.ReadDir(1)
	if err = errors.Join(ignoreEOF(err), f.Close()); err != nil {
		return fmt.Errorf("read the folder of the package: %w", err)
	}
	if len(entries) > 0 {
		return protocol.Errorf(protocol.Conflict, "the folder %s holds %s already, and nothing is overwritten: name another folder", dir, entries[0].Name())
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the folder of the package: %w", err)
	}
	defer root.Close() //nolint:errcheck // each file was closed
	var written []string
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if err := writeFile(root, name, p.Files[name]); err != nil {
			for _, w := range written {
				err = errors.Join(err, root.Remove(w))
			}
			return fmt.Errorf("write %s: %w", path.Join(dir, name), err)
		}
		written = append(written, name)
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func writeFile(root *os.Root, name string, file archive.File) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, file.Mode.Perm())
	if err != nil {
		return err
	}
	_, err = f.Write(file.Content)
	return errors.Join(err, f.Close())
}
