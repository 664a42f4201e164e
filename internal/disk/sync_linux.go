package disk

import (
	"os"
	"syscall"
)

// datasync makes what was written to f durable, and its length. It leaves out the time
// stamps, which saves a write of the inode.
func datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return err
		}
	}
}

// free is what an unprivileged process can write below dir, in bytes.
func free(dir string) (int64, error) {
	var st syscall.Statfs_t
	for {
		err := syscall.Statfs(dir, &st)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return int64(st.Bavail) * st.Bsize, nil
	}
}
