package composefile

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/override"
)

const (
	// maxFiles bounds how many files a project includes and extends, one counted each time.
	maxFiles = 100
	// maxChain bounds how many services extend one another in a row.
	maxChain = 20
	// maxExtended bounds what all services take over from others, in values: a small file
	// could otherwise extend a large service hundreds of times.
	maxExtended = 5 * maxValues
)

// A Document is a project as its author wrote it, in one piece: nothing is filled in yet.
type Document struct {
	Values map[string]any
	// Lines says where each key stands, by its path: "line 3: ", behind the name of the file
	// where it is not the main one.
	Lines map[string]string
	// Extended are the services that extend another one.
	Extended map[string]bool
}

// Read reads the Compose file name of an archive, and what it includes and extends in
// other files of the archive. The paths in those are as seen from the directory of name
// afterwards. Nothing but files is read.
func Read(files map[string][]byte, name string) (*Document, error) {
	r := &reader{files: files, main: name, extended: map[string]bool{}}
	values, lines, err := r.file(name, nil)
	if err != nil {
		return nil, err
	}
	return &Document{Values: values, Lines: lines, Extended: r.extended}, nil
}

type reader struct {
	files    map[string][]byte
	main     string
	count    int
	values   int // taken over by extends
	extended map[string]bool
}

// file reads one file with all that it includes and extends. Chain are the files that
// led here.
func (r *reader) file(name string, chain []string) (map[string]any, map[string]string, error) {
	if slices.Contains(chain, name) {
		return nil, nil, fmt.Errorf("%s includes itself, by %s", name, strings.Join(chain, " and "))
	}
	values, lines, err := r.parse(name)
	if err != nil {
		return nil, nil, err
	}
	if err := r.include(name, values, lines, append(slices.Clone(chain), name)); err != nil {
		return nil, nil, err
	}
	services, _ := values["services"].(map[string]any)
	for _, service := range slices.Sorted(maps.Keys(services)) {
		at := "services." + service + ".extends"
		x := extension{reader: r, file: name, services: services, lines: lines}
		if services[service], err = x.resolve(service, nil); err != nil {
			return nil, nil, fmt.Errorf("%s: %s%s: %w", r.main, lines[at], at, err)
		}
	}
	return values, lines, nil
}

// parse reads one file alone.
func (r *reader) parse(name string) (map[string]any, map[string]string, error) {
	if r.count++; r.count > maxFiles {
		return nil, nil, fmt.Errorf("more than %d files are included and extended", maxFiles)
	}
	b, ok := r.files[name]
	if !ok {
		return nil, nil, fmt.Errorf("the archive has no file %q", name)
	}
	values, numbers, err := parse(name, b)
	if err != nil {
		return nil, nil, err
	}
	lines := make(map[string]string, len(numbers))
	for at, n := range numbers {
		lines[at] = fmt.Sprintf("line %d: ", n)
		if name != r.main {
			lines[at] = name + ": " + lines[at]
		}
	}
	return values, lines, nil
}

// sections are those that an included file brings in.
var sections = []string{"services", "volumes", "networks", "configs", "secrets"}

// include brings in what values includes, and takes the key out.
func (r *reader) include(name string, values map[string]any, lines map[string]string, chain []string) error {
	list, ok := values["include"].([]any)
	if !ok && values["include"] != nil {
		return fmt.Errorf("%s: %sinclude: want a list of files", r.main, lines["include"])
	}
	delete(values, "include")
	for _, item := range list {
		included, err := includedFile(name, item)
		if err != nil {
			return fmt.Errorf("%s: %sinclude: %w", r.main, lines["include"], err)
		}
		other, more, err := r.file(included, chain)
		if err != nil {
			return fmt.Errorf("%s: %sinclude: %w", r.main, lines["include"], err)
		}
		addLines(lines, more, "", "")
		relocate(other, path.Dir(included), path.Dir(name))
		for _, section := range sections {
			if err := bring(values, other, section); err != nil {
				return fmt.Errorf("%s: %sinclude: %s: %w", r.main, lines["include"], included, err)
			}
		}
	}
	return nil
}

// includedFile returns the file of the archive that an item of include names.
func includedFile(name string, item any) (string, error) {
	file := item
	if long, ok := item.(map[string]any); ok {
		file = long["path"]
		if list, ok := file.([]any); ok && len(list) == 1 {
			file = list[0]
		}
	}
	text, ok := file.(string)
	if !ok {
		return "", errors.New("want one file for each entry: services that override others belong into compose.yaml")
	}
	return within(name, text)
}

