package journal

import (
	"os"
	"syscall"
)

// datasync leaves out the time stamps of the file, which saves a write of its
// inode; a changed length is still made durable.
func datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return err
		}
	}
}
