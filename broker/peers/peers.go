// Package peers bounds how many connections there are, how many one network address has, and how
// many it begins per second; and it keeps some for machines of Colony.
package peers

import (
	"container/list"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/colonyfleet/colony/internal/netaddr"
)

// answered is how many connections of an address above its limit may be open at once, to identify themselves or to
// get the reason. A further one closes one of them, so that refusing costs a bounded memory.
const answered = 64

// Limits are for one address, but for All and Machines. Zero: none.
type Limits struct {
	All int // connections of all addresses at once
	// Machines of All are reserved for machines of Colony, and a quarter as many for connections that have not
	// identified themselves yet, see Table.
	Machines  int
	Open      int     // connections at once
	PerSecond float64 // connections begun per second; the burst is as many, and one at least
}

// A Verdict says what becomes of a new connection.
type Verdict int

// The verdicts.
const (
	Welcome Verdict = iota // the connection may stay
	TooMany                // refuse its CONNECT: the address has as many as it may
	TooFast                // refuse its CONNECT: the address begins more than it may
	Trial                  // refuse its CONNECT unless it is that of a machine: the others have as many as they may
	Closed                 // it has given way to a newer one of its address, which has as many as may wait for their refusal
	Full                   // close it at once, or it has given way: there are as many as there may be in all
)

// A Stage says how far a connection is that has not identified itself yet.
type Stage int

// The stages, in their order.
const (
	Silent  Stage = iota // nothing has arrived that says anything
	Spoke                // all of its ClientHello has arrived; without TLS no connection is there
	Secured              // its TLS handshake is done
	stages
)

// Refusal is why a connection is closed without an answer, by the name under which it is counted; "" if it is not.
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

// Address is what counts as one address of a peer: its IPv4 address, or the /64 of its IPv6 address (netaddr.Network), without a
// port; "" where it has none, as on a Unix socket.
func Address(peer net.Addr) string {
	if _, _, err := net.SplitHostPort(peer.String()); err != nil {
		return ""
	}
	return netaddr.Network(peer.String())
}

// A Table counts the connections, and those of each address. Its methods may be called concurrently.
//
// Limits.Machines places are reserved for machines; other connections have the rest. A quarter as many places are for
// connections on trial, which come when the rest is in use: each may identify itself, and stays if it is a machine. So
// clients and half-open connections, however many, keep no machine out.
//
// Before a connection goes on trial, one that has not identified itself gives way to it: the oldest of the network
// (netaddr.Network) with most of them, if that network has more than that of the new one. So silent connections keep
// clients of other networks out only if they come from as many networks as there are connections.
//
// When all places on trial are in use, a connection on trial is closed: of the stage at which most are, the oldest one of
// the network with most of them, the new one included.
//
// The same holds within an address that has as many connections as it may: each further one may identify itself, and
// stays if it has proved that it is a machine. Where as many of them wait as may, the oldest at the Stage at which most
// are is closed. So silent connections do not keep out a machine at their own address whose ClientHello arrives before as
// many new ones have come as may wait.
type Table struct {
	limits Limits

	mu        sync.Mutex // protects what follows, and of each Entry all but its address
	all       int        // connections that have entered and not left
	machines  int        // of these
	trial     []*Entry   // of these, in the order of their beginnings
	strangers *strangers // of those that are not on trial, and no machines
	addresses map[string]*peer
	sweepAt   int // from so many addresses on those without need are forgotten
}

// An Entry is what a connection has in a Table, from Enter to Leave. Its methods may be called concurrently.
type Entry struct {
	table   *Table
	address string
	network string // of the address
	verdict Verdict
	machine bool
	counted bool      // in the record of its address
	end     io.Closer // closes the connection
	trial   bool
	left    bool
	stage   Stage

	stranger *list.Element // among the strangers; nil: it is none
}

// A peer is an address.
type peer struct {
	open    int
	refused []*Entry      // those that are too many, in the order of their beginnings
	begun   *rate.Limiter // nil: any number
}

