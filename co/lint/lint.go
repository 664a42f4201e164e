// Package lint judges a folder of application packages, Compose components and deployment files as
// the CO would, without a CO, a registry or a network: in the CI of their authors.
//
// It reads the folder that it is given, changes nothing and keeps no state.
package lint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/document"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const (
	applicationFile = "margo.yaml"
	composeFile     = "compose.yaml"
	deploymentFile  = "deployment.yaml"
	// componentsFolder, in the folder of an application, holds the component of each name.
	componentsFolder = "components"
)

// A Finding is one thing that is wrong, or with Warning is probably not meant.
type Finding struct {
	File    string `json:"file"`           // relative to the folder
	Line    int    `json:"line,omitempty"` // from 1; 0 where there is none
	Message string `json:"message"`        // the path in the document, what is wrong, and what to write instead
	Warning bool   `json:"warning,omitempty"`
}

// String returns "file:line: message", as editors read it.
func (f Finding) String() string {
	where := f.File
	if f.Line > 0 {
		where += ":" + strconv.Itoa(f.Line)
	}
	if f.Warning {
		return where + ": warning: " + f.Message
	}
	return where + ": " + f.Message
}

// A Result is what became of a folder.
type Result struct {
	Files    int       `json:"files"`    // that were judged
	Findings []Finding `json:"findings"` // by path and line; empty: nothing is wrong
}

// Failed reports whether there is a finding that is no warning.
func (r Result) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Warning })
}

type linter struct {
	root fs.FS
	// registries are those that the CO may read.
	registries []string
	result     Result
	apps       map[string]*v1rc3.Application // by id@version
	packed     packed
	owned      map[string]judged // by their folders, the components that an application names
	// unknown are the beginnings of paths of components whose parameters are not known,
	// because their application cannot be read.
	unknown []string
}

// Dir is Folder for a folder of this machine. A symbolic link that leads out of it is an
// error of what it stands for, and is not followed.
func Dir(folder string, registries ...string) (Result, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Result{}, fmt.Errorf("open the folder: %w", err)
	}
	defer root.Close() //nolint:errcheck // read only
	return Folder(root.FS(), registries...)
}

// OwnRegistry is the registry of a CO, under the name that it has by default.
const OwnRegistry = "registry.colony"

// Folder judges every margo.yaml, compose.yaml and deployment.yaml below root, and what else the CO reads of a deployments repo,
// where root is one. Findings
// are sorted by file and line. It warns of images of registries that are neither the CO's own nor
// among registries, which the CO may be configured to read. An error is one of reading the folder.
func Folder(root fs.FS, registries ...string) (Result, error) {
	l := &linter{root: root, registries: append(registries, OwnRegistry), apps: map[string]*v1rc3.Application{}, packed: packed{}, owned: map[string]judged{}}
	files := map[string][]string{}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.Type().IsRegular():
			files[d.Name()] = append(files[d.Name()], p)
		}
		return nil
	})
	if err != nil {
		return Result{}, fmt.Errorf("read the folder: %w", err)
	}
	for _, p := range files[applicationFile] {
		l.application(p)
	}
	inside := slices.Collect(maps.Keys(l.owned)) // of packages; what they include is judged with them
	for _, p := range files[composeFile] {
		dir := path.Dir(p)
		if !slices.ContainsFunc(inside, func(own string) bool { return strings.HasPrefix(p, own+"/") }) && !slices.ContainsFunc(l.unknown, func(u string) bool { return strings.HasPrefix(p, u) }) {
			l.component(path.Base(dir), dir, nil)
		}
	}
	for _, p := range files[deploymentFile] {
		if _, _, ofFleet := fleetfile.Of(p); !ofFleet {
			l.deployment(p)
		}
	}
	repo := slices.ContainsFunc(files[deploymentFile], func(p string) bool { return strings.HasPrefix(p, "deployments/") })
	for _, list := range files {
		for _, p := range list {
			l.repoFile(p, repo)
		}
	}
	slices.SortStableFunc(l.result.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return l.result, nil
}

func (l *linter) add(file string, line int, warning bool, format string, args ...any) {
	l.result.Findings = append(l.result.Findings, Finding{File: file, Line: line, Warning: warning, Message: fmt.Sprintf(format, args...)})
}

// problems adds an error, each of its problems with its line.
func (l *linter) problems(file string, err error) {
	if err == nil {
		return
	}
	if problems, ok := errors.AsType[v1rc3.Problems](err); ok {
		for _, p := range problems {
			l.add(file, p.Line, false, "%s", strings.TrimPrefix(v1rc3.Problem{Path: p.Path, Message: p.Message}.String(), ": "))
		}
		return
	}
	l.lines(file, err.Error(), false)
}

// lines adds the lines of a text; "line N: " at the beginning of one says which it is about,
// with the name of another file before it where it is not in this one.
func (l *linter) lines(file, text string, warning bool) {
	all := strings.Split(text, "\n")
	if len(all) > 1 && strings.HasSuffix(strings.TrimSpace(all[0]), ":") {
		all = all[1:] // the title of a list
	}
	for _, line := range all {
		where, number := file, 0
		if m := placed.FindStringSubmatch(line); m != nil {
			if other := path.Join(path.Dir(file), m[1]); m[1] != "" && isFile(l.root, other) {
				where = other // one that the file includes or extends
			}
			if n, err := strconv.Atoi(m[2]); err == nil && (m[1] == "" || where != file) {
				number, line = n, line[len(m[0]):]
			}
		}
		l.add(where, number, warning, "%s", line)
	}
}

