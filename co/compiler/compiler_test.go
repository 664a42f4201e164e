package compiler

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// An entry is one entry of a test archive.
type entry struct {
	name string
	body string
	mode int64
	kind byte // tar.TypeReg where zero
	link string
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Size: int64(len(e.body))}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// composeArchive packs a compose.yaml and further files.
func composeArchive(t testing.TB, compose string, files map[string]string) []byte {
	t.Helper()
	entries := []entry{{name: "app/", kind: tar.TypeDir, mode: 0o755}, {name: "app/compose.yaml", body: compose}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, entry{name: "app/" + name, body: files[name]})
	}
	return pack(t, entries...)
}

// open returns variables whose values a deployment must give.
func open(names ...string) (all []v1rc3.Variable) {
	for _, name := range names {
		all = append(all, v1rc3.Variable{Name: name, Parameter: name, Required: true})
	}
	return all
}

// A shelf is a Resolver with archives by repository.
type shelf struct {
	archives map[string][]byte
	corrupt  bool
	images   int // how many were resolved
}

var imageDigest = strings.Repeat("ab", 32)

func (s *shelf) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	b, ok := s.archives[repository]
	if !ok {
		return nil, "", protocol.Errorf(protocol.NotFound, "%s:%s is not there", repository, revision)
	}
	if s.corrupt {
		return b, protocol.DigestOf(nil), nil
	}
	return b, protocol.DigestOf(b), nil
}

func (s *shelf) Image(_ context.Context, ref string) (string, error) {
	s.images++
	if strings.Contains(ref, "absent") {
		return "", protocol.Errorf(protocol.Unavailable, "the registry is away")
	}
	name, _, _ := strings.Cut(ref, "@")
	return name + "@sha256:" + imageDigest, nil
}

// deployment returns a deployment of components, each of repository oci://r/<name>.
func deployment(components ...string) *v1rc3.Deployment {
	d := &v1rc3.Deployment{
		ID:       "a3e2f5dc-912e-494f-8395-52cf3769bc06",
		Metadata: v1rc3.DeploymentMetadata{Name: "line-1", Namespace: "colony", DeviceID: "plant/*"},
		Spec: v1rc3.DeploymentSpec{
			ApplicationID: "app",
			Profile:       v1rc3.DeploymentProfile{Type: v1rc3.Compose},
			Parameters:    map[string]v1rc3.Parameter{},
			Colony:        &v1rc3.Extensions{ApplicationVersion: "2.0", Profile: "main"},
		},
	}
	for _, name := range components {
		d.Spec.Profile.Components = append(d.Spec.Profile.Components, v1rc3.Component{
			Name: name, Properties: v1rc3.Properties{Repository: "oci://r/" + name, Revision: "1.2.3"},
		})
	}
	return d
}

// set gives a parameter of the first component a value.
func set(d *v1rc3.Deployment, variable string, value any) {
	d.Spec.Parameters["p-"+variable] = v1rc3.Parameter{
		Value:   value,
		Targets: []v1rc3.Target{{Pointer: variable, Components: []string{d.Spec.Profile.Components[0].Name}}},
	}
}

// compileOne compiles a deployment of one component, and returns its containers.
func compileOne(t testing.TB, compose string, files map[string]string, variables map[string]string) ([]protocol.Container, error) {
	t.Helper()
	d := deployment("web")
	for name, value := range variables {
		set(d, name, value)
	}
	s := &shelf{archives: map[string][]byte{"oci://r/web": composeArchive(t, compose, files)}}
	_, spec, err := Compile(t.Context(), d, s)
	if err != nil {
		return nil, err
	}
	return spec.Components[0].Containers, nil
}

