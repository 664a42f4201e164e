package client

import (
	"crypto/tls"
	"net"
	"syscall"
	"unsafe"
)

// quickAck makes the system confirm at once what it has received. A broker that
// leaves Nagle's algorithm on, such as Mosquitto by default, holds its last answers
// back until then, and the system would take 40 ms.
func quickAck(conn net.Conn) {
	control(conn, func(fd int) {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) // without it the answers come late
	})
}

// unconfirmed returns how many bytes the other end's system has not confirmed yet.
// That is not known of a connection that is not TCP's.
func unconfirmed(conn net.Conn) (bytes int64, known bool) {
	control(conn, func(fd int) {
		var n int32
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n))) //nolint:gosec // how ioctl takes its argument
		bytes, known = int64(n), errno == 0
	})
	return bytes, known
}

// control calls do with the TCP socket under a connection, if there is one.
func control(conn net.Conn, do func(fd int)) {
	if w, ok := conn.(*webSocket); ok {
		conn = w.NetConn()
	}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return // a closed connection
	}
	_ = raw.Control(func(fd uintptr) { do(int(fd)) }) // fails on a closed connection
}
