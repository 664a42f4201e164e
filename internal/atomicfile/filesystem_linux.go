package atomicfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SyncFileSystem makes all that was written to the file system of a directory durable, names and
// content. It is for callers that wrote many files at once.
func SyncFileSystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return errors.Join(fmt.Errorf("sync the file system of %s: %w", dir, err), d.Close())
	}
	return d.Close()
}
