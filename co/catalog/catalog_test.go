package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// memory is a Store in a map.
type memory struct {
	mu       sync.Mutex
	versions map[string]fleet.AppVersion
	away     error
}

func (m *memory) AppVersion(_ context.Context, app, version string) (fleet.AppVersion, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return fleet.AppVersion{}, m.away
	}
	v, ok := m.versions[app+" "+version]
	if !ok {
		return v, protocol.Errorf(protocol.NotFound, "no %s %s", app, version)
	}
	return v, nil
}

func (m *memory) SaveAppVersion(_ context.Context, v fleet.AppVersion) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.versions[v.AppID+" "+v.Version]
	if ok && have.Digest != v.Digest {
		return false, protocol.Errorf(protocol.Conflict, "immutable")
	}
	m.versions[v.AppID+" "+v.Version] = v
	return !ok, nil
}

// shelf is a Registry in maps, by reference.
type shelf struct {
	packages map[string]map[string][]byte
	archives map[string][]byte
	errs     map[string]error
	pins     map[string]protocol.Digest
	asked    []string
}

func (s *shelf) Package(_ context.Context, ref, dir string) (protocol.Digest, error) {
	p, ok := s.packages[ref]
	if !ok {
		return "", protocol.Errorf(protocol.NotFound, "no package %s", ref)
	}
	for name, content := range p {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, content, 0o600)); err != nil {
			return "", err
		}
	}
	return protocol.DigestOf(p["margo.yaml"]), nil
}

func (s *shelf) Pin(_ context.Context, repository, revision string, digest protocol.Digest) error {
	ref := repository + ":" + revision
	if have := s.pins[ref]; have != "" && have != digest {
		return protocol.Errorf(protocol.Conflict, "%s is pinned", ref)
	}
	s.pins[ref] = digest
	return nil
}

func (s *shelf) Tags(_ context.Context, ref string) ([]string, error) {
	var tags []string
	for p := range s.packages {
		if tag, ok := strings.CutPrefix(p, ref+":"); ok {
			tags = append(tags, tag)
		}
	}
	return tags, nil
}

func (s *shelf) Image(_ context.Context, ref string) (string, error) {
	if strings.Contains(ref, "absent") {
		return "", protocol.Errorf(protocol.NotFound, "find image %s: the registry does not have it", ref)
	}
	return ref, nil
}

func (s *shelf) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	ref := repository + ":" + revision
	s.asked = append(s.asked, ref)
	if err := s.errs[ref]; err != nil {
		return nil, "", err
	}
	b, ok := s.archives[ref]
	if !ok {
		return nil, "", protocol.Errorf(protocol.Unavailable, "registry of %s is away", ref)
	}
	return b, protocol.DigestOf(b), nil
}

type setup struct {
	*Catalog
	store    *memory
	registry *shelf
	exported []string
}

