package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/co/registry/storage/files"
	"github.com/colonyfleet/colony/co/registry/storage/storagetest"
	"github.com/colonyfleet/colony/internal/disk"
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

// What is no file blocks no upload.
func TestNoFiles(t *testing.T) {
	t.Parallel()
	d, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := syscall.Mkfifo(d.Path("repositories/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.Path("repositories/directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"repositories/fifo", "repositories/directory"} {
		if _, err := d.Read(name); !errors.Is(err, disk.ErrIrregular) {
			t.Errorf("read %s: %v", name, err)
		}
		if _, err := d.Open(t.Context(), name); !errors.Is(err, disk.ErrIrregular) {
			t.Errorf("open %s: %v", name, err)
		}
	}
}

// Files in the places of folders are set aside, and hold no start up.
func TestFilesForFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"blobs", "uploads", "repositories"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := d.Write("repositories/a/manifest", []byte("x")); err != nil {
		t.Error(err)
	}
	if aside, err := filepath.Glob(filepath.Join(dir, "*.damaged-*")); err != nil || len(aside) != 3 {
		t.Errorf("aside are %q, %v", aside, err)
	}
}