// placed finds the place at the beginning of a problem: another file, and the line.
var placed = regexp.MustCompile(`^(?:(\S+): )?line (\d+): `)

// start returns the beginning of a regular file.
func start(root fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(root, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a named pipe would wait for a writer
		return nil, errors.New("not a regular file")
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return io.ReadAll(io.LimitReader(f, packagecheck.MaxStart))
}

func isFile(root fs.FS, name string) bool {
	info, err := fs.Stat(root, name)
	return err == nil && info.Mode().IsRegular()
}

func (l *linter) read(p string) ([]byte, bool) {
	l.result.Files++
	b, err := fs.ReadFile(l.root, p)
	if err != nil {
		l.add(p, 0, false, "%v", err)
	}
	return b, err == nil
}

// application judges a package, with the components that lie in it.
func (l *linter) application(p string) {
	doc, ok := l.read(p)
	if !ok {
		return
	}
	dir := path.Dir(p)
	app, err := v1rc3.ParseApplication(doc)
	if err != nil {
		l.problems(p, err)
		l.unknown = append(l.unknown, path.Join(dir, componentsFolder)+"/")
		return
	}
	for _, w := range app.Warnings {
		l.add(p, w.Line, true, "%s: %s", w.Path, w.Message)
	}
	l.apps[app.ID+"@"+app.Metadata.Version] = app
	l.problems(p, append(packagecheck.Resources(app, doc, func(file string) ([]byte, error) {
		return start(l.root, path.Join(dir, file))
	}), packagecheck.Pointers(app, doc)...).Err())
	for i, profile := range app.Profiles {
		at := func(warning bool, path, format string, args ...any) {
			path = fmt.Sprintf("deploymentProfiles[%d]%s", i, path)
			l.add(p, document.Locate(doc, v1rc3.Problems{{Path: path}})[0].Line, warning, path+": "+format, args...)
		}
		if profile.Type != v1rc3.Compose {
			at(true, ".type", "profiles of type %s are not run by Colony's nodes", profile.Type)
			continue
		}
		var parts []protocol.Component
		for j, c := range profile.Components {
			folder := path.Join(dir, componentsFolder, c.Name)
			if _, err := fs.Stat(l.root, path.Join(folder, composeFile)); err != nil {
				at(true, fmt.Sprintf(".components[%d]", j), "component %s was not judged: there is no %s", c.Name, path.Join(folder, composeFile))
				continue
			}
			variables := slices.DeleteFunc(app.Variables(c.Name), func(v v1rc3.Variable) bool { return !packagecheck.IsVariable(v.Name) })
			part := l.component(c.Name, folder, variables)
			if parts = append(parts, part.Component); part.tgz != nil {
				l.packed[reference(c.Properties.Repository, c.Properties.Revision)] = component{folder, part.tgz}
			}
		}
		if err := compiler.CheckShared(parts); err != nil {
			at(false, "", "%v", err)
		}
	}
}

// A judged component is what is known of one, and packed where nothing is wrong with it.
type judged struct {
	protocol.Component
	tgz []byte
}

// component judges the folder of a Compose component, once.
func (l *linter) component(name, folder string, variables []v1rc3.Variable) judged {
	if j, done := l.owned[folder]; done {
		return j
	}
	l.result.Files++
	j := l.judge(name, folder, variables)
	l.owned[folder] = j
	return j
}

func (l *linter) judge(name, folder string, variables []v1rc3.Variable) (j judged) {
	file := path.Join(folder, composeFile)
	sub, err := fs.Sub(l.root, folder)
	if err != nil {
		l.add(file, 0, false, "%v", err)
		return j
	}
	if name == "." {
		name = "component"
	}
	tgz, err := archive.Build(name, sub)
	if err != nil {
		l.problems(file, err)
		return j
	}
	c, warnings, err := compiler.CheckArchive(name, tgz, variables)
	l.problems(file, err)
	for _, w := range warnings {
		l.lines(file, w, true)
	}
	l.images(file, c, compiler.Images(name, tgz, variables))
	if j.Component = c; err == nil {
		j.tgz = tgz
	}
	return j
}

// deployment judges a file of a deployments repository: deployments/<site>/<name>/.
func (l *linter) deployment(p string) {
	raw, ok := l.read(p)
	if !ok {
		return
	}
	d, err := v1rc3.ParseDeployment(raw)
	if err != nil {
		l.problems(p, err)
		return
	}
	folder := path.Dir(p)
	name, site := path.Base(folder), path.Base(path.Dir(folder))
	at := func(path, format string, args ...any) {
		l.add(p, document.Locate(raw, v1rc3.Problems{{Path: path}})[0].Line, false, path+": "+format, args...)
	}
	if d.Metadata.Name != name {
		at("metadata.name", "the name is %q, and the file is in the folder of %q", d.Metadata.Name, name)
	}
	if _, err := protocol.ParseSiteID(site); err != nil {
		l.add(p, 0, false, "it is in the folder of a site that cannot be: %v", err)
	} else if got, _, ok := d.Device(); !ok || got != site {
		at("metadata.deviceId", "%q: want %s/<node> or %s/*", d.Metadata.DeviceID, site, site)
	}
	version := ""
	if d.Spec.Colony != nil {
		version = d.Spec.Colony.ApplicationVersion
	}
	app, known := l.apps[d.Spec.ApplicationID+"@"+version]
	if !known {
		l.add(p, 0, true, "the values were not judged: the folder has no application %s %s", d.Spec.ApplicationID, version)
		return
	}
	resolved, err := intent.Resolve(app, d, nil, raw)
	if err != nil {
		l.problems(p, err)
		return
	}
	l.compile(p, resolved)
}
