package pins_test

import (
	"context"
	"os"
	"testing"
	"testing/fstest"

	"github.com/colonyfleet/colony/co/compiler/pins"
	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// tags is a registry that serves one archive under each tag.
type tags struct {
	pins.Source
	archives map[string]string
}

func (t tags) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	b := []byte(t.archives[repository+":"+revision])
	return b, protocol.DigestOf(b), nil
}

// Image answers with one digest for every tag.
func (tags) Image(_ context.Context, ref string) (string, error) {
	return "registry.colony/app@" + string(protocol.DigestOf([]byte(ref))), nil
}

func pinned(t *testing.T, remote tags) pins.Registry {
	t.Helper()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pins.New(remote, fleetdb.New(pool))
}

// TestArchiveOfARevisionIsImmutable pushes another archive under a tag that was accepted,
// and under one that was only read.
func TestArchiveOfARevisionIsImmutable(t *testing.T) {
	t.Parallel()
	const repository = "oci://registry.colony/hello"
	remote := tags{archives: map[string]string{repository + ":1.0.0": "one", repository + ":1.1.0": "two"}}
	r := pinned(t, remote)
	for _, revision := range []string{"1.0.0", "1.1.0"} {
		b, digest, err := r.Archive(t.Context(), repository, revision)
		if err != nil || string(b) != remote.archives[repository+":"+revision] {
			t.Fatalf("the first archive of %s: %q, %v", revision, b, err)
		}
		if revision != "1.0.0" {
			continue
		}
		if err := r.Pin(t.Context(), repository, revision, digest); err != nil {
			t.Fatal(err)
		}
	}
	remote.archives[repository+":1.0.0"], remote.archives[repository+":1.1.0"] = "other", "new"
	if b, _, err := r.Archive(t.Context(), repository, "1.0.0"); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("another archive under the same tag: %q, %v; want a conflict", b, err)
	}
	if err := r.Pin(t.Context(), repository, "1.0.0", protocol.DigestOf([]byte("other"))); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("another pin: %v, want a conflict", err)
	}
	if b, _, err := r.Archive(t.Context(), repository, "1.1.0"); err != nil || string(b) != "new" {
		t.Errorf("an archive that was never accepted: %q, %v", b, err)
	}
	remote.archives[repository+":1.0.0"] = "one"
	if b, _, err := r.Archive(t.Context(), repository, "1.0.0"); err != nil || string(b) != "one" {
		t.Errorf("the first archive, pushed again: %q, %v", b, err)
	}
}

// A deployment that does not compile leaves its archive free to be corrected; one that
// does pins it.
func TestOnlyWhatCompilesIsPinned(t *testing.T) {
	t.Parallel()
	const repository, ref = "oci://registry.colony/hello", "oci://registry.colony/hello:1.0.0"
	archive := func(compose string) string {
		tgz, err := archive.Build("hello", fstest.MapFS{"compose.yaml": {Data: []byte(compose)}})
		if err != nil {
			t.Fatal(err)
		}
		return string(tgz)
	}
	remote := tags{archives: map[string]string{ref: archive("services: {web: {build: .}}")}}
	r := pinned(t, remote)
	d := &v1rc3.Deployment{ID: "9f3c2d1e-0000-4000-8000-000000000001"}
	d.Metadata.Name, d.Metadata.DeviceID, d.Spec.ApplicationID = "hello", "plant/*", "hello"
	d.Spec.Profile = v1rc3.DeploymentProfile{Type: v1rc3.Compose, Components: []v1rc3.Component{
		{Name: "hello", Properties: v1rc3.Properties{Repository: repository, Revision: "1.0.0"}},
	}}
	if _, _, err := r.Compile(t.Context(), d); protocol.KindOf(err) != protocol.Invalid {
		t.Fatalf("a broken archive: %v, want invalid", err)
	}
	remote.archives[ref] = archive("services: {web: {image: web}}")
	if _, _, err := r.Compile(t.Context(), d); err != nil {
		t.Fatalf("the corrected archive: %v", err)
	}
	remote.archives[ref] = archive("services: {web: {image: other}}")
	if _, _, err := r.Compile(t.Context(), d); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("another archive: %v, want a conflict", err)
	}
}

// Health says that every image has a check.
func (tags) Health(context.Context, string) (*protocol.Health, error) {
	return &protocol.Health{Command: []string{"true"}, Retries: 7}, nil
}
