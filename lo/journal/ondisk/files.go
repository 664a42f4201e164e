package ondisk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/filelock"
)

// Files is the directory of a journal. Each operation that changes the disk goes
// through it, so that a test can cut the power between any two of them.
type Files interface {
	// Open opens name with the flags of os.OpenFile.
	Open(name string, flag int) (File, error)
	// Rename replaces to by from.
	Rename(from, to string) error
	// Remove removes name.
	Remove(name string) error
	// SyncDir makes created, renamed and removed names of the directory durable.
	SyncDir() error
	// List returns the names in the directory.
	List() ([]string, error)
	// Lock locks the directory for this process, or fails at once.
	Lock() (io.Closer, error)
}

// File is an open file of Files.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Truncate sets the length, in bytes.
	Truncate(size int64) error
	// Size is the length, in bytes.
	Size() (int64, error)
	// Sync returns when what was written, and the length, are on disk.
	Sync() error
}

// Dir is Files on a real directory.
type Dir string

// diskFile is an open file of a Dir.
type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return Datasync(f.File) }

func (f diskFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Open opens a file of the directory with mode 0600.
func (d Dir) Open(name string, flag int) (File, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

// Rename replaces to by from.
func (d Dir) Rename(from, to string) error {
	return os.Rename(filepath.Join(string(d), from), filepath.Join(string(d), to))
}

// Remove removes a file.
func (d Dir) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

// SyncDir makes created, renamed and removed names durable.
func (d Dir) SyncDir() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// List returns the names in the directory.
func (d Dir) List() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Lock uses flock and not a file of a process id: the kernel gives the lock back
// however the process ends.
func (d Dir) Lock() (io.Closer, error) {
	lock, err := filelock.Acquire(filepath.Join(string(d), LockName))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("journal %s is open in another process, stop that first: %w", string(d), err)
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// sector is the unit in which a disk loses what it held, in bytes.
const sector = 4 << 10

// ReadAround fills buf from offset off of f as far as the disk can be read, sector by
// sector, and leaves zeros for the rest: no record of zeros has a right checksum. It
// returns the length of buf.
func ReadAround(f File, buf []byte, off int64) int {
	for at := 0; at < len(buf); at += sector {
		piece := buf[at:min(at+sector, len(buf))]
		if _, err := f.ReadAt(piece, off+int64(at)); err != nil && !errors.Is(err, io.EOF) {
			clear(piece)
		}
	}
	return len(buf)
}
