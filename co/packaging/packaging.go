package packaging

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// The bounds of what is read, those of a Compose archive.
const (
	maxCompose = 256 << 10
	maxBytes   = 16 << 20
	maxFiles   = 1000
)

const (
	composeFile = "compose.yaml"
	dotEnv      = ".env"
)

// Options say how the package is named. Zero fields mean the defaults.
type Options struct {
	// ID of the application. Default: the name in the Compose file, or that of Folder.
	ID string
	// Folder is the name of the folder of the Compose file.
	Folder string
	// Name that people read. Default: the ID.
	Name string
	// Version of the package and of its component, as SemVer. Default 1.0.0.
	Version string
	// Registry is the host, or host and path, that the component will be pushed to.
	// Default registry.colony.
	Registry string
	// Organization that publishes the package.
	Organization string
}

// A Note is something that was not taken over as it is.
type Note struct {
	// File is the Compose file, in the component; "" is compose.yaml.
	File string `json:"file,omitempty"`
	// Path is where in the Compose file, and Line its line there; "" and 0 for a file
	// beside it.
	Path    string `json:"path,omitempty"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"` // for people
}

// A Package is a Margo package that is not written yet.
type Package struct {
	ID, Version string
	// Component is the name of the one component, and Repository where it will be.
	Component, Repository string
	Parameters            []Parameter
	// Files by their path in the package.
	Files map[string]archive.File
	Notes []Note
}

// Compose returns the path of the Compose file in the package.
func (p *Package) Compose() string { return path.Join(p.folder(), composeFile) }

func (p *Package) folder() string { return path.Join("components", p.Component) }

var (
	idForm      = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	versionForm = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
)

// FromCompose makes a package out of the Compose files names in folder, each of which changes
// those before it, with what they include and extend. One alone that has a name which Compose
// looks for is changed by the override file beside it. What Colony cannot run of them stays in
// the package, for the lint to show. Errors are of kind protocol.Invalid for input that is wrong.
func FromCompose(folder fs.FS, names []string, o Options) (*Package, error) {
	names = overridden(folder, names)
	s := &source{passed: map[string]location{}, given: map[string]bool{}, contents: map[string][]byte{}, renames: map[string]map[int]bool{}}
	var err error
	if s.stand, err = stand(folder, names); err != nil {
		return nil, err
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, invalid("%s is given twice: leave it out", name)
		}
		if s.contents[name], err = readFile(folder, name, maxCompose); err != nil {
			return nil, invalid("%s: %w", name, err)
		}
		as := s.held(name)
		if len(names) == 1 {
			as = ""
		}
		s.parts = append(s.parts, part{file: name, as: as, dir: "."})
	}
	p := &Package{Files: map[string]archive.File{}}
	env, err := p.environment(folder, s)
	if err != nil {
		return nil, err
	}
	if err := s.read(folder, p); err != nil {
		return nil, err
	}
	if err := p.start(s, o); err != nil {
		return nil, err
	}
	if env != nil {
		if err := p.add(dotEnv, env, 0o644); err != nil {
			return nil, err
		}
	}
	if err := p.given(s, names); err != nil {
		return nil, err
	}
	c := &collect{env: s.env, byName: map[string][]occurrence{}, passed: s.passed, given: s.given, effect: p.effect}
	for _, r := range s.files {
		if r.file == dotEnv || r.file == composeFile && s.stand == "" {
			continue
		}
		if err := p.copyNamed(folder, r, s); err != nil {
			return nil, err
		}
	}
	if err := p.apart(s); err != nil {
		return nil, err
	}
	for _, occurrence := range s.occurrences {
		c.byName[occurrence.name] = append(c.byName[occurrence.name], occurrence)
	}
	if s.profiles && c.byName[profilesVariable] == nil {
		c.byName[profilesVariable] = []occurrence{{use: use{name: profilesVariable}, location: location{path: "services.*.profiles"}}}
	}
	c.follow(env)
	p.Parameters = c.parameters()
	p.Notes = append(p.Notes, c.notes...)
	if err := p.demand(c); err != nil {
		return nil, err
	}
	p.images(s)
	from := strings.Join(names, ", ")
	p.resources(folder, from, s.contents[names[0]], o)
	slices.SortStableFunc(p.Notes, func(a, b Note) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	doc := p.description(from, o)
	if _, err := v1rc3.ParseApplication(doc); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "the margo.yaml that was made is wrong: %w\n%s", err, doc)
	}
	p.Files["margo.yaml"] = archive.File{Mode: 0o644, Content: doc}
	return p, nil
}

// profilesVariable chooses the profiles of a Compose file.
const profilesVariable = "COMPOSE_PROFILES"

func invalid(format string, args ...any) error {
	return protocol.Errorf(protocol.Invalid, "%w", fmt.Errorf(format, args...))
}

