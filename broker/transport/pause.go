package transport

import (
	"syscall"
	"time"

	"github.com/colonyfleet/colony/broker/layers"
)

// pauseLook is how often one that waits in Pause looks whether its peer is still there.
const pauseLook = 100 * time.Millisecond

// Pause waits for most, or until wake has something, while nothing is read. If c or the peer has ended, it returns false at once: such a peer sends nothing more, and the
// data that has arrived and is not read would wait in vain. Only Linux shows that a peer has ended.
func (c *Conn) Pause(most time.Duration, wake <-chan struct{}) (here bool) {
	for end := time.Now().Add(most); ; {
		if c.Closed() || c.peerEnded() {
			return false
		}
		left := time.Until(end)
		if left <= 0 {
			return true
		}
		late := time.NewTimer(min(left, pauseLook))
		select {
		case <-late.C:
		case <-wake:
			late.Stop()
			return !c.Closed() && !c.peerEnded()
		case <-c.ended:
		}
		late.Stop()
	}
}

// peerEnded reports whether the peer has ended its direction, or the connection; data may be left to be read before the
// end.
func (c *Conn) peerEnded() (ended bool) {
	s, ok := layers.Socket(c.raw).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true // it is closed
	}
	err = raw.Control(func(fd uintptr) { ended = hungUp(fd) })
	return ended || err != nil
}
