package transport

import (
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

// A State says how far behind a client is.
type State int

// The states of a client.
const (
	// KeepsUp: less than half of what may wait for the client does wait, or it has disconnected.
	KeepsUp State = iota
	// Lags: more than that waits, and publishers should wait for it too.
	Lags
	// GivenUp: they have waited in vain, and it has lagged since.
	GivenUp
)

// A lag is how far behind a client is, and which goroutines wait for it. Conn.mu protects it.
type lag struct {
	progress uint64                     // grows when the client takes something
	givenUp  bool                       // publishers waited in vain, and the client is behind since
	watchers map[notify.Signal]struct{} // are notified when there is room; nil if no goroutine waits
}

// stall is how long publishers wait for clients that take nothing.
const stall = time.Second

// State says how far behind the client is.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.hasRoom():
		return KeepsUp
	case c.givenUp:
		return GivenUp
	}
	return Lags
}

// Room waits until the client keeps up, or has disconnected.
func (c *Conn) Room() {
	room := notify.New()
	for !c.watch(room) {
		select {
		case <-room.C():
		case <-c.ended:
		}
	}
}

// AwaitAny waits until one of the clients keeps up, or has disconnected, and reports whether one
// does: false after the time most, when none of them has taken anything for a second, and
// of no clients.
// If most was patience, or they have taken nothing, all of them are given up.
func AwaitAny(clients []*Conn, most, patience time.Duration) bool {
	if len(clients) == 0 {
		return false
	}
	room := notify.New()
	defer func() {
		for _, c := range clients {
			c.unwatch(room)
		}
	}()
	for _, c := range clients {
		if c.watch(room) {
			return true
		}
	}
	look, late := time.NewTicker(stall), time.NewTimer(most)
	defer look.Stop()
	defer late.Stop()
	for seen := progress(clients); ; {
		select {
		case <-room.C():
			return true
		case <-late.C:
			if most >= patience {
				giveUp(clients)
			}
			return false
		case <-look.C:
			now := progress(clients)
			if now == seen {
				giveUp(clients)
				return false
			}
			seen = now
		}
	}
}

// progress grows when one of the clients takes something.
func progress(clients []*Conn) (sum uint64) {
	for _, c := range clients {
		c.mu.Lock()
		sum += c.progress
		c.mu.Unlock()
	}
	return sum
}

func giveUp(clients []*Conn) {
	for _, c := range clients {
		c.mu.Lock()
		c.givenUp = !c.hasRoom()
		c.mu.Unlock()
	}
}

// watch notifies room when the client keeps up; true if it does already.
func (c *Conn) watch(room notify.Signal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hasRoom() {
		return true
	}
	if c.watchers == nil {
		c.watchers = make(map[notify.Signal]struct{})
	}
	c.watchers[room] = struct{}{}
	return false
}

func (c *Conn) unwatch(room notify.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers, room)
}

// hasRoom reports whether the client keeps up. c.mu is held.
func (c *Conn) hasRoom() bool {
	return c.closed || c.broken || c.left || c.writing+c.out.Size() <= c.o.WriteBuffer/2
}

// moved notes that the client has read something, and, if there is room, wakes the goroutines that
// wait for it. c.mu is held.
func (c *Conn) moved() {
	c.progress++
	c.waiter.Notify()
	if !c.hasRoom() {
		return
	}
	c.givenUp = false
	for room := range c.watchers {
		room.Notify()
	}
	c.watchers = nil
}
