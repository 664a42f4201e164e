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
// It and writeNow keep the processor from the scheduler as they never wait. Were the scheduler to know of them, each that
// follows a moment without work would wake the thread with which the runtime watches others: it then looks around 50 times,
// 20 µs apart, which costs more than all else that the packet of an idle client does.
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
