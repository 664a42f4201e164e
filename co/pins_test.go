package co

import (
	"context"
	"testing"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

// tags is a registry that serves one archive under each tag.
type tags struct {
	imageRegistry
	archives map[string]string
}

func (t tags) Archive(_ context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	b := []byte(t.archives[repository+":"+revision])
	return b, protocol.DigestOf(b), nil
}

// TestArchiveOfARevisionIsImmutable pushes another archive under a tag that was read,
// and under one that was not.
func TestArchiveOfARevisionIsImmutable(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const repository = "oci://registry.colony/hello"
	remote := tags{archives: map[string]string{repository + ":1.0.0": "one", repository + ":1.1.0": "two"}}
	r := pinnedRegistry{remote, fleetdb.New(pool).PinArchive}
	for range 2 {
		if b, _, err := r.Archive(t.Context(), repository, "1.0.0"); err != nil || string(b) != "one" {
			t.Fatalf("the first archive: %q, %v", b, err)
		}
	}
	remote.archives[repository+":1.0.0"], remote.archives[repository+":1.1.0"] = "other", "new"
	if b, _, err := r.Archive(t.Context(), repository, "1.0.0"); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("another archive under the same tag: %q, %v; want a conflict", b, err)
	}
	if b, _, err := r.Archive(t.Context(), repository, "1.1.0"); err != nil || string(b) != "new" {
		t.Errorf("an archive that was never read before: %q, %v", b, err)
	}
	remote.archives[repository+":1.0.0"] = "one"
	if b, _, err := r.Archive(t.Context(), repository, "1.0.0"); err != nil || string(b) != "one" {
		t.Errorf("the first archive, pushed again: %q, %v", b, err)
	}
}
