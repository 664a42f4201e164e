package files_test

import (
	"testing"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/co/registry/storage/files"
	"github.com/colonyfleet/colony/co/registry/storage/storagetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storagetest.Exercise(t, func(t *testing.T) (a, b storage.Storage) {
		dir := t.TempDir()
		var both [2]storage.Storage
		for i := range both {
			d, err := files.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			both[i] = d
		}
		return both[0], both[1]
	})
}
