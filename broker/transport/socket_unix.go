//go:build unix && !linux

package transport

import "syscall"

// readsNow says that readNow reads.
const readsNow = true

// readNow reads what is there. The descriptor does not block: with syscall.EAGAIN nothing is there; no bytes without an error
// are the end.
func readNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// writeNow writes what is taken at once.
func writeNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// hungUp does not know whether the peer of a socket sends nothing more.
func hungUp(uintptr) bool { return false }