// idle reports whether the address may be forgotten: its record says what that of a new one would.
func (p *peer) idle(now time.Time) bool {
	return p.open == 0 && len(p.refused) == 0 && (p.begun == nil || p.begun.TokensAt(now) >= float64(p.begun.Burst()))
}

// minSweep is from how many addresses on a sweep is worth it.
const minSweep = 64

// New returns a Table without connections.
func New(l Limits) *Table {
	return &Table{limits: l, strangers: newStrangers(), addresses: make(map[string]*peer), sweepAt: minSweep}
}

// onTrial is how many connections may be on trial at once.
func (t *Table) onTrial() int { return (t.limits.Machines + 3) / 4 }

// Enter counts a connection of an address, which has begun at a time. The address "" has no limits of its own. end
// closes the connection, at once and from any goroutine: it is called where the connection gives way to another one,
// whose Enter returns its entry in gaveWay, with the verdict that says why. An Entry with the verdict Full counts for nothing.
func (t *Table) Enter(address string, now time.Time, end io.Closer) (entry *Entry, gaveWay []*Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &Entry{table: t, address: address, network: netaddr.Network(address), end: end}
	if t.full() && len(t.trial) == 0 && t.strangers.guilty(p.network) == nil {
		p.verdict, p.left = Full, true
		return p, nil
	}
	if guilty := t.enter(p, now); guilty != nil {
		guilty.giveWay(Closed, now)
		gaveWay = append(gaveWay, guilty)
	}
	if t.full() && len(t.trial) == 0 || t.crowded() && p.verdict == Welcome {
		if guilty := t.strangers.guilty(p.network); guilty != nil {
			guilty.giveWay(Full, now)
			gaveWay = append(gaveWay, guilty)
		}
	}
	trial := t.crowded()
	if trial && (t.full() || len(t.trial) >= t.onTrial()) {
		guilty := t.guilty(p.network)
		guilty.giveWay(Full, now)
		gaveWay = append(gaveWay, guilty)
	}
	t.all++
	if trial {
		if p.trial = true; p.verdict == Welcome {
			p.verdict = Trial
		}
		t.trial = append(t.trial, p)
	} else {
		t.strangers.add(p)
	}
	return p, gaveWay
}

// crowded reports whether all but machines have as many connections as they may. t.mu is held.
func (t *Table) crowded() bool {
	others := t.all - t.machines - len(t.trial)
	return t.limits.Machines > 0 && (t.full() || others >= t.limits.All-t.limits.Machines-t.onTrial())
}

// full reports whether there are as many connections as there may be. t.mu is held.
func (t *Table) full() bool { return t.limits.All > 0 && t.all >= t.limits.All }

// giveWay closes a connection for another one. The lock of the table is held.
func (p *Entry) giveWay(why Verdict, now time.Time) {
	_ = p.end.Close() // it was never accepted
	p.leave(now)
	p.verdict = why
}

// guilty returns the connection on trial that gives way to a new one. It looks at the stage at which most are, and there at the network
// with the most of them, the new one included: of these the one that began first gives way. t.mu is held.
func (t *Table) guilty(network string) *Entry {
	stage := oldestOfMost(t.trial).stage
	of := map[string]int{}
	if stage == Silent {
		of[network]++
	}
	var those []*Entry
	for _, p := range t.trial {
		if p.stage == stage {
			those = append(those, p)
			of[p.network]++
		}
	}
	most := those[0]
	for _, p := range those {
		if of[p.network] > of[most.network] {
			most = p
		}
	}
	return most
}

