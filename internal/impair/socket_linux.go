package impair

import (
	"errors"
	"syscall"
)

// receiveBuffer is that of the proxy's sockets, in bytes: what the sender's TCP
// can hand over before it feels the link's queue.
const receiveBuffer = 16 << 10

// control gives the sockets of the clients segments of the size of a real network. With the
// segments of the loopback, of 64 kB, their TCP buffers megabytes, and a narrow link would have no
// effect.
func control(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = errors.Join(
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, MSS),
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer),
		)
	})
	return errors.Join(err, set)
}