// within returns the path in the archive of a file that another one names.
func within(name, file string) (string, error) {
	clean := path.Join(path.Dir(name), file)
	if path.IsAbs(file) || clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains(file, "://") {
		return "", fmt.Errorf("%q leads out of the archive: want a relative path within it", file)
	}
	return clean, nil
}

// bring adds a section of another document to values. As in Compose, what both have must
// be the same.
func bring(values, other map[string]any, section string) error {
	from, _ := other[section].(map[string]any)
	if len(from) == 0 {
		return nil
	}
	into, _ := values[section].(map[string]any)
	if into == nil {
		into = map[string]any{}
		values[section] = into
	}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if have, ok := into[key]; ok && !reflect.DeepEqual(have, from[key]) {
			return fmt.Errorf("%s.%s is defined in both files: rename one, or use extends", section, key)
		}
		into[key] = from[key]
	}
	return nil
}

// addLines adds the lines of the keys below from as those of keys below to, where none
// is known.
func addLines(lines, more map[string]string, from, to string) {
	for at, text := range more {
		if rest, ok := strings.CutPrefix(at, from); ok && lines[to+rest] == "" {
			lines[to+rest] = text
		}
	}
}

// An extension resolves what the services of one file extend.
type extension struct {
	reader   *reader
	file     string
	services map[string]any
	lines    map[string]string
}

// resolve returns a service with what it extends filled in. Chain are the services that
// led here.
func (x extension) resolve(name string, chain []string) (any, error) {
	service, ok := x.services[name].(map[string]any)
	if !ok {
		return x.services[name], nil // the loader says what is wrong
	}
	file, ref, err := extends(x.file, service["extends"])
	if err != nil || ref == "" {
		return service, err
	}
	at := x.file + "#" + name
	if slices.Contains(chain, at) {
		return nil, fmt.Errorf("the service %s extends itself", name)
	}
	if len(chain) == maxChain {
		return nil, fmt.Errorf("more than %d services extend one another in a row", maxChain)
	}
	from := x
	if file != x.file {
		from.file = file
		var document map[string]any
		if document, from.lines, err = x.reader.parse(file); err != nil {
			return nil, err
		}
		from.services, _ = document["services"].(map[string]any)
	}
	if _, ok := from.services[ref]; !ok {
		return nil, fmt.Errorf("%s has no service %s", file, ref)
	}
	base, err := from.resolve(ref, append(slices.Clone(chain), at))
	if err != nil {
		return nil, err
	}
	if x.reader.values += count(base); x.reader.values > maxExtended {
		return nil, fmt.Errorf("the services take over more than %d values from others", maxExtended)
	}
	source, ok := clone(base).(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the service %s of %s is no mapping", ref, file)
	}
	relocate(map[string]any{"services": map[string]any{ref: source}}, path.Dir(file), path.Dir(x.file))
	own := maps.Clone(service)
	delete(own, "extends")
	merged, err := override.ExtendService(source, own)
	if err != nil {
		return nil, fmt.Errorf("merge %s into %s: %w", ref, name, err)
	}
	addLines(x.lines, from.lines, "services."+ref+".", "services."+name+".")
	x.reader.extended[name] = true
	return merged, nil
}

// extends reads the key extends: the file, and the service in it. No service means that
// nothing is extended.
func extends(file string, v any) (from, ref string, err error) {
	switch v := v.(type) {
	case nil:
		return "", "", nil
	case string:
		return file, v, nil
	case map[string]any:
		ref, _ = v["service"].(string)
		if ref == "" {
			return "", "", errors.New("want the name of a service")
		}
		if v["file"] == nil {
			return file, ref, nil
		}
		text, ok := v["file"].(string)
		if !ok {
			return "", "", errors.New("file: want the name of a file")
		}
		from, err = within(file, text)
		return from, ref, err
	}
	return "", "", errors.New("want a service, or a mapping of file and service")
}

// count returns the number of values in v, itself included.
func count(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n += count(item)
		}
	case map[string]any:
		for _, item := range v {
			n += count(item)
		}
	}
	return n
}

func clone(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = clone(item)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = clone(item)
		}
		return out
	default:
		return v
	}
}