// enter counts a connection for its address, and sets its verdict. It returns the connection of the address that is to give
// way to it, or nil. t.mu is held.
func (t *Table) enter(p *Entry, now time.Time) (guilty *Entry) {
	if p.address == "" || t.limits.Open == 0 && t.limits.PerSecond == 0 {
		return nil
	}
	of := t.peer(p.address, now)
	switch {
	case t.limits.Open > 0 && of.open >= t.limits.Open:
		p.verdict = TooMany
	case of.begun != nil && !of.begun.AllowN(now, 1):
		p.verdict = TooFast
	}
	p.counted = true
	if p.verdict == Welcome {
		of.open++
		return nil
	}
	if of.refused = append(of.refused, p); len(of.refused) > answered {
		return oldestOfMost(of.refused)
	}
	return nil
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

// Address is that of Enter.
func (p *Entry) Address() string { return p.address }

// Verdict returns the verdict on the connection.
func (p *Entry) Verdict() Verdict {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	return p.verdict
}

// Progress says that the connection has come to a stage, if it was not further before.
func (p *Entry) Progress(to Stage) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.stage = max(p.stage, to)
}

// Known marks the client of the connection as identified and admitted: the connection gives way to no other one any more,
// unless it is on trial or too many. The verdict of a connection that has given way says that.
func (p *Entry) Known() {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.table.strangers.remove(p)
}

// Replace makes a connection with the verdict TooMany or Trial a Welcome one: it replaces another one of
// its address, which is about to leave. It returns false where the connection has given way meanwhile.
func (p *Entry) Replace() bool {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.left {
		return false
	}
	p.endTrial()
	p.welcome()
	return true
}

// Machine says that the connection is that of a machine of Colony. One that has proved it counts for no address.
func (p *Entry) Machine(proved bool, now time.Time) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.left || p.machine { // it gave way meanwhile
		return
	}
	p.endTrial()
	t.strangers.remove(p)
	p.machine = true
	t.machines++
	if proved {
		p.forget(now)
	}
	if proved || p.verdict == Trial {
		p.verdict = Welcome
	}
}

// Leave ends the connection. A second Leave does nothing.
func (p *Entry) Leave(now time.Time) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.leave(now)
}

// leave is Leave. The lock of the table is held.
func (p *Entry) leave(now time.Time) {
	if p.left {
		return
	}
	p.left = true
	p.table.all--
	if p.machine {
		p.table.machines--
	}
	p.endTrial()
	p.table.strangers.remove(p)
	p.forget(now)
}

// endTrial has the connection count among the others. The lock of the table is held.
func (p *Entry) endTrial() {
	if !p.trial {
		return
	}
	p.trial = false
	p.table.trial = slices.DeleteFunc(p.table.trial, func(one *Entry) bool { return one == p })
}

// welcome gives the connection the verdict Welcome. The lock of the table is held.
func (p *Entry) welcome() {
	if p.counted && p.verdict != Welcome && p.verdict != Trial {
		one := p.table.addresses[p.address]
		one.answer(p)
		one.open++
	}
	p.verdict = Welcome
}

// forget takes the connection out of the record of its address. The lock of the table is held.
func (p *Entry) forget(now time.Time) {
	if !p.counted {
		return
	}
	p.counted = false
	one := p.table.addresses[p.address]
	if p.verdict == Welcome || p.verdict == Trial {
		one.open--
	} else {
		one.answer(p)
	}
	if one.idle(now) {
		delete(p.table.addresses, p.address)
	}
}

// oldestOfMost returns the one of connections, which are in the order of their beginnings, that gives way where too many wait: the oldest
// at the stage with the most connections. It is never the newest: otherwise clients that stop at a later stage, which a new connection
// cannot have reached yet, would keep all others out.
func oldestOfMost(list []*Entry) *Entry {
	var at [stages]int
	for _, e := range list {
		at[e.stage]++
	}
	most := Stage(slices.Index(at[:], slices.Max(at[:])))
	return list[slices.IndexFunc(list, func(e *Entry) bool { return e.stage == most })]
}

// answer forgets a connection that is too many: it is so no more.
func (p *peer) answer(one *Entry) {
	p.refused = slices.DeleteFunc(p.refused, func(e *Entry) bool { return e == one })
}
