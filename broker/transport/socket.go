package transport

import (
	"net"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
)

// How TCP finds a peer that has vanished: after four minutes, about.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 30 * time.Second, Count: 4}

// KeepAlive makes TCP find out when the peer has vanished, for a client that MQTT does not
// make say anything. A transport without TCP, a Unix socket, needs none.
func (c *Conn) KeepAlive() {
	if tcp, ok := layers.Socket(c.raw).(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		_ = tcp.SetKeepAliveConfig(tcpKeepAlive) // a transport that is dead shows at the read
	}
}

// reset closes the socket under raw, and discards what the system holds for the peer. Otherwise the system would go
// on offering it, some MB for each connection, for as long as the peer takes a byte now and then, and no limit counts
// that. TLS is not closed first: its close waits 5 s for a peer that does not read.
func reset(raw net.Conn) {
	s := layers.Socket(raw)
	if tcp, ok := s.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // fails where it is closed
	}
	_ = s.Close() // nothing more is expected of it
}

// resetLocked is breakLocked for a peer that has not taken what it should. c.mu is held.
func (c *Conn) resetLocked() {
	reset(c.raw)
	c.breakLocked()
}