// start names the package.
func (p *Package) start(s *source, o Options) error {
	p.ID, p.Version = o.ID, cmp.Or(o.Version, "1.0.0")
	if p.ID == "" {
		named := s.name
		if len(usesOf(named)) > 0 {
			named = ""
		}
		p.ID = plain(cmp.Or(named, o.Folder))
	}
	if !idForm.MatchString(p.ID) {
		return invalid("the id of the application, %q: want up to 63 of a-z, 0-9 and -, beginning and ending with one of the first two (--id)", p.ID)
	}
	if !versionForm.MatchString(p.Version) {
		return invalid("the version %q: want three numbers, such as 1.0.0 or 1.0.0-rc.1 (--version)", p.Version)
	}
	registry := strings.Trim(strings.TrimPrefix(cmp.Or(o.Registry, "registry.colony"), "oci://"), "/")
	p.Component, p.Repository = p.ID, "oci://"+registry+"/"+p.ID
	if err := v1rc3.CheckRepository(p.Repository); err != nil {
		return invalid("where the component will be, %w (--registry)", err)
	}
	return nil
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

// plain makes a name of what an id may hold.
func plain(name string) string {
	name = notPlain.ReplaceAllString(strings.ToLower(name), "-")
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// add puts a file into the component, which has no other one of the name.
func (p *Package) add(file string, content []byte, mode fs.FileMode) error {
	name := path.Join(p.folder(), file)
	if has, ok := p.Files[name]; ok {
		if !bytes.Equal(has.Content, content) {
			return invalid("%s would be two files of the package: give the file that is named %s another name, and write that where it is named", file, composeFile)
		}
		mode |= has.Mode
	}
	p.Files[name] = archive.File{Mode: mode, Content: content}
	return nil
}

func (p *Package) note(at location, format string, args ...any) {
	p.Notes = append(p.Notes, Note{File: at.file, Path: at.path, Line: at.line, Message: fmt.Sprintf(format, args...)})
}

// environment reads the .env, and notes where there is only an example of it.
func (p *Package) environment(folder fs.FS, s *source) ([]byte, error) {
	content, err := readFile(folder, dotEnv, maxCompose)
	if errors.Is(err, fs.ErrNotExist) {
		for _, example := range []string{".env.example", ".env.sample", ".env.dist", ".env.template", "example.env", "env.example", "sample.env"} {
			if _, err := fs.Stat(folder, example); err == nil {
				p.note(location{}, "there is no %s, and a file %s: where the vendor says so, copy it to %s and begin again", dotEnv, example, dotEnv)
			}
		}
		return nil, nil
	}
	if err != nil {
		return nil, invalid("%s: %w", dotEnv, err)
	}
	if s.env, err = readEnv(content, interpolate.Folder); err != nil {
		return nil, invalid("%s: %w", dotEnv, err)
	}
	if files := s.env["COMPOSE_FILE"]; files != "" && len(s.parts) == 1 {
		p.note(location{}, "%s names the Compose files %q, and one was given: give each with --from, in their order", dotEnv, files)
	}
	return content, nil
}

// copyNamed copies what a relative path of the Compose file names.
func (p *Package) copyNamed(folder fs.FS, r reference, s *source) error {
	if r.file == "." || r.file == ".." || strings.HasPrefix(r.file, "../") {
		return nil // the lint says what to do about it
	}
	info, err := fs.Stat(folder, r.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // likewise; a bind of it becomes a volume
	case err != nil:
		p.note(r.location, "%s was not copied: %v", r.file, cause(err))
		return nil
	case info.IsDir():
		return p.copyFolder(folder, r)
	}
	content, err := readFile(folder, r.file, maxBytes)
	if err != nil {
		p.note(r.location, "%s was not copied: %v", r.file, cause(err))
		return nil
	}
	as := s.held(r.file)
	held := content
	if r.compose {
		held = s.renamed(r.file, content)
	}
	if err := p.add(as, held, info.Mode().Perm()&0o111|0o644); err != nil {
		return err
	}
	if r.env {
		at := location{file: r.location.file, path: as}
		for _, u := range usesOfEnv(content) {
			s.occurrences = append(s.occurrences, occurrence{use: u, location: at})
		}
		set, _ := readEnv(content, func(string) (string, bool) { return "", true })
		for name := range set {
			s.given[name] = true
		}
		for _, name := range inherited(content, set) {
			s.pass(name, at)
		}
	}
	return p.bounded()
}

// copyFolder copies a folder with all its files.
func (p *Package) copyFolder(folder fs.FS, r reference) error {
	return fs.WalkDir(folder, r.file, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			p.note(r.location, "%s was not copied: %v", file, cause(err))
			return nil
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			p.note(r.location, "%s was not copied: an archive holds regular files only", file)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			p.note(r.location, "%s was not copied: %v", file, cause(err))
			return nil
		}
		content, err := readFile(folder, file, maxBytes)
		if err != nil {
			p.note(r.location, "%s was not copied: %v", file, cause(err))
			return nil
		}
		if err := p.add(file, content, info.Mode().Perm()&0o111|0o644); err != nil {
			return err
		}
		return p.bounded()
	})
}

// bounded checks that the archive of the component is not too large.
func (p *Package) bounded() error {
	total := 0
	for _, f := range p.Files {
		total += len(f.Content)
	}
	if total > maxBytes || len(p.Files) > maxFiles {
		return invalid("the files that the Compose file names are more than %d, or have more than %d bytes: what an application writes does not belong to it; copy the Compose file and its configuration into a folder of their own, and begin there", maxFiles, maxBytes)
	}
	return nil
}

// images notes images that have no version.
func (p *Package) images(s *source) {
	for _, i := range s.images {
		last := i.image[strings.LastIndexByte(i.image, '/')+1:]
		if _, tag, tagged := strings.Cut(last, ":"); len(usesOf(i.image)) == 0 && (!tagged || tag == "latest") && !strings.Contains(last, "@") {
			p.note(i.location, "%s names no version: each deployment gets what it is at that time; name one", i.image)
		}
	}
}

// readFile reads a regular file of at most limit bytes.
func readFile(folder fs.FS, name string, limit int64) ([]byte, error) {
	// Before it is opened: opening a named pipe waits for a writer.
	info, err := fs.Stat(folder, name)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := folder.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, cause(err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return b, nil
}

// cause leaves the name of a file out of an error about it.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
