//go:build !linux

package client

import "net"

// quickAck is for Linux only.
func quickAck(net.Conn) {}

// unconfirmed is for Linux only.
func unconfirmed(net.Conn) (bytes int64, known bool) { return 0, false }
