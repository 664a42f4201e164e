// Package inplace writes files that others have mounted or open: they see the new
// content, because the file stays the same. Those others may be hostile.
package inplace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Write gives a file this content and keeps its inode; it makes one that is missing. It touches
// nothing if the content is there already, and fails for what is no regular file. It reads no more
// than the size of content, and waits for no other process, even if another process has replaced
// the file. A crash may leave it half written.
func Write(path string, content []byte) error {
	if same(path, content) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("write %s: it is no regular file: remove it", path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Close())
}

// same reports whether a file has this content.
func same(path string, content []byte) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false
	}
	have := make([]byte, len(content))
	_, err = io.ReadFull(f, have)
	return err == nil && bytes.Equal(have, content)
}
