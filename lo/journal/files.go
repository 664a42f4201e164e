package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/filelock"
)

// files is the port to the disk. Each operation that changes the disk goes
// through it, so that a test can cut the power between any two of them.
type files interface {
	// Open opens name with the flags of os.OpenFile.
	Open(name string, flag int) (file, error)
	// Rename replaces to by from.
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes created, renamed and removed names of the directory durable.
	SyncDir() error
	// List returns the names in the directory.
	List() ([]string, error)
	// Lock takes the directory for this process, or fails at once.
	Lock() (io.Closer, error)
}

// file is an open file of the port.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Size() (int64, error)
	// Sync returns when what was written, and the length, are on disk.
	Sync() error
}

// disk is the port on a real directory.
type disk struct{ dir string }

type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return datasync(f.File) }

func (f diskFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (d disk) Open(name string, flag int) (file, error) {
	f, err := os.OpenFile(filepath.Join(d.dir, name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (d disk) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.dir, from), filepath.Join(d.dir, to))
}

func (d disk) Remove(name string) error { return os.Remove(filepath.Join(d.dir, name)) }

func (d disk) SyncDir() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func (d disk) List() ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Lock uses flock and no file of a process id: the kernel gives the lock back
// however the process ends.
func (d disk) Lock() (io.Closer, error) {
	lock, err := filelock.Acquire(filepath.Join(d.dir, lockName))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("journal %s is open in another process, stop that first: %w", d.dir, err)
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}
