//go:build unix

package transport

import "syscall"

// readNow reads what is there; not positive if there is nothing. The descriptor does not block.
func readNow(fd uintptr, p []byte) int {
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return n
		}
	}
}
