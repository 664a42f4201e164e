// Package atomicfile replaces files so that a crash or a power cut at any moment
// leaves either the whole old content or the whole new content on disk.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// prefix marks files that were being written; a crash may leave some behind.
const prefix = ".tmp-"

// Write makes data the content of path, with exactly the permissions perm: the
// umask does not apply. When it returns nil the content and the name are durable. On
// an error path is untouched. Concurrent writers of one path are safe; one of
// them wins.
func Write(path string, data []byte, perm os.FileMode) error {
	dir, base := filepath.Split(filepath.Clean(path))
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, prefix+base+"-*")
	if err != nil {
		return fmt.Errorf("create temporary file: %w", err)
	}
	if err := fill(f, data, perm); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close(), os.Remove(f.Name()))
	}
	if err := f.Close(); err != nil {
		return errors.Join(fmt.Errorf("close %s: %w", path, err), os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(fmt.Errorf("replace file: %w", err), os.Remove(f.Name()))
	}
	return SyncDir(dir)
}

func fill(f *os.File, data []byte, perm os.FileMode) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil {
		return err
	}
	return f.Sync()
}

// Remove removes path durably. A file that does not exist is removed already.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync directory %s: %w", dir, err), d.Close())
	}
	return d.Close()
}

// Clean removes what crashed writers left behind in dir. Nobody may be writing
// there meanwhile.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular() {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
