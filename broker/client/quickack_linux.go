package client

import (
	"crypto/tls"
	"net"
	"syscall"
)

// quickAck makes the system confirm at once what it has received. A broker that
// leaves Nagle's algorithm on, such as Mosquitto by default, holds its last answers
// back until then, and the system would take 40 ms.
func quickAck(conn net.Conn) {
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
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) // without it the answers come late
	})
}
