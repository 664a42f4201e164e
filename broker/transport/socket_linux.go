package transport

import (
	"syscall"
	"unsafe"
)

// readsNow says that readNow reads.
const readsNow = true

// readNow reads what is there. The descriptor does not block: with syscall.EAGAIN nothing is there; no bytes without an error
// are the end.
//
// readNow and writeNow do not announce their system calls to the scheduler, as they never wait. Otherwise each call after a
// moment without work would wake the monitoring thread of the runtime. That thread then looks around 50 times, 20 µs apart,
// which costs more than all other work for the packet of an idle client.
func readNow(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p) }

// writeNow writes what is taken at once.
func writeNow(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p) }

func call(trap, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))) //nolint:gosec // how the system takes a buffer
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return -1, errno
		}
	}
}

// pollRDHUP is POLLRDHUP, which package syscall has under another name.
const pollRDHUP = syscall.EPOLLRDHUP

// hungUp reports whether the peer of a socket sends nothing more. It does not wait.
func hungUp(fd uintptr) bool {
	polled := struct {
		fd            int32
		events, found int16
	}{fd: int32(fd), events: pollRDHUP} //nolint:gosec // a descriptor is an int
	var now syscall.Timespec
	n, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&polled)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0) //nolint:gosec // how the system takes them
	return errno == 0 && n > 0
}
