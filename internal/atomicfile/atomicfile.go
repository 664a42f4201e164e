// Package atomicfile replaces files so that a crash or a power cut at any moment
// leaves either the whole old content or the whole new content on disk.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/colonyfleet/colony/internal/disk"
)

// prefix marks files that were being written; a crash may leave some behind.
const prefix = ".tmp-"

// written tells the temporary files of this process apart.
var written atomic.Uint64

// Write makes data the content of path, with exactly the permissions perm: the
// umask does not apply. When it returns nil the content and the name are durable. On
// an error path is untouched. Concurrent writers of one path are safe; one of
// them wins.
func Write(d disk.FS, path string, data []byte, perm os.FileMode) error {
	dir, base := filepath.Split(filepath.Clean(path))
	if dir == "" {
		dir = "."
	}
	temp, f, err := create(d, filepath.Join(dir, prefix+base+"-"))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, cause(err))
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = d.Chmod(temp, perm)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, cause(err)), f.Close(), d.Remove(temp))
	}
	if err := f.Close(); err != nil {
		return errors.Join(fmt.Errorf("close %s: %w", path, cause(err)), d.Remove(temp))
	}
	if err := d.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", path, cause(err)), d.Remove(temp))
	}
	return d.SyncDir(dir)
}

// cause is an error without the name of the temporary file, which is another one each time: callers that report each error once compare the
// texts.
func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// create makes a new file whose path begins with start.
func create(d disk.FS, start string) (string, disk.File, error) {
	for {
		temp := start + strconv.FormatUint(written.Add(1), 36)
		f, err := d.Open(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) { // as one that a crash has left
			return temp, f, err
		}
	}
}

// Remove removes path durably. A file that does not exist is removed already.
func Remove(d disk.FS, path string) error {
	if err := d.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return d.SyncDir(filepath.Dir(path))
}

// Clean removes what crashed writers left behind in dir. No program may be writing there meanwhile.
func Clean(d disk.FS, dir string) error {
	entries, err := d.List(dir)
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular() {
			errs = append(errs, d.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
