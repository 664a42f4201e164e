// Package peers bounds how many connections there are, how many one network address has, and how
// many it begins per second.
package peers

import (
	"math"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// answered is how many connections of an address that are too many may wait for the reason
// at once. Further ones are closed without one, so that refusing costs a bounded memory.
const answered = 64

// Limits are for one address, but for All. Zero: none.
type Limits struct {
	All       int     // connections of all addresses at once
	Open      int     // connections at once
	PerSecond float64 // connections begun per second; the burst is as many, and one at least
}

// A Verdict says what becomes of a new connection.
type Verdict int

// The verdicts. For each of them but Closed and Full there is a Leave when the connection has ended.
const (
	Welcome Verdict = iota
	TooMany         // refuse its CONNECT: the address has as many as it may
	TooFast         // refuse its CONNECT: the address begins more than it may
	Closed          // close it at once: so many of the address are being refused already
	Full            // close it at once: there are as many as there may be in all
)

// Refusal is why a connection is to be closed at once, by the name under which it is counted; "" if it is not.
func (v Verdict) Refusal() string {
	switch v {
	case Closed:
		return "address_limit"
	case Full:
		return "connections"
	}
	return ""
}

// Key is the key of the limit for which such a connection is closed.
func (v Verdict) Key() string {
	if v == Closed {
		return "limits.connectionsPerAddress"
	}
	return "limits.connections"
}

// Address is the network address of a peer without its port; "" where it has none, as on a Unix
// socket.
func Address(peer net.Addr) string {
	host, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return ""
	}
	return host
}

// A Table counts the connections of each address. Its methods may be called concurrently.
type Table struct {
	limits Limits

	mu        sync.Mutex // protects what follows
	all       int        // connections that have entered and not left
	addresses map[string]*peer
	sweepAt   int // from so many addresses on those without need are forgotten
}

// A peer is an address.
type peer struct {
	open, refused int
	begun         *rate.Limiter // nil: any number
}

// idle reports whether the address may be forgotten: its record says what that of a new one would.
func (p *peer) idle(now time.Time) bool {
	return p.open == 0 && p.refused == 0 && (p.begun == nil || p.begun.TokensAt(now) >= float64(p.begun.Burst()))
}

// minSweep is from how many addresses on a sweep is worth it.
const minSweep = 64

// New returns a Table without connections.
func New(l Limits) *Table {
	return &Table{limits: l, addresses: make(map[string]*peer), sweepAt: minSweep}
}

// Enter counts a connection of an address, which has begun at a time. The address "" has no limits of its own.
func (t *Table) Enter(address string, now time.Time) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limits.All > 0 && t.all >= t.limits.All {
		return Full
	}
	verdict := t.enter(address, now)
	if verdict != Closed {
		t.all++
	}
	return verdict
}

// enter counts a connection for its address. t.mu is held.
func (t *Table) enter(address string, now time.Time) Verdict {
	if address == "" || t.limits.Open == 0 && t.limits.PerSecond == 0 {
		return Welcome
	}
	p := t.peer(address, now)
	verdict := Welcome
	switch {
	case t.limits.Open > 0 && p.open >= t.limits.Open:
		verdict = TooMany
	case p.begun != nil && !p.begun.AllowN(now, 1):
		verdict = TooFast
	}
	switch {
	case verdict == Welcome:
		p.open++
	case p.refused < answered:
		p.refused++
	default:
		return Closed
	}
	return verdict
}

// peer returns the record of an address. t.mu is held.
func (t *Table) peer(address string, now time.Time) *peer {
	if p := t.addresses[address]; p != nil {
		return p
	}
	if len(t.addresses) >= t.sweepAt {
		for a, p := range t.addresses {
			if p.idle(now) {
				delete(t.addresses, a)
			}
		}
		t.sweepAt = max(minSweep, 2*len(t.addresses)) // so a sweep looks at two for each that came
	}
	p := &peer{}
	if t.limits.PerSecond > 0 {
		p.begun = rate.NewLimiter(rate.Limit(t.limits.PerSecond), int(math.Ceil(t.limits.PerSecond)))
	}
	t.addresses[address] = p
	return p
}

// Replace makes a connection with the verdict TooMany a Welcome one: it takes the place of
// another one of its address, which is about to leave.
func (t *Table) Replace(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.addresses[address]; p != nil {
		p.refused--
		p.open++
	}
}

// Leave ends a connection for which Enter gave a verdict other than Closed and Full.
func (t *Table) Leave(address string, v Verdict, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	p := t.addresses[address]
	if p == nil {
		return // no limits
	}
	if v == Welcome {
		p.open--
	} else {
		p.refused--
	}
	if p.idle(now) {
		delete(t.addresses, address)
	}
}
