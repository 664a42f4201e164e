package composefile

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
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

// errBound is what is past a bound: nothing more is read.
var errBound = errors.New("the project is too large")

// A Document is a project as its author wrote it, in one piece: nothing is filled in yet.
type Document struct {
	Values map[string]any
	// Lines says where each key stands, by its path: "line 3: ", behind the name of the file
	// where it is not the main one.
	Lines map[string]string
	// Extended are the services that extend another one.
	Extended map[string]bool
	// Variables are those that included files have of their own env files, by the names
	// that Values has for them.
	Variables map[string]string
	// Names are the names of Variables in the files.
	Names map[string]string
	// Problems say what is wrong in the files, with the line and, where it is not the main
	// one, the file. What they are about is not in Values.
	Problems []string
	// Notes are warnings about keys that are accepted, in the same form.
	Notes []string

	items map[string][][]string // of lists, by their paths
}

// Read reads the Compose file name of an archive, and what it includes and extends in
// other files of the archive. The paths in those are as seen from the directory of name
// afterwards. Variables are those of the project; they win over those of an included file.
// Nothing but files is read. An error says what keeps it from being one document, behind the
// problems that were found until then.
func Read(files map[string][]byte, name string, variables map[string]string) (*Document, error) {
	r := &reader{
		files: files, main: name, project: variables, extended: map[string]bool{},
		scopes: map[string]*scope{}, variables: map[string]string{}, names: map[string]string{}, reported: map[string]bool{},
	}
	p, err := r.file(inclusion{file: name, dir: path.Dir(name), scope: &scope{values: variables, renamed: map[string]string{}}}, nil)
	problems, notes := p.findings.texts()
	problems = append(r.problems, problems...)
	if err != nil {
		return nil, errors.New(strings.Join(append(problems, err.Error()), "\n"))
	}
	p.findings.standIn(p.values)
	items := map[string][][]string{}
	itemsOf(items, "", p.values)
	return &Document{Values: p.values, Lines: p.lines, Extended: r.extended, Variables: r.variables, Names: r.names, Problems: problems, Notes: notes, items: items}, nil
}

type reader struct {
	files     map[string][]byte
	main      string
	project   map[string]string // its variables
	count     int
	values    int // taken over by extends
	extended  map[string]bool
	scopes    map[string]*scope // by id
	variables map[string]string // see Document
	names     map[string]string
	problems  []string        // of all that is read of a file, used or not
	reported  map[string]bool // files whose problems are among them
}

// A part is what one file says, or several in one piece.
type part struct {
	values   map[string]any
	lines    map[string]string
	findings findings
	replaced [][]any         // what it takes out of others by the tags !reset and !override
	taken    map[string]bool // the paths of replaced
}

// file reads one file with all that it includes and extends, and merges those that change it.
// Chain are the files that led here. Behind an error, the part has the findings until then.
func (r *reader) file(in inclusion, chain []string) (part, error) {
	p, err := r.one(in, false, chain)
	if err != nil {
		return p, err
	}
	for _, name := range in.changes {
		change := in
		change.file = name
		other, err := r.one(change, true, chain)
		if err != nil {
			return part{}, err // what it takes out is not known
		}
		for _, path := range other.replaced {
			drop(p.values, path)
		}
		if p.values, err = override.Merge(p.values, other.values); err != nil {
			return part{}, fmt.Errorf("merge %s into %s: %w", name, in.file, err)
		}
		p.findings.merge(other.findings, other.taken)
		maps.Copy(p.lines, other.lines)
		services, _ := other.values["services"].(map[string]any)
		for service := range services {
			r.extended[service] = true
		}
	}
	return p, nil
}

// one reads one file with all that it includes and extends. Change says that it is merged over
// another one.
func (r *reader) one(in inclusion, change bool, chain []string) (part, error) {
	if slices.Contains(chain, in.file) {
		return part{}, fmt.Errorf("%s includes itself, by %s", in.file, strings.Join(chain, " and "))
	}
	p, err := r.parse(in.file, in.scope)
	if err != nil {
		return p, err
	}
	if err := r.include(in, p, append(slices.Clone(chain), in.file)); err != nil {
		return p, err
	}
	services, _ := p.values["services"].(map[string]any)
	for _, service := range slices.Sorted(maps.Keys(services)) {
		at := "services." + service + ".extends"
		x := extension{reader: r, scope: in.scope, file: in.file, dir: in.dir, services: services, part: p}
		resolved, found, err := x.resolve(service, nil)
		if err == nil {
			services[service], p.findings[pathOf("services", service)] = resolved, found
			continue
		}
		if errors.Is(err, errBound) {
			return p, fmt.Errorf("%s%s: %w", p.lines[at], at, err)
		}
		r.problems = append(r.problems, fmt.Sprintf("%s%s: %v", p.lines[at], at, err))
		if own, ok := services[service].(map[string]any); ok { // the rest of it can be judged
			delete(own, "extends")
			if own["image"] == nil && !change {
				own["image"] = "extended"
			}
		}
	}
	return p, nil
}

