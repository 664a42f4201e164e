// Package disk is the file system as a port: code that keeps state reaches its files through an FS.
// So a simulation can hold them in memory, cut the power between any two operations, fill the disk,
// or let an operation fail.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/filelock"
)

// An FS is a file system. Paths are those of the operating system; errors are those of
// package os, so that errors.Is finds fs.ErrNotExist and the numbers of the system in
// them. Its methods may be called concurrently.
type FS interface {
	Files
	Dirs
}

// Files are the operations of an FS on files.
type Files interface {
	// Open opens a file with the flags of os.OpenFile; perm, less the umask, is that of a
	// file that it creates. It never waits: where something else than a file is at path, the
	// error is ErrIrregular.
	Open(path string, flag int, perm fs.FileMode) (File, error)
	// Rename puts from in the place of to.
	Rename(from, to string) error
	// Link gives a file a second name, which must not exist.
	Link(from, to string) error
	// Remove removes a file, or a directory that is empty.
	Remove(path string) error
	// Chmod sets the permissions of a file, independently of the umask.
	Chmod(path string, perm fs.FileMode) error
	// Chtimes sets when a file was changed last.
	Chtimes(path string, changed time.Time) error
	// Stat says what is at path.
	Stat(path string) (fs.FileInfo, error)
}

// Dirs are the operations of an FS on directories.
type Dirs interface {
	// MkdirAll makes a directory and those above it that are missing.
	MkdirAll(path string, perm fs.FileMode) error
	// List returns what a directory holds, sorted by name.
	List(dir string) ([]fs.DirEntry, error)
	// SyncDir makes created, renamed and removed names of a directory durable.
	SyncDir(dir string) error
	// Free is how much can be written below dir, in bytes.
	Free(dir string) (int64, error)
	// Lock locks the file at path, which is created where it is missing, for this process, or fails
	// within about a second: with filelock.ErrHeld where another process has it.
	Lock(path string) (io.Closer, error)
}

// A File is an open file of an FS. Its methods may be called concurrently, but for Close.
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

// ErrIrregular says that there is something else than a file: a directory, a FIFO, a socket or a device.
var ErrIrregular = errors.New("it is no regular file")

// ErrTooLong says that a file is longer than any that is read whole: its length is not what was stored.
var ErrTooLong = errors.New("it is longer than any file that is read whole")

// mostWhole is up to which length ReadFile reads a file, in bytes.
const mostWhole = 1 << 30

// Unreadable reports whether an operation failed because what was stored at its path is not there any more: the disk cannot
// give it back, or it is no regular file, or has a length that no file has. Trying again does not help.
func Unreadable(err error) bool {
	return errors.Is(err, ErrIrregular) || errors.Is(err, ErrTooLong) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ELOOP)
}

// IsFull reports whether an operation failed because the disk, or the quota of the user on
// it, has no room.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// OS is the file system of the machine.
var OS FS = machine{}

type machine struct{}

// Or returns d, or the file system of the machine where d is nil.
func Or(d FS) FS {
	if d == nil {
		return OS
	}
	return d
}

type machineFile struct{ *os.File }

func (f machineFile) Sync() error { return datasync(f.File) }

func (f machineFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (machine) Open(path string, flag int, perm fs.FileMode) (File, error) {
	f, err := OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return machineFile{f}, nil
}

// OpenFile is OS.Open for what needs more of a file than an FS has.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, perm) // opening a FIFO would otherwise wait for its other end
	if err != nil {
		if st, failed := os.Stat(path); failed == nil && !st.Mode().IsRegular() {
			err = irregular(path)
		}
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = irregular(path)
	}
	if err != nil {
		_ = f.Close() // never used
		return nil, err
	}
	return f, nil
}

func irregular(path string) error { return &fs.PathError{Op: "open", Path: path, Err: ErrIrregular} }

func (machine) Rename(from, to string) error                 { return os.Rename(from, to) }
func (machine) Link(from, to string) error                   { return os.Link(from, to) }
func (machine) Remove(path string) error                     { return os.Remove(path) }
func (machine) MkdirAll(path string, perm fs.FileMode) error { return os.MkdirAll(path, perm) }
func (machine) Chmod(path string, perm fs.FileMode) error    { return os.Chmod(path, perm) }
func (machine) List(dir string) ([]fs.DirEntry, error)       { return os.ReadDir(dir) }

func (machine) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (machine) Chtimes(path string, changed time.Time) error {
	return os.Chtimes(path, changed, changed)
}
func (machine) Free(dir string) (int64, error) { return free(dir) }

func (machine) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync directory %s: %w", dir, err), d.Close())
	}
	return d.Close()
}

// Lock uses flock and not a file of a process id: the kernel gives the lock back however
// the process ends.
func (machine) Lock(path string) (io.Closer, error) {
	lock, err := filelock.Acquire(path)
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// ReadFile returns the content of a file. One of more than 1 GiB is an ErrTooLong.
func ReadFile(d FS, path string) ([]byte, error) {
	f, err := d.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	if size > mostWhole {
		return nil, errors.Join(fmt.Errorf("read %s: %w: %d bytes", path, ErrTooLong, size), f.Close())
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	return b[:n], f.Close()
}

// RemoveAll removes a file, or a directory and all that it holds. What does not exist is
// removed already.
func RemoveAll(d FS, path string) error {
	st, err := d.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		all, err := d.List(path)
		if err != nil {
			return err
		}
		for _, e := range all {
			if err := RemoveAll(d, filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := d.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
