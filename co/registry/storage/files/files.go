// Package files keeps the content of a registry in plain files of one directory. Several
// programs may share it, of several machines where the file system has the locks of
// flock(2), such as NFS 4.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/statefile"
)

// A Dir is a directory that holds a registry. The lock of its RW is of the file lock in it.
type Dir struct {
	*filelock.RW
	dir     string
	writers storage.Writers
}

var _ storage.Storage = (*Dir)(nil)

// Open opens a directory, which is created where it is missing. What is no folder, and stands in the place of one of its folders, is
// set aside.
func Open(dir string) (*Dir, error) {
	d := &Dir{dir: dir}
	for _, folder := range []string{"blobs/sha256", uploads, "repositories"} {
		if err := d.makeFolder(folder); err != nil {
			return nil, err
		}
	}
	var err error
	d.RW, err = filelock.OpenRW(d.Path("lock"))
	return d, err
}

func (d *Dir) makeFolder(folder string) error {
	for part := folder; part != "."; part = path.Dir(part) {
		if st, err := os.Lstat(d.Path(part)); err == nil && !st.IsDir() && st.Mode()&os.ModeSymlink == 0 {
			if _, err := statefile.SetAside(disk.OS, d.Path(part)); err != nil {
				return fmt.Errorf("what stands in the place of the folder %s of the registry is no folder: %w", part, err)
			}
		}
	}
	return os.MkdirAll(d.Path(folder), 0o750)
}

// Path is where a file of the registry lies.
func (d *Dir) Path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

// Held implements storage.Locks: the kernel keeps the lock for as long as this program lives.
func (d *Dir) Held() error { return nil }

// Alone implements storage.Locks.
func (d *Dir) Alone() (io.Closer, error) {
	l, err := filelock.Acquire(d.Path("cleaning"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, storage.ErrHeld
	}
	return l, err
}

// Read implements storage.Files.
func (d *Dir) Read(path string) ([]byte, error) { return disk.ReadFile(disk.OS, d.Path(path)) }

// Open implements storage.Files.
func (d *Dir) Open(_ context.Context, path string) (io.ReadSeekCloser, error) {
	f, err := disk.OpenFile(d.Path(path), os.O_RDONLY, 0)
	if err != nil {
		return nil, err // and no nil file in an interface
	}
	return f, nil
}

// Write implements storage.Files.
func (d *Dir) Write(path string, content []byte) error {
	p := d.Path(path)
	if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	return atomicfile.Write(disk.OS, p, content, 0o640)
}

// Remove implements storage.Files.
func (d *Dir) Remove(path string) error {
	p := d.Path(path)
	if err := os.Remove(p); err != nil {
		return err
	}
	return disk.OS.SyncDir(filepath.Dir(p))
}

// Stat implements storage.Files.
func (d *Dir) Stat(path string) (storage.Info, error) {
	info, err := os.Stat(d.Path(path))
	if err != nil {
		return storage.Info{}, err
	}
	return describe(info), nil
}

// Touch implements storage.Files. It also protects a file from a garbage collection of another program. It is the last step before the
// lock is released: a collection that began before then finds the file young, and a later one finds what names it.
func (d *Dir) Touch(path string) error {
	now := time.Now()
	return os.Chtimes(d.Path(path), now, now)
}

// List implements storage.Files. What is being written is left out.
func (d *Dir) List(folder string) ([]storage.Info, error) {
	entries, err := os.ReadDir(d.Path(folder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	list := make([]storage.Info, 0, len(entries))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, describe(info))
	}
	return list, nil
}

func describe(info os.FileInfo) storage.Info {
	return storage.Info{Name: info.Name(), Folder: info.IsDir(), Size: info.Size(), Used: info.ModTime()}
}