// newCatalog returns a Catalog to which an archive is good unless it says "bad".
func newCatalog(t *testing.T) *setup {
	t.Helper()
	s := &setup{
		store:    &memory{versions: map[string]fleet.AppVersion{}},
		registry: &shelf{packages: map[string]map[string][]byte{}, archives: map[string][]byte{}, errs: map[string]error{}, pins: map[string]protocol.Digest{}},
	}
	samples, err := filepath.Abs("testdata/samples")
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{
		Sources: Sources{
			Roots:      []string{samples, filepath.Dir(t.TempDir())}, // the folder of all that this test makes
			Remotes:    []Remote{{URL: "https://host"}, {URL: "https://away/"}, {URL: "ssh://host"}},
			Registries: []string{"registry.colony", "registry.colony:5000", "northstarida.azurecr.io"},
		},
		Store: s.store, Registry: s.registry, TempDir: t.TempDir(),
		CheckShared: func(parts []protocol.Component) error {
			if len(parts) > 1 && len(parts[0].Containers) > 0 && len(parts[1].Containers) > 0 {
				return errors.New("they share a name")
			}
			return nil
		},
		CheckArchive: func(component string, tgz []byte, variables []v1rc3.Variable) (c protocol.Component, _ []string, _ error) {
			if string(tgz) == "bad" {
				return c, nil, fmt.Errorf("component %s has no compose.yaml", component)
			}
			if string(tgz) == "odd" {
				var names []string
				for _, v := range variables {
					names = append(names, v.Name)
				}
				return c, []string{fmt.Sprintf("set are %q", names)}, nil
			}
			image, _ := strings.CutPrefix(string(tgz), "image ")
			c.Containers = []protocol.Container{{Name: "app", Image: strings.TrimPrefix(image, "good")}}
			return c, nil, nil
		},
		Images: func(_ string, tgz []byte, _ []v1rc3.Variable) []packagecheck.Image {
			image, _ := strings.CutPrefix(string(tgz), "image ")
			image, open := strings.CutPrefix(image, "of a parameter ")
			if image = strings.TrimPrefix(image, "good"); image == "" {
				return nil
			}
			return []packagecheck.Image{{Service: "app", At: "line 3: services.app.image", Reference: image, Known: image, Settled: !open}}
		},
		Host: "registry.colony",
		Export: func(_ context.Context, remote Remote, ref, dir string) (string, error) {
			s.exported = append(s.exported, remote.URL+" "+ref)
			if strings.Contains(remote.URL, "away") {
				return "", protocol.Errorf(protocol.Unavailable, "reach git remote %s", remote.URL)
			}
			return "c0ffee", os.CopyFS(dir, os.DirFS("testdata/samples/hello-world-helm"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Catalog = c
	return s
}

const description = `apiVersion: v1
id: hello
metadata:
  name: Hello
  description: Greets
  version: "1.0.0"
  catalog:
    application:
      descriptionFile: ./resources/description.md
    organization:
      - name: Colony
deploymentProfiles:
  - type: compose
    id: hello-compose
    components:
      - name: hello
        properties:
          repository: oci://registry.colony/hello
          revision: 1.0.0
parameters:
  port:
    value: 8088
    targets:
      - pointer: PORT
        components: [hello]
configuration:
  sections:
    - name: General
      settings:
        - parameter: port
          name: Port
          immutable: true
          schema: port
  schema:
    - name: port
      dataType: integer
      minValue: 1024
`

// write makes a source directory: paths to contents.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for p, content := range files {
		file := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (s *setup) do(t *testing.T, source string) []Result {
	t.Helper()
	results, err := s.Import(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// summary is one line for each result.
func summary(results []Result) []string {
	var lines []string
	for _, r := range results {
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", r.Path, r.App, r.Version, r.Outcome, r.Kind))
	}
	return lines
}

func problems(r Result) string {
	var all []string
	for _, p := range r.Problems {
		all = append(all, p.String())
	}
	return strings.Join(all, "\n")
}

func TestMargoSamples(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	results := s.do(t, s.opts.Sources.Roots[0])
	want := []string{
		"digitron com-northstartida-digitron-orchestrator 1.2.1 imported ",
		"hello-world-helm com-northstartida-hello-world 1.0 imported ",
		"nextcloud   refused invalid",
	}
	if diff := cmp.Diff(want, summary(results)); diff != "" {
		t.Errorf("%s\n%s", diff, problems(results[0])+problems(results[1]))
	}
	if len(results[0].Warnings) == 0 {
		t.Error("no warning says that the registry of digitron's archives is away")
	}
	for _, reason := range []string{"{{", "timeout"} {
		if !strings.Contains(problems(results[2]), reason) {
			t.Errorf("nextcloud's problems do not speak of %q:\n%s", reason, problems(results[2]))
		}
	}
	for _, p := range results[2].Problems {
		if p.Line == 0 {
			t.Errorf("problem without a line: %s", p)
		}
	}
}

func TestImportedVersion(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.registry.archives["oci://registry.colony/hello:1.0.0"] = []byte("good")
	dir := write(t, map[string]string{"apps/hello/margo.yaml": description, "apps/hello/resources/description.md": "x", "README.md": "x"})
	if diff := cmp.Diff([]string{"apps/hello hello 1.0.0 imported "}, summary(s.do(t, dir))); diff != "" {
		t.Fatal(diff)
	}
	got := s.store.versions["hello 1.0.0"]
	if got.Document != description || got.Digest != protocol.DigestOf([]byte(description)) || got.Source != dir || got.Description != "Greets" {
		t.Errorf("version = %+v", got)
	}
	wantProfiles := []fleet.Profile{{ID: "hello-compose", Type: "compose", Components: []fleet.Component{
		{Name: "hello", Repository: "oci://registry.colony/hello", Revision: "1.0.0"},
	}}}
	if diff := cmp.Diff(wantProfiles, got.Profiles); diff != "" {
		t.Error(diff)
	}
	if p := got.Parameters[0]; p.Name != "port" || p.Label != "Port" || !p.Immutable || p.Schema == nil || fmt.Sprint(p.Default) != "8088" {
		t.Errorf("parameter = %+v", p)
	}
}

func TestVersionsAreImmutable(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	files := map[string]string{"a/margo.yaml": description, "a/resources/description.md": "x"}
	dir := write(t, files)
	s.do(t, dir)
	if diff := cmp.Diff([]string{"a hello 1.0.0 unchanged "}, summary(s.do(t, dir))); diff != "" {
		t.Error(diff)
	}
	files["a/margo.yaml"] = strings.Replace(description, "Greets", "Greets again", 1)
	results := s.do(t, write(t, files))
	if diff := cmp.Diff([]string{"a hello 1.0.0 refused conflict"}, summary(results)); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(problems(results[0]), "version 1.0.0 of hello was imported before with other content") {
		t.Errorf("problems: %s", problems(results[0]))
	}
	if s.store.versions["hello 1.0.0"].Document != description {
		t.Error("the stored version changed")
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	const resource = "./resources/description.md"
	dir := write(t, map[string]string{
		"1-missing/margo.yaml":                        description,
		"2-outside/margo.yaml":                        strings.Replace(description, resource, "../1-missing/margo.yaml", 1),
		"3-absolute/margo.yaml":                       strings.Replace(description, resource, "/etc/passwd", 1),
		"4-link/margo.yaml":                           description,
		"5-folder/margo.yaml":                         description,
		"5-folder/resources/description.md/deeper":    "x",
		"6-good/margo.yaml":                           description,
		"6-good/resources/description.md":             "x",
		".git/hooks/margo.yaml":                       description,
		"7-description-is-a-folder/margo.yaml/deeper": "x",
	})
	if err := os.MkdirAll(filepath.Join(dir, "4-link/resources"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "4-link/resources/description.md")); err != nil {
		t.Fatal(err)
	}
	results := s.do(t, dir)
	want := []string{
		"1-missing hello 1.0.0 refused invalid",
		"2-outside   refused invalid",
		"3-absolute   refused invalid",
		"4-link hello 1.0.0 refused invalid",
		"5-folder hello 1.0.0 refused invalid",
		"6-good hello 1.0.0 imported ",
	}
	if diff := cmp.Diff(want, summary(results)); diff != "" {
		t.Error(diff)
	}
	for i, says := range []string{"no file", "stays within it", "stays within it", "no file", "not a regular file"} {
		got := problems(results[i])
		if !strings.Contains(got, says) || !strings.HasPrefix(got, "line 9: metadata.catalog.application.descriptionFile: ") {
			t.Errorf("%s: %q, want it to say %q with its line", results[i].Path, got, says)
		}
	}
}

// A resource is judged by its content: a name says nothing about it.
func TestResourcesAreOfTheirKind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ key, content, want string }{
		"any name":          {"descriptionFile", "# Hello ä", ""},
		"binary":            {"descriptionFile", "\x7fELF\x00", "want text (Markdown)"},
		"PDF to read":       {"descriptionFile", "%PDF-1.7", "want text (Markdown)"},
		"PDF as licence":    {"licenseFile", "%PDF-1.7\x00", ""},
		"binary as licence": {"licenseFile", "PK\x03\x04\xff", "want text or PDF"},
		"icon":              {"icon", "\x89PNG\x00", ""},
		"long text":         {"releaseNotes", strings.Repeat("ä", packagecheck.MaxStart), ""},
	} {
		s := newCatalog(t)
		doc := strings.Replace(description, "descriptionFile: ./resources/description.md", c.key+": ./resources/file.docx", 1)
		r := s.do(t, write(t, map[string]string{"margo.yaml": doc, "resources/file.docx": c.content}))[0]
		if got := problems(r); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: problems %q, want %q", name, got, c.want)
		}
	}
}

// What two components of a profile claim both is known when the package comes.
func TestComponentsThatClash(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	for _, name := range []string{"hello", "other"} {
		s.registry.archives["oci://registry.colony/"+name+":1.0.0"] = []byte("good")
	}
	two := strings.Replace(description, "    components:\n", "    components:\n      - name: other\n        properties: {repository: oci://registry.colony/other, revision: 1.0.0}\n", 1)
	r := s.do(t, write(t, map[string]string{"margo.yaml": two, "resources/description.md": "x"}))[0]
	if got := problems(r); r.Outcome != Refused || got != "deploymentProfiles[0]: they share a name" {
		t.Errorf("outcome %s, problems %q", r.Outcome, got)
	}
}

func TestArchives(t *testing.T) {
	t.Parallel()
	const ref = "oci://registry.colony/hello:1.0.0"
	tests := map[string]struct {
		archive string
		err     error
		outcome Outcome
		says    string
	}{
		"good":    {"good", nil, Imported, ""},
		"bad":     {"bad", nil, Refused, "has no compose.yaml"},
		"odd":     {"odd", nil, Imported, `component hello: compose.yaml: set are `},
		"wrong":   {"", protocol.Errorf(protocol.Invalid, "artifact type is wrong"), Refused, "artifact type is wrong"},
		"away":    {"", nil, Imported, "is away"},
		"missing": {"", protocol.Errorf(protocol.NotFound, "no such tag"), Imported, "must be there before"},
		"denied":  {"", protocol.Errorf(protocol.Denied, "not yours"), Imported, "not yours"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCatalog(t)
			if tt.archive != "" {
				s.registry.archives[ref] = []byte(tt.archive)
			}
			s.registry.errs[ref] = tt.err
			r := s.do(t, write(t, map[string]string{"margo.yaml": description, "resources/description.md": "x"}))[0]
			said := problems(r) + strings.Join(r.Warnings, "\n")
			if r.Outcome != tt.outcome || !strings.Contains(said, tt.says) || (tt.says == "") != (said == "") {
				t.Errorf("%s: %q, want %s: %q", r.Outcome, said, tt.outcome, tt.says)
			}
		})
	}
}

// A package that is refused leaves its archives free to be corrected under their revision.
func TestOnlyAcceptedArchivesArePinned(t *testing.T) {
	t.Parallel()
	const ref = "oci://registry.colony/hello:1.0.0"
	s := newCatalog(t)
	dir := write(t, map[string]string{"margo.yaml": description, "resources/description.md": "x"})
	for _, step := range []struct {
		archive string
		outcome Outcome
		pin     string
	}{{"bad", Refused, ""}, {"good", Imported, "good"}} {
		s.registry.archives[ref] = []byte(step.archive)
		r := s.do(t, dir)[0]
		want := protocol.Digest("")
		if step.pin != "" {
			want = protocol.DigestOf([]byte(step.pin))
		}
		if r.Outcome != step.outcome || s.registry.pins[ref] != want {
			t.Errorf("archive %q: %s, pinned %q, want %s and %q; %s", step.archive, r.Outcome, s.registry.pins[ref], step.outcome, want, problems(r))
		}
	}
	// Another import accepted another archive meanwhile.
	s = newCatalog(t)
	s.registry.archives[ref], s.registry.pins[ref] = []byte("good"), protocol.DigestOf([]byte("other"))
	if r := s.do(t, dir)[0]; r.Outcome != Refused || r.Kind != protocol.Conflict || len(s.store.versions) != 0 {
		t.Errorf("an archive that is pinned to another: %s %s, %d versions stored", r.Outcome, r.Kind, len(s.store.versions))
	}
}

// TestRegistryAwayIsAskedOnce imports two packages from one registry that does not
// answer.
func TestRegistryAwayIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	results := s.do(t, write(t, map[string]string{
		"a/margo.yaml": description, "a/resources/description.md": "x",
		"b/margo.yaml": strings.Replace(description, `"1.0.0"`, `"2.0.0"`, 1), "b/resources/description.md": "x",
	}))
	if diff := cmp.Diff([]string{"a hello 1.0.0 imported ", "b hello 2.0.0 imported "}, summary(results)); diff != "" {
		t.Error(diff)
	}
	if len(s.registry.asked) != 1 || len(results[1].Warnings) != 1 {
		t.Errorf("asked for %v; warnings %v", s.registry.asked, results[1].Warnings)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	bare := t.TempDir()
	for _, d := range []string{"HEAD", "objects", "refs"} {
		if err := os.Mkdir(filepath.Join(bare, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"https://ann:secret@host/apps.git#v1", "git@host:apps.git", bare, bare + "#main"} {
		s.do(t, source)
	}
	want := []string{"https://ann:secret@host/apps.git v1", "git@host:apps.git ", bare + " ", bare + " main"}
	if diff := cmp.Diff(want, s.exported); diff != "" {
		t.Error(diff)
	}
	if got := s.store.versions["com-northstartida-hello-world 1.0"].Source; got != "https://ann:xxxxx@host/apps.git#c0ffee" {
		t.Errorf("source = %q", got)
	}
	left, err := os.ReadDir(s.opts.TempDir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	tests := map[string]protocol.Kind{
		bare + "/none":          protocol.NotFound,
		t.TempDir():             protocol.Invalid,
		"https://away/apps.git": protocol.Unavailable,
	}
	for source, kind := range tests {
		if _, err := s.Import(t.Context(), source); protocol.KindOf(err) != kind || !strings.Contains(err.Error(), source) {
			t.Errorf("Import(%s) = %v, want %s", source, err, kind)
		}
	}
}

func TestSingleFile(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	results := s.do(t, filepath.Join(write(t, map[string]string{"hello.margo.yaml": description}), "hello.margo.yaml"))
	if results[0].Outcome != Imported || !strings.Contains(results[0].Warnings[0], "resources were not checked") {
		t.Errorf("results = %+v", results)
	}
}

func TestOCI(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	const repository = "oci://registry.colony:5000/apps/hello"
	files := func(version string) map[string][]byte {
		return map[string][]byte{
			"margo.yaml":               []byte(strings.Replace(description, `"1.0.0"`, `"`+version+`"`, 1)),
			"resources/description.md": []byte("x"),
		}
	}
	s.registry.packages[repository+":1.0.0"] = files("1.0.0")
	s.registry.packages[repository+":2.0.0"] = files("2.0.0")
	s.registry.packages[repository+":3.0.0"] = map[string][]byte{"margo.yaml": files("3.0.0")["margo.yaml"]}
	s.registry.packages[repository+":latest"] = files("2.0.0")
	if diff := cmp.Diff([]string{"1.0.0 hello 1.0.0 imported "}, summary(s.do(t, repository+":1.0.0"))); diff != "" {
		t.Error(diff)
	}
	got := summary(s.do(t, repository))
	slices.Sort(got)
	want := []string{
		"1.0.0 hello 1.0.0 unchanged ", "2.0.0 hello 2.0.0 imported ", "3.0.0 hello 3.0.0 refused invalid", "latest hello 2.0.0 skipped ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"latest hello 2.0.0 refused invalid"}, summary(s.do(t, repository+":latest"))); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Import(t.Context(), repository+":9"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("unknown tag: %v, want not_found", err)
	}
}

func TestStoreAway(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	s.store.away = protocol.Errorf(protocol.Unavailable, "the database is away")
	results := s.do(t, write(t, map[string]string{"margo.yaml": description, "resources/description.md": "x"}))
	if diff := cmp.Diff([]string{". hello 1.0.0 refused unavailable"}, summary(results)); diff != "" {
		t.Error(diff)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	s := newCatalog(t)
	if _, err := s.Import(ctx, s.opts.Sources.Roots[0]); !errors.Is(err, stop) {
		t.Errorf("Import = %v, want %v", err, stop)
	}
}

// TestEndlessFiles imports what a naive reader would read for ever.
func TestEndlessFiles(t *testing.T) {
	t.Parallel()
	s := newCatalog(t)
	large := filepath.Join(write(t, map[string]string{"margo.yaml": strings.Repeat("#", maxDescription+1)}), "margo.yaml")
	s.opts.Sources.Roots = append(s.opts.Sources.Roots, "/dev")
	for source, text := range map[string]string{"/dev/zero": "neither a directory nor a regular file", large: "is larger than"} {
		if _, err := s.Import(t.Context(), source); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), text) {
			t.Errorf("Import(%s) = %v, want %q", source, err, text)
		}
	}
}