// parse reads one file alone.
func (r *reader) parse(name string, s *scope) (part, error) {
	if r.count++; r.count > maxFiles {
		return part{}, fmt.Errorf("%w: more than %d files are included and extended", errBound, maxFiles)
	}
	b, ok := r.files[name]
	if !ok && strings.Contains(name, "$") {
		return part{}, fmt.Errorf("%q: no variable is filled in in the names of files that are included or extended: write the name out", name)
	}
	if !ok {
		return part{}, fmt.Errorf("the archive has no file %q", name)
	}
	values, found := parse(b)
	p := part{values: values, lines: make(map[string]string, len(found.lines)), findings: findings{}, replaced: found.replaced, taken: pathsOf(found.replaced)}
	for _, f := range found.found {
		f.text = r.line(name, f.line) + f.text
		p.findings.add(f)
	}
	var texts []string
	for _, problem := range found.problems {
		texts = append(texts, r.line(name, problem.Line)+problem.Text)
	}
	if values == nil {
		refused, _ := p.findings.texts()
		return part{}, errors.New(strings.Join(append(texts, refused...), "\n"))
	}
	if !r.reported[name] {
		r.problems, r.reported[name] = append(r.problems, texts...), true
	}
	s.apply(values)
	for at, n := range found.lines {
		p.lines[at] = r.line(name, n)
	}
	return p, nil
}

// lineFirst finds the texts that say where they are about.
var lineFirst = regexp.MustCompile(`^(\S+: )?line \d+: `)

// line returns the beginning of a message about a line of a file.
func (r *reader) line(name string, n int) string {
	text := ""
	if name != r.main {
		text = name + ": "
	}
	if n > 0 {
		text += fmt.Sprintf("line %d: ", n)
	}
	return text
}

// sections are those that an included file brings in.
var sections = []string{"services", "volumes", "networks", "configs", "secrets"}

// include brings in what a part includes, and takes the key out.
func (r *reader) include(in inclusion, p part, chain []string) error {
	list, ok := p.values["include"].([]any)
	if !ok && p.values["include"] != nil {
		return fmt.Errorf("%sinclude: want a list of files", p.lines["include"])
	}
	delete(p.values, "include")
	for i, item := range list {
		if err := r.includeOne(in, item, p, chain); err != nil {
			at := fmt.Sprintf("include[%d]", i)
			if strings.Contains(err.Error(), "\n") || lineFirst.MatchString(err.Error()) {
				return err // it has its place
			}
			return fmt.Errorf("%sinclude: %w", p.lines[at], err)
		}
	}
	return nil
}

// includeOne brings in what an item of include in a file names.
func (r *reader) includeOne(in inclusion, item any, p part, chain []string) error {
	included, err := r.inclusion(in.dir, item)
	if err != nil {
		return err
	}
	if included.scope, err = r.inner(in.scope, included.envFiles); err != nil {
		return err
	}
	other, err := r.file(included, chain)
	p.findings.bring(other.findings)
	if err != nil {
		return err
	}
	addLines(p.lines, other.lines, "", "")
	r.relocate(other.values, included.dir, in.dir)
	for _, section := range sections {
		if err := bring(p.values, other.values, section); err != nil {
			return fmt.Errorf("%s: %w", included.file, err)
		}
	}
	return nil
}

// within returns the path in the archive of a file that one in the directory dir names.
func within(dir, file string) (string, error) {
	clean := path.Join(dir, file)
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
	scope    *scope
	file     string
	dir      string // from which the paths in file are seen
	services map[string]any
	part     part // which the services are of
}

// resolve returns a service with what it extends filled in, and what is found in that. Chain are
// the services that led here.
func (x extension) resolve(name string, chain []string) (any, []finding, error) {
	found := x.part.findings[pathOf("services", name)]
	service, ok := x.services[name].(map[string]any)
	if !ok {
		return x.services[name], found, nil // the loader says what is wrong
	}
	file, ref, err := extends(x.file, x.dir, service["extends"])
	if err != nil || ref == "" {
		return service, found, err
	}
	at := x.file + "#" + name
	if slices.Contains(chain, at) {
		return nil, nil, fmt.Errorf("the service %s extends itself", name)
	}
	if len(chain) == maxChain {
		return nil, nil, fmt.Errorf("%w: more than %d services extend one another in a row", errBound, maxChain)
	}
	from := x
	if file != x.file {
		from.file, from.dir = file, path.Dir(file)
		if from.part, err = x.reader.parse(file, x.scope); err != nil {
			return nil, nil, err
		}
		from.services, _ = from.part.values["services"].(map[string]any)
	}
	if _, ok := from.services[ref]; !ok {
		return nil, nil, fmt.Errorf("%s has no service %s", file, ref)
	}
	base, inherited, err := from.resolve(ref, append(slices.Clone(chain), at))
	if err != nil {
		return nil, nil, err
	}
	if x.reader.values += count(base) + len(inherited); x.reader.values > maxExtended {
		return nil, nil, fmt.Errorf("%w: the services take over more than %d values from others", errBound, maxExtended)
	}
	source, ok := clone(base).(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("the service %s of %s is no mapping", ref, file)
	}
	x.reader.relocate(map[string]any{"services": map[string]any{ref: source}}, from.dir, x.dir)
	for _, path := range x.part.replaced {
		drop(map[string]any{"services": map[string]any{name: source}}, path)
	}
	own := maps.Clone(service)
	delete(own, "extends")
	merged, err := override.ExtendService(source, own)
	if err != nil {
		return nil, nil, fmt.Errorf("merge %s into %s: %w", ref, name, err)
	}
	addLines(x.part.lines, from.part.lines, "services."+ref+".", "services."+name+".")
	x.reader.extended[name] = true
	return merged, over(renamed(inherited, ref, name), found, x.part.taken), nil
}

// extends reads the key extends: the file, and the service in it. No service means that
// nothing is extended.
func extends(file, dir string, v any) (from, ref string, err error) {
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
		from, err = within(dir, text)
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
