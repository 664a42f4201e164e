package packaging_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/co/lint"
	"github.com/colonyfleet/colony/co/packaging"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func folder(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, content := range files {
		root[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o644}
	}
	return root
}

func made(t *testing.T, files map[string]string, o packaging.Options) *packaging.Package {
	t.Helper()
	p, err := packaging.FromCompose(folder(files), []string{"docker-compose.yml"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const vendors = `name: plant-meter
services:
  meter:
    image: vendor/meter:${TAG:-1.2}
    env_file: [meter.env]
    environment:
      TZ: ${TZ}
      TOKEN: ${TOKEN:?a token of the plant}
      PRICE: $$5
    ports: ["${HOST_IP:-0.0.0.0}:8080:8080", "${PORT:-8081}:8081"]
    volumes:
      - ./conf:/etc/meter:ro
      - ./seed.sql:/seed.sql
      - ./data:/data
      - ../other:/other
      - type: bind
        source: ./long.conf
        target: /long.conf
    configs: [rules]
configs:
  rules: {file: ./rules/$RULES.yaml}
  fixed: {file: rules/fixed.yaml}
`

// The package has all that the Compose file names, and a parameter for each variable.
func TestPackage(t *testing.T) {
	t.Parallel()
	p := made(t, map[string]string{
		"docker-compose.yml": vendors, ".env": "TZ=UTC\nUNUSED=1\n", "meter.env": "LEVEL=${LEVEL:-info}\n", "LICENSE": "MIT",
		"conf/a.conf": "a", "conf/sub/b.conf": "b", "seed.sql": "select 1", "long.conf": "l", "rules/fixed.yaml": "f", "README.md": "not named",
	}, packaging.Options{Organization: "Vendor {{x}}"})
	want := []string{
		"components/plant-meter/.env", "components/plant-meter/compose.yaml", "components/plant-meter/conf/a.conf", "components/plant-meter/conf/sub/b.conf",
		"components/plant-meter/long.conf", "components/plant-meter/meter.env", "components/plant-meter/rules/fixed.yaml", "components/plant-meter/seed.sql",
		"margo.yaml", "resources/LICENSE", "resources/description.md",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(p.Files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got := string(p.Files[p.Compose()].Content); got != vendors {
		t.Errorf("the vendor's file was changed:\n%s", got)
	}
	var got []string
	for _, q := range p.Parameters {
		value := "none"
		if q.Default != nil {
			value = *q.Default
		}
		got = append(got, fmt.Sprintf("%s=%s required:%t port:%t %s", q.Name, value, q.Required, q.Port, q.Description))
	}
	if diff := cmp.Diff([]string{
		"HOST_IP=0.0.0.0 required:false port:false used in services.meter.ports[0]",
		"LEVEL=info required:false port:false used in meter.env",
		"PORT=8081 required:false port:true used in services.meter.ports[1]",
		"RULES=none required:true port:false used in configs.rules.file",
		"TAG=1.2 required:false port:false used in services.meter.image",
		"TOKEN=none required:true port:false a token of the plant",
		"TZ=UTC required:false port:false used in services.meter.environment.TZ",
	}, got); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	app, err := v1rc3.ParseApplication(p.Files["margo.yaml"].Content)
	if err != nil {
		t.Fatal(err)
	}
	if app.ID != "plant-meter" || app.Metadata.Version != "1.0.0" || app.Metadata.Catalog.Application.LicenseFile != "./resources/LICENSE" ||
		app.Profiles[0].Components[0].Properties.Repository != "oci://registry.colony/plant-meter/compose" {
		t.Errorf("margo.yaml:\n%s", p.Files["margo.yaml"].Content)
	}
	if err := app.ValidateValues(map[string]any{"PORT": 70000}, nil); err == nil {
		t.Error("a port above 65535 is allowed")
	}
	if _, err := v1rc3.Build(app, app.Profiles[0].ID, nil, v1rc3.Request{ID: "x", Name: "m", DeviceID: "s/*"}); err == nil || !strings.Contains(err.Error(), "TOKEN") {
		t.Errorf("a deployment without the required TOKEN: %v", err)
	}
}

// The name of a folder may be a number, a date or a word of YAML.
func TestNamesThatAreNoText(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"2024", "01", "08", "1e3", "0x10", "2024-11-24", "on", "n", "null", "3d-printer", "plant"} {
		p := made(t, map[string]string{"docker-compose.yml": "services: {web: {image: 'i:${TAG:-1}'}}\n"}, packaging.Options{Folder: id, Organization: "o"})
		app, err := v1rc3.ParseApplication(p.Files["margo.yaml"].Content)
		if err != nil {
			t.Errorf("%s: %v", id, err)
		} else if app.ID != id || app.Profiles[0].ID != id || app.Profiles[0].Components[0].Name != id {
			t.Errorf("%s:\n%s", id, p.Files["margo.yaml"].Content)
		}
	}
}

// The port of the node is a number, wherever in the text of a port it stands.
func TestPortOfTheNode(t *testing.T) {
	t.Parallel()
	for port, want := range map[string]string{
		"'${P:-8081}:81'":                               "P",
		"'127.0.0.1:${P:-8082}:82/udp'":                 "P",
		"'${HOST_IP:-127.0.0.1}:${P:-8083}:${T:-83}'":   "P",
		"'[::1]:${P:-8084}:84'":                         "P",
		"{target: '${T:-85}', published: '${P:-8085}'}": "P",
		"'${HOST_IP:-127.0.0.1}:8086:86'":               "",
		"'${T:-87}'":                                    "",
		"'127.0.0.1::${T:-88}'":                         "",
		"'80${P:-89}:89'":                               "",
		"'${P:-90}-${Q:-91}:90-91'":                     "",
		"'${BIND:-127.0.0.1:8092}:92'":                  "", // its default is none
	} {
		p := made(t, map[string]string{"docker-compose.yml": "services:\n  web:\n    image: i:1\n    ports: [" + port + "]\n"}, packaging.Options{ID: "web"})
		var got []string
		for _, q := range p.Parameters {
			if q.Port {
				got = append(got, q.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: ports of the node %q, want %q", port, got, want)
		}
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	service := func(lines ...string) string {
		return "services:\n  web:\n    image: i:1\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	for name, c := range map[string]struct {
		compose, env string
		want         string // "line: note"
		parameters   string
	}{
		"two defaults": {service("user: ${U:-a}", "hostname: ${U:-b}"), "", "", "U unset"},
		"braces":       {service("user: '${U:-{}}'"), "", "", "U={}"},
		"dollars":      {service("user: ${U:-a$$b}"), "", "", "U=a$b"},
		"default once": {service("user: ${U:-a}", "hostname: b${U}"), "", "", "U unset"},
		"of another":   {service("user: ${U}"), "V=1\nU=${V}2", "", "U unset V=1"},
		"folder":       {service("volumes: ['${PWD}/a:/a', '${HOME}/b:/b']"), "", "", ""},
		"settled":      {service("user: ${U:-a}", "hostname: ${U:-b}"), "U=c", "", "U=c"},
		"nested":       {service("user: ${U:-${V:-x}y}"), "", "", "U unset V=x"},
		"set or not":   {service("user: ${U+x}"), "", "", "U unset"},
		"empty or not": {service("user: ${U:+x}"), "", "", "U="},
		"reserved":     {service("user: $HOME"), "", "4: HOME is no parameter: there is no such folder on a node", ""},
		"passed":       {service("environment: [A]"), "", "", "A unset"},
		"passed too":   {service("environment: {A: }"), "", "", "A unset"},
		"content":      {service("secrets: [s]") + "secrets: {s: {environment: A}}\n", "", "", ""},
		"passed, set":  {service("environment: [A]"), "A=1", "", "A=1"},
		"secret":       {service("environment: {X: '${DB_PASSWORD:-postgres}'}"), "", `4: DB_PASSWORD has the default "postgres"`, "DB_PASSWORD=postgres"},
		"untagged":     {strings.Replace(service("user: x"), "i:1", "r:5000/i", 1), "", "3: r:5000/i names no version", ""},
		"latest":       {strings.Replace(service("user: x"), "i:1", "i:latest", 1), "", "3: i:latest names no version", ""},
		"profiles":     {service("profiles: [debug]"), "", "", "COMPOSE_PROFILES="},
		"required":     {service("user: ${U:?say}"), "U=me", "", "U=me"},
		"escaped":      {service("user: $${U} $$U"), "", "", ""},
		"merged":       {"x-a: &a\n  user: ${U:-1}\nservices:\n  web:\n    image: i:1\n    <<: *a\n", "", "", "U=1"},
	} {
		files := map[string]string{"docker-compose.yml": c.compose}
		if c.env != "" {
			files[".env"] = c.env
		}
		p := made(t, files, packaging.Options{ID: "web", Organization: "o"})
		var notes, parameters []string
		for _, n := range p.Notes {
			notes = append(notes, fmt.Sprintf("%d: %s", n.Line, n.Message))
		}
		for _, q := range p.Parameters {
			if q.Default != nil {
				parameters = append(parameters, q.Name+"="+*q.Default)
			} else if !q.Required {
				parameters = append(parameters, q.Name+" unset")
			}
		}
		if all := strings.Join(notes, "\n"); len(notes) > 1 || (c.want == "") != (all == "") || !strings.HasPrefix(all, c.want) {
			t.Errorf("%s: notes %q, want %q", name, notes, c.want)
		}
		if got := strings.Join(parameters, " "); got != c.parameters {
			t.Errorf("%s: parameters %q, want %q", name, got, c.parameters)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("#", 256<<10+1)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("b%d: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", i, 'b'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i)
	}
	for name, c := range map[string]struct {
		files map[string]string
		o     packaging.Options
		want  string
	}{
		"none":    {map[string]string{}, packaging.Options{}, "docker-compose.yml: file does not exist"},
		"no YAML": {map[string]string{"docker-compose.yml": "a: b: c"}, packaging.Options{}, "docker-compose.yml: "},
		"list":    {map[string]string{"docker-compose.yml": "- a"}, packaging.Options{}, "want a mapping"},
		"large":   {map[string]string{"docker-compose.yml": large}, packaging.Options{}, "more than 262144 bytes"},
		"bomb":    {map[string]string{"docker-compose.yml": bomb}, packaging.Options{}, "docker-compose.yml: "},
		"id":      {map[string]string{"docker-compose.yml": "services: {}"}, packaging.Options{ID: "A_b"}, `"A_b"`},
		"no id":   {map[string]string{"docker-compose.yml": "services: {}"}, packaging.Options{Folder: "/"}, "--id"},
		"version": {map[string]string{"docker-compose.yml": "services: {}"}, packaging.Options{ID: "a", Version: "v1"}, "--version"},
		"host":    {map[string]string{"docker-compose.yml": "services: {}"}, packaging.Options{ID: "a", Registry: "r.example/./b"}, "\"oci://r.example/./b/a\": want oci://host/path"},
		"env":     {map[string]string{"docker-compose.yml": "services: {}", ".env": "A='"}, packaging.Options{ID: "a"}, ".env: "},
		"data": {
			map[string]string{"docker-compose.yml": "services: {a: {volumes: [./d:/d]}}", "d/x": strings.Repeat("x", 9<<20), "d/y": strings.Repeat("x", 9<<20)},
			packaging.Options{ID: "a"},
			"what an application writes does not belong to it",
		},
	} {
		_, err := packaging.FromCompose(folder(c.files), []string{"docker-compose.yml"}, c.o)
		if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want invalid: %s", name, err, c.want)
		}
	}
}

// Nothing outside of the vendor's folder is taken, whatever its links say.
func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"docker-compose.yml": "services: {a: {image: 'i:1', volumes: ['./d:/d', './f:/f']}}", "d/x": "x"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "d/link")), os.Symlink("/etc/passwd", filepath.Join(dir, "f"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close() //nolint:errcheck // read only
	p, err := packaging.FromCompose(root.FS(), []string{"docker-compose.yml"}, packaging.Options{ID: "a", Organization: "o"})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range p.Files {
		if strings.Contains(string(f.Content), "root:") {
			t.Errorf("%s holds a file from outside", name)
		}
	}
	if len(p.Notes) != 2 || !strings.Contains(p.Notes[0].Message, "was not copied") || !strings.Contains(p.Notes[1].Message, "was not copied") {
		t.Errorf("notes: %+v", p.Notes)
	}
}

// A named pipe is not copied, and not waited for.
func TestPipeIsNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := errors.Join(os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte("services: {a: {image: 'i:1', volumes: ['./p:/p:ro']}}"), 0o600), syscall.Mkfifo(filepath.Join(dir, "p"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	p, err := packaging.FromCompose(os.DirFS(dir), []string{"compose.yaml"}, packaging.Options{ID: "a", Organization: "o"})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0].Message, "p was not copied: not a regular file") {
		t.Errorf("notes: %+v", p.Notes)
	}
}

func TestWriteNeverOverwrites(t *testing.T) {
	t.Parallel()
	p := made(t, map[string]string{"docker-compose.yml": "services: {a: {image: 'i:1'}}"}, packaging.Options{ID: "a"})
	dir := filepath.Join(t.TempDir(), "new", "a")
	if err := p.Write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, p.Compose()))
	if err != nil || string(b) != "services: {a: {image: 'i:1'}}" {
		t.Errorf("compose.yaml: %q, %v", b, err)
	}
	if err := p.Write(dir); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), "nothing is overwritten") {
		t.Errorf("a second time: %v, want a conflict", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(file); err == nil {
		t.Error("a file was taken for a folder")
	}
}

// shelf is a registry that notes what is pushed, in its order.
type shelf struct {
	pushed []string
	away   string
}

func (s *shelf) push(ref string) (protocol.Digest, error) {
	if s.away != "" && strings.Contains(ref, s.away) {
		return "", protocol.Errorf(protocol.Unavailable, "%s is away", ref)
	}
	s.pushed = append(s.pushed, ref)
	return protocol.DigestOf([]byte(ref)), nil
}

func (s *shelf) PushArchive(_ context.Context, repository, revision string, _ []byte) (protocol.Digest, error) {
	return s.push(repository + ":" + revision)
}

func (s *shelf) PushPackage(_ context.Context, ref string, _ fs.FS) (protocol.Digest, error) {
	return s.push(ref)
}

// What a package names is in the registry before it, and it is not pushed where that fails.
func TestPush(t *testing.T) {
	t.Parallel()
	p := made(t, map[string]string{"docker-compose.yml": "services: {a: {image: 'i:1'}}"}, packaging.Options{ID: "a", Registry: "r.example/x"})
	dir := t.TempDir()
	if err := p.Write(dir); err != nil {
		t.Fatal(err)
	}
	want := []string{"oci://r.example/x/a/compose:1.0.0", "r.example/x/a:1.0.0"}
	for _, ref := range []string{"r.example/x/a", "r.example/x/a:1.0.0"} {
		r := &shelf{}
		pushed, err := packaging.Push(t.Context(), r, os.DirFS(dir), ref)
		if err != nil || len(pushed) != 2 || pushed[1].Digest == "" {
			t.Fatalf("%+v, %v", pushed, err)
		}
		if diff := cmp.Diff(want, r.pushed); diff != "" {
			t.Errorf("pushed (-want +got):\n%s", diff)
		}
	}
	r := &shelf{away: "compose"}
	if pushed, err := packaging.Push(t.Context(), r, os.DirFS(dir), "r.example/a"); err == nil || len(pushed) != 0 || len(r.pushed) != 0 {
		t.Errorf("with a component that cannot be pushed: %v, %v", r.pushed, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "components")); err != nil {
		t.Fatal(err)
	}
	r = &shelf{}
	pushed, err := packaging.Push(t.Context(), r, os.DirFS(dir), "r.example/a")
	if err != nil || len(r.pushed) != 1 || !strings.Contains(pushed[0].Note, "there is no components/a/compose.yaml") {
		t.Errorf("without the component: %+v, %v", pushed, err)
	}
	if _, err := packaging.Push(t.Context(), r, folder(nil), "r.example/a"); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("an empty folder: %v", err)
	}
}

// A default with which the file does not compile is none: each deployment must give a value.
func TestDefaultsCompile(t *testing.T) {
	t.Parallel()
	p := made(t, map[string]string{
		"docker-compose.yml": `services:
  web:
    image: vendor/web:${TAG}
    restart: ${RESTART:-sometimes}
    volumes: ["${DIR}:/data"]
    mem_limit: ${MEMORY}
    hostname: ${NAME:-web}
    environment: {A: "${A}"}
    ports: ["${PORT}:80"]
    configs: [rules]
  extra:
    image: i:1
    profiles: [extra]
    command: ["${ARGS}"]
    stop_grace_period: ${GRACE:-5}
configs: {rules: {file: ./rules/$RULES.yaml}}
`,
	}, packaging.Options{ID: "web", Organization: "o"})
	var required []string
	for _, q := range p.Parameters {
		if q.Required {
			required = append(required, q.Name)
		}
	}
	if want := []string{"DIR", "GRACE", "MEMORY", "RESTART", "RULES", "TAG"}; !slices.Equal(required, want) {
		t.Errorf("required are %q, want %q", required, want)
	}
	if len(p.Notes) != 2 || p.Notes[0].Line != 4 || !strings.Contains(p.Notes[0].Message, `RESTART has no default: with "sometimes"`) {
		t.Errorf("notes %+v", p.Notes)
	}
	root := fstest.MapFS{}
	for name, f := range p.Files {
		root[name] = &fstest.MapFile{Data: f.Content, Mode: f.Mode}
	}
	result, err := lint.Folder(root)
	if err != nil || result.Failed() {
		t.Errorf("%v, findings %v", err, result.Findings)
	}
}

// Whatever a vendor's file holds, the package that is made of it can be read, has each
// default letter by letter, and sets every variable.
func TestAnyDefault(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "variables")
		want := map[string]string{}
		var environment, env strings.Builder
		for range n {
			name := rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,6}`).Draw(t, "name")
			if _, twice := want[name]; twice || strings.HasPrefix(name, "COMPOSE_") || name == "PWD" || name == "HOME" {
				continue
			}
			if rapid.Bool().Draw(t, "in .env") {
				value := rapid.StringMatching(`[ -!#-&(-\[\]-~äé☃😀]{0,12}`).Draw(t, "value")
				want[name] = value
				fmt.Fprintf(&env, "%s='%s'\n", name, value)
				fmt.Fprintf(&environment, "      X%s: ${%s}\n", name, name)
			} else {
				value := rapid.StringMatching(`[A-Za-z0-9./:@%+,;=?!\[\]()<>*&#| äé☃😀'"-]{0,12}`).Draw(t, "default")
				want[name] = value
				fmt.Fprintf(&environment, "      X%s: '${%s:-%s}'\n", name, name, strings.ReplaceAll(value, "'", "''"))
			}
		}
		files := map[string]string{"docker-compose.yml": "services:\n  web:\n    image: registry.colony/i:1\n    environment:\n" + environment.String(), ".env": env.String()}
		p, err := packaging.FromCompose(folder(files), []string{"docker-compose.yml"}, packaging.Options{ID: "web"})
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, files["docker-compose.yml"], files[".env"])
		}
		app, err := v1rc3.ParseApplication(p.Files["margo.yaml"].Content)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if got := app.Parameters[name].Value; got != value {
				t.Fatalf("%s: default %q, want %q\n%s", name, got, value, p.Files["margo.yaml"].Content)
			}
		}
		root := fstest.MapFS{}
		for name, f := range p.Files {
			root[name] = &fstest.MapFile{Data: f.Content, Mode: f.Mode}
		}
		result, err := lint.Folder(root)
		if err != nil || len(result.Findings) != 0 {
			t.Fatalf("%v, findings %v\n%s", err, result.Findings, p.Files["margo.yaml"].Content)
		}
	})
}
