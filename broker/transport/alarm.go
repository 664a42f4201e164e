package transport

import (
	"errors"
	"os"
	"time"
)

// An alarm is when the transport wakes the reader, at the latest. Each packet moves the time until which the next one is
// to be there, and to set a timer anew for each packet is work. So where little time has passed only expected moves: the
// reader looks at it when it is woken. A client that only pings never has its reader woken too early. Conn.mu protects it.
type alarm struct {
	set bool
	at  time.Time // zero: never
}

// Expect sets within what time the next bytes must come; 0 is for ever. A transport that
// is dead shows at the read.
func (c *Conn) Expect(within time.Duration) {
	var until time.Time
	if within > 0 {
		until = time.Now().Add(within)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.draining { // they have set their own
		return
	}
	c.expected = until
	if !c.wakesInTime(until, within/alarmShare) {
		c.wakeAt(until)
	}
}

// alarmShare is for which part of the time that the client has the alarm stays.
const alarmShare = 4

// wakesInTime reports whether the reader is woken before the time until, and less than early before it. c.mu is held.
func (c *Conn) wakesInTime(until time.Time, early time.Duration) bool {
	switch {
	case !c.alarm.set || c.in.raw == nil: // the read of TLS and of a WebSocket would end with an error
		return false
	case until.IsZero() || c.alarm.at.IsZero():
		return until.Equal(c.alarm.at)
	}
	return !until.Before(c.alarm.at) && until.Sub(c.alarm.at) < early
}

// wakeAt makes the transport wake the reader then; never, where at is zero. c.mu is held.
func (c *Conn) wakeAt(at time.Time) {
	c.alarm = alarm{true, at}
	_ = c.raw.SetReadDeadline(at) // a transport that is dead shows at the read
}

// tooEarly reports whether a read has ended with err though the time is not over in which the peer should send
// something. It is to be called again then.
func (c *Conn) tooEarly(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.draining || c.in.raw == nil || !c.alarm.set || !c.expected.IsZero() && !time.Now().Before(c.expected) {
		return false
	}
	c.wakeAt(c.expected)
	return true
}
