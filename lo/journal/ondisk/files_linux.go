package ondisk

import (
	"os"
	"syscall"
)

// Datasync makes what was written to f durable, and its length. It leaves out the time
// stamps, which saves a write of the inode.
func Datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return err
		}
	}
}