func TestCompileFillsTheEntry(t *testing.T) {
	t.Parallel()
	wait, rollback := false, false
	d := deployment("web", "db")
	d.Metadata.DeviceID = "plant/node-1"
	d.Spec.Profile.Components[0].Properties.Wait = &wait
	d.Spec.Profile.Components[1].Properties.Timeout = "1m30s"
	d.Spec.Profile.Constraints = &v1rc3.Constraints{Capacity: &v1rc3.Capacity{Memory: "64Mi"}}
	d.Spec.Colony = &v1rc3.Extensions{
		ApplicationVersion: "2.0", Profile: "main", Selector: map[string]string{"line": "1"}, Replicas: 2, Retry: 3,
		Policy: &v1rc3.Policy{Attempts: 5, Backoff: v1rc3.Duration(2e9), Rollback: &rollback, MinHealthy: v1rc3.Duration(30e9)},
	}
	d.Spec.Colony.Rollback = string(fleet.ContentDigest(d))
	const image = "services: {%s: {image: 'r.example/i:1'}}"
	s := &shelf{archives: map[string][]byte{
		"oci://r/web": composeArchive(t, strings.Replace(image, "%s", "front", 1), nil),
		"oci://r/db":  composeArchive(t, strings.Replace(image, "%s", "back", 1), nil),
	}}
	got, spec, err := Compile(t.Context(), d, s)
	if err != nil {
		t.Fatal(err)
	}
	pinned := "r.example/i:1@sha256:" + imageDigest
	wantSpec := &protocol.DeploymentSpec{
		V: protocol.Version, ID: d.ID, Deployment: "line-1", App: "app", AppVersion: "2.0", Profile: "main",
		Components: []protocol.Component{
			{Name: "web", Revision: "1.2.3", NoWait: true, Containers: []protocol.Container{{Name: "front", Image: pinned}}},
			{Name: "db", Revision: "1.2.3", TimeoutMillis: 90_000, Containers: []protocol.Container{{Name: "back", Image: pinned}}},
		},
	}
	if diff := cmp.Diff(wantSpec, spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	encoded := protocol.Marshal(wantSpec)
	want := protocol.SiteEntry{
		Deployment: "line-1", Digest: protocol.DigestOf(encoded), Size: uint64(len(encoded)), Spec: encoded,
		Placement: protocol.Placement{
			Node: "node-1", Selector: map[string]string{"line": "1"}, Replicas: 2,
			Constraints: []byte(`{"capacityRequirements":{"memory":"64Mi"}}`),
		},
		Policy:   protocol.Policy{Attempts: 5, BackoffMillis: 2000, NoRollback: true, MinHealthyMillis: 30000},
		Rollback: true, Retry: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	if s.images != 1 {
		t.Errorf("one reference was resolved %d times", s.images)
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	const good = "services: {web: {image: i, ports: ['80:80']}}"
	for name, c := range map[string]struct {
		change func(*v1rc3.Deployment, *shelf)
		kind   protocol.Kind
		want   string
	}{
		"helm":           {func(d *v1rc3.Deployment, _ *shelf) { d.Spec.Profile.Type = v1rc3.Helm }, protocol.Invalid, "helm profiles need a Kubernetes node; Colony nodes run compose"},
		"custom":         {func(d *v1rc3.Deployment, _ *shelf) { d.Spec.Profile.Type = v1rc3.Custom }, protocol.Invalid, "Colony nodes run compose"},
		"name":           {func(d *v1rc3.Deployment, _ *shelf) { d.Metadata.Name = "Line 1" }, protocol.Invalid, `metadata.name: deployment name "Line 1"`},
		"device":         {func(d *v1rc3.Deployment, _ *shelf) { d.Metadata.DeviceID = "plant" }, protocol.Invalid, "want <site>/<node> or <site>/*"},
		"no components":  {func(d *v1rc3.Deployment, _ *shelf) { d.Spec.Profile.Components = nil }, protocol.Invalid, "no components"},
		"no archive":     {func(_ *v1rc3.Deployment, s *shelf) { s.archives = nil }, protocol.NotFound, "fetch component web: oci://r/web:1.2.3 is not there"},
		"wrong bytes":    {func(_ *v1rc3.Deployment, s *shelf) { s.corrupt = true }, protocol.Invalid, "digest mismatch"},
		"variable name":  {func(d *v1rc3.Deployment, _ *shelf) { set(d, "ENV.PORT", 1) }, protocol.Invalid, `pointer "ENV.PORT": for compose it is the name of an environment variable`},
		"variable twice": {func(d *v1rc3.Deployment, _ *shelf) { set(d, "A", 1); d.Spec.Parameters["q"] = d.Spec.Parameters["p-A"] }, protocol.Invalid, "parameters p-A and q both set A of component web"},
		"names": {func(d *v1rc3.Deployment, s *shelf) {
			d.Spec.Profile.Components = deployment("web", "two").Spec.Profile.Components
			s.archives["oci://r/two"] = composeArchive(t, "services: {web: {image: i}}", nil)
		}, protocol.Invalid, "service web of component web and service web of component two share the name web"},
		"ports": {func(d *v1rc3.Deployment, s *shelf) {
			d.Spec.Profile.Components = deployment("web", "two").Spec.Profile.Components
			s.archives["oci://r/two"] = composeArchive(t, "services: {db: {image: i, ports: ['127.0.0.1:80:81']}}", nil)
		}, protocol.Invalid, "service db of component two: port 80 of the node is published twice"},
		"image away": {func(_ *v1rc3.Deployment, s *shelf) {
			s.archives["oci://r/web"] = composeArchive(t, "services: {web: {image: absent}}", nil)
		}, protocol.Unavailable, "component web: resolve image absent: the registry is away"},
		"constraints": {func(d *v1rc3.Deployment, _ *shelf) {
			d.Spec.Profile.Constraints = &v1rc3.Constraints{Capacity: &v1rc3.Capacity{Memory: strings.Repeat("6", maxConstraints)}}
		}, protocol.Invalid, "the device constraints take 16"},
		"too large": {func(_ *v1rc3.Deployment, s *shelf) {
			s.archives["oci://r/web"] = composeArchive(t, "services: {web: {image: i, configs: [c]}}\nconfigs: {c: {file: ./c}}", map[string]string{"c": strings.Repeat("x", MaxSpec)})
		}, protocol.Invalid, "put it into an image, or into a directory of the node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s := deployment("web"), &shelf{archives: map[string][]byte{"oci://r/web": composeArchive(t, good, nil)}}
			if _, _, err := Compile(t.Context(), d, s); err != nil {
				t.Fatalf("unchanged: %v", err)
			}
			c.change(d, s)
			_, _, err := Compile(t.Context(), d, s)
			if err == nil || protocol.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error of kind %s: %v\nwant %s: %s", protocol.KindOf(err), err, c.kind, c.want)
			}
		})
	}
}

func TestCompileIsDeterministic(t *testing.T) {
	t.Parallel()
	compose := `
services:
  web:
    image: i
    environment: {B: "2", A: "1", C: "${X}"}
    labels: {z: "1", y: "2"}
    sysctls: {net.core.somaxconn: "1024", kernel.msgmax: "1"}
    extra_hosts: {b: 10.0.0.2, a: 10.0.0.1}
    volumes: ["vol:/v", "/srv:/s"]
    depends_on: [c, b, a]
  a: {image: i}
  b: {image: i}
  c: {image: i}
volumes: {vol: {}}
`
	var first protocol.Digest
	for range 20 {
		d := deployment("web")
		set(d, "X", "x")
		got, _, err := Compile(t.Context(), d, &shelf{archives: map[string][]byte{"oci://r/web": composeArchive(t, compose, nil)}})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = got.Digest
		}
		if got.Digest != first {
			t.Fatalf("digest %s, then %s", first, got.Digest)
		}
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	good := entry{name: "app/compose.yaml", body: "services: {web: {image: i}}"}
	for name, c := range map[string]struct {
		entries []entry
		want    string // empty: accepted
	}{
		"good":           {[]entry{good}, ""},
		"dot prefix":     {[]entry{{name: "./", kind: tar.TypeDir}, {name: "./app/", kind: tar.TypeDir}, {name: "./app/compose.yaml", body: good.body}}, ""},
		"subdirectory":   {[]entry{good, {name: "app/conf/x", body: "x"}}, ""},
		"two tops":       {[]entry{good, {name: "b/x"}}, "2 top directories"},
		"file at top":    {[]entry{good, {name: "x"}}, `the file "x" lies beside the top directory`},
		"empty":          {nil, "0 top directories"},
		"other name":     {[]entry{{name: "app/docker-compose.yml", body: good.body}}, "it has a docker-compose.yml: Margo wants the name compose.yaml"},
		"none":           {[]entry{{name: "app/x"}}, "it has no compose.yaml"},
		"absolute":       {[]entry{good, {name: "/etc/passwd"}}, `entry "/etc/passwd": want a relative path`},
		"traversal":      {[]entry{good, {name: "app/../../x"}}, `entry "app/../../x": want a relative path`},
		"backslash":      {[]entry{good, {name: `app\..\x`}}, "want a relative path"},
		"symlink":        {[]entry{good, {name: "app/l", kind: tar.TypeSymlink, link: "/etc"}}, "links are not read"},
		"hard link":      {[]entry{good, {name: "app/l", kind: tar.TypeLink, link: "app/compose.yaml"}}, "links are not read"},
		"device":         {[]entry{good, {name: "app/d", kind: tar.TypeChar}}, "want files and directories only"},
		"setuid":         {[]entry{good, {name: "app/s", mode: 0o4755}}, "setuid and setgid"},
		"twice":          {[]entry{good, good}, "stands twice"},
		"bomb":           {[]entry{good, {name: "app/b", body: strings.Repeat("\x00", composearchive.MaxUnpacked+composearchive.MaxEntries*1024)}}, "more than 16777216 bytes unpacked"},
		"large compose":  {[]entry{{name: "app/compose.yaml", body: "#" + strings.Repeat("x", composearchive.MaxComposeFile)}}, "compose.yaml has"},
		"key in compose": {[]entry{{name: "app/compose.yaml", body: "services:\n  web:\n    image: i\n    build: .\n"}}, "line 4: services.web.build: images are not built on nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := CheckArchive("web", pack(t, c.entries...), nil)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			case err != nil && protocol.KindOf(err) != protocol.Invalid:
				t.Errorf("kind %s", protocol.KindOf(err))
			}
		})
	}
	if _, _, err := CheckArchive("web", []byte("hello"), nil); err == nil || !strings.Contains(err.Error(), "component web: archive: not a gzip file") {
		t.Errorf("no gzip: %v", err)
	}
}

// Health says that every image has a check, but for unchecked.
func (*shelf) Health(_ context.Context, ref string) (*protocol.Health, error) {
	if strings.HasPrefix(ref, "unchecked") {
		return nil, nil
	}
	return &protocol.Health{Command: []string{"true"}, Retries: 7}, nil
}
