package peers

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"
)

// A row is a table of which a test keeps the entries of each address, the newest last.
type row struct {
	*Table
	t       *testing.T
	now     time.Time
	entries map[string][]*Entry
}

func newRow(t *testing.T, l Limits) *row {
	return &row{Table: New(l), t: t, now: time.Unix(1_000_000, 0), entries: make(map[string][]*Entry)}
}

// ended is a connection, and whether it was closed.
type ended bool

func (e *ended) Close() error {
	*e = true
	return nil
}

// enter has a connection begin, and returns it with its entry.
func (r *row) enter(address string, want Verdict) (*Entry, *ended) {
	r.t.Helper()
	end := new(ended)
	entry, _ := r.Enter(address, r.now, end)
	if got := entry.Verdict(); got != want {
		r.t.Errorf("address %q: verdict %d, want %d", address, got, want)
	}
	r.entries[address] = append(r.entries[address], entry)
	return entry, end
}

func TestOpen(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{Open: 2})
	first, _ := r.enter("a", Welcome)
	second, _ := r.enter("a", Welcome)
	refused, _ := r.enter("a", TooMany)
	r.enter("b", Welcome)
	r.enter("", Welcome)
	refused.Leave(r.now)
	r.enter("a", TooMany) // after a refused one has ended
	first.Leave(r.now)
	first.Leave(r.now) // once
	r.enter("a", Welcome)
	again, _ := r.enter("a", TooMany)
	again.Replace()
	second.Leave(r.now)
	r.enter("a", TooMany)    // after one has replaced another
	for range answered - 2 { // two are refused already
		r.enter("a", TooMany)
	}
	_, newest := r.enter("a", TooMany)
	if v := r.entries["a"][3].Verdict(); v != Closed || v.Refusal() != "address_limit" || *newest {
		t.Errorf("the oldest that waits: verdict %d, want %d; the newest was closed: %v", v, Closed, *newest)
	}
	oldest := r.entries["a"][3]
	if oldest.Replace(); oldest.Verdict() != Closed { // it gave way before
		t.Errorf("one that gave way has verdict %d after it replaced another", oldest.Verdict())
	}
	proved, _ := r.enter("b", Welcome)
	proved.Machine(true, r.now)
	r.enter("b", Welcome) // a machine with a certificate does not count
	named, _ := r.enter("b", TooMany)
	named.Machine(false, r.now)
	if v := named.Verdict(); v != TooMany {
		t.Errorf("a machine by its name alone: verdict %d, want %d", v, TooMany)
	}
	named.Machine(true, r.now) // a second time says nothing
	known, _ := r.enter("b", TooMany)
	known.Machine(true, r.now)
	if v := known.Verdict(); v != Welcome {
		t.Errorf("a machine at a full address: verdict %d, want %d", v, Welcome)
	}
	for _, p := range slices.Concat(r.entries["a"], r.entries["b"], r.entries[""]) {
		p.Leave(r.now)
	}
	if r.all != 0 || r.machines != 0 || len(r.addresses) != 0 {
		t.Errorf("after all have ended: %d connections, %d of machines, %d addresses", r.all, r.machines, len(r.addresses))
	}
}

// Where as many of an address wait as may, those at the stage of most of them give way. So silent connections do not keep out a
// client that has begun its handshake, and clients that stop within a handshake keep out neither one that has done it, nor a new
// one.
func TestStages(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{Open: 1})
	r.enter("a", Welcome)
	for range answered {
		r.enter("a", TooMany)
	}
	spoke, spokeEnd := r.enter("a", TooMany)
	spoke.Progress(Spoke)
	for range 200 {
		r.enter("a", TooMany)
	}
	if *spokeEnd {
		t.Fatal("one that has begun its handshake gave way to those that say nothing")
	}
	spoke.Progress(Secured)
	spoke.Progress(Spoke) // it does not fall back
	for range 200 {
		p, end := r.enter("a", TooMany)
		if *end {
			t.Fatal("a new one gave way at once")
		}
		p.Progress(Spoke)
	}
	if *spokeEnd {
		t.Error("one that has done its handshake gave way to those within theirs")
	}
	closed := 0
	for _, p := range r.entries["a"] {
		if p.Verdict() == Closed {
			closed++
		}
	}
	if want := len(r.entries["a"]) - 1 - answered; closed != want {
		t.Errorf("%d were closed, want %d", closed, want)
	}
}

// Where as many are on trial as may be, it is the same, and the addresses of one network count together.
func TestStagesOnTrial(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{All: 100, Machines: 24}) // six on trial
	for range 70 {
		p, _ := r.enter("192.0.2.7", Welcome)
		p.Known()
	}
	own, ownEnd := r.enter("192.0.2.7", Trial)
	own.Progress(Spoke)
	other, otherEnd := r.enter("192.0.2.9", Trial)
	other.Progress(Secured)
	for range 100 { // at the address of a machine
		r.enter("192.0.2.7", Trial)
	}
	for i := range 100 { // from many networks
		r.enter(fmt.Sprintf("198.51.100.%d", i+1), Trial)
	}
	for i := range 100 { // and from many addresses of one
		r.enter(fmt.Sprintf("2001:db8::%x", i+1), Trial)
	}
	if *ownEnd || *otherEnd {
		t.Errorf("closed: one within its handshake %v, one that has done it elsewhere %v", *ownEnd, *otherEnd)
	}
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{PerSecond: 2.5})
	begun := r.now
	enter := func(at time.Duration, want Verdict) {
		t.Helper()
		r.now = begun.Add(at)
		p, _ := r.enter("a", want)
		p.Leave(r.now) // that it has ended gives no new one
	}
	for range 3 {
		enter(0, Welcome)
	}
	enter(0, TooFast)
	enter(399*time.Millisecond, TooFast)
	enter(400*time.Millisecond, Welcome)
	enter(400*time.Millisecond, TooFast)
	enter(time.Hour, Welcome)
}

// Addresses without a connection are forgotten, and not before what they began counts no more.
func TestAddressesAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{Open: 10, PerSecond: 1})
	for i := range 100_000 {
		r.now = r.now.Add(time.Millisecond)
		for _, want := range []Verdict{Welcome, TooFast} { // it is forgotten too early if it may begin another one
			p, _ := r.Enter(fmt.Sprint(i), r.now, new(ended))
			if v := p.Verdict(); v != want {
				t.Fatalf("address %d: verdict %d, want %d", i, v, want)
			}
			p.Leave(r.now)
		}
	}
	if n := len(r.addresses); n > 2*1000+minSweep { // those of the last second, and as many
		t.Errorf("%d addresses are remembered", n)
	}
}

func TestAll(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{All: 2, PerSecond: 2})
	r.enter("a", Welcome)
	one, _ := r.enter("", Welcome)
	full, _ := r.enter("a", Full)
	if why := full.Verdict().Refusal(); why != "connections" {
		t.Errorf("above the limit: refusal %q", why)
	}
	full.Leave(r.now) // it counts for nothing
	r.enter("a", Full)
	one.Leave(r.now)
	r.enter("a", Welcome) // what finds no room is none that was begun
}

// The connections that are reserved for machines stay free for them, and some more for clients that identify
// themselves.
func TestMachines(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{All: 30, Machines: 8}) // two on trial
	for range 20 {
		p, _ := r.enter("a", Welcome)
		p.Known()
	}
	first, firstEnd := r.enter("a", Trial)
	_, secondEnd := r.enter("b", Trial)
	_, thirdEnd := r.enter("a", Trial) // with this one a has two
	if !*firstEnd || *secondEnd || *thirdEnd {
		t.Fatalf("closed: %v %v %v, want the first alone", *firstEnd, *secondEnd, *thirdEnd)
	}
	first.Machine(true, r.now) // it does not know yet that it gave way
	first.Leave(r.now)
	for i := range 8 {
		m, end := r.enter("m", Trial)
		m.Machine(i%2 == 0, r.now)
		if m.Verdict() != Welcome || *end {
			t.Errorf("machine %d: verdict %d, closed %v", i, m.Verdict(), *end)
		}
	}
	if len(r.trial) > 2 || r.machines != 8 || r.all > 30 {
		t.Errorf("%d on trial, %d machines, %d connections", len(r.trial), r.machines, r.all)
	}
	for range 5 { // a flood of one address costs itself
		r.enter("f", Trial)
	}
	m, mEnd := r.enter("m", Trial)
	r.enter("f", Trial)
	r.enter("f", Trial)
	if *mEnd {
		t.Error("a connection gave way to those of an address that has more")
	}
	m.Machine(true, r.now)
	more, moreEnd := r.enter("m", Trial) // the machines have what is kept, and one of those on trial
	more.Machine(true, r.now)
	if r.all != 30 || r.machines != 10 || *moreEnd {
		t.Errorf("%d connections, %d machines, the last closed: %v", r.all, r.machines, *moreEnd)
	}
	r.enter("m", Full)
	r.entries["a"][0].Leave(r.now)
	r.enter("c", Welcome)
	if r.entries["a"][1].Leave(r.now); r.all != 29 {
		t.Errorf("%d connections after the end of another one", r.all)
	}
}

// Silent connections give way to connections of other networks, the oldest of the network with most of them first; an identified
// client does not give way.
func TestStrangersGiveWay(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{All: 30, Machines: 8}) // 20 for clients
	known, knownEnd := r.enter("k", Welcome)
	known.Known()
	for range 10 {
		r.enter("a", Welcome)
	}
	for range 9 {
		r.enter("b", Welcome)
	}
	closed := func(address string) (n int) {
		for _, p := range r.entries[address] {
			if p.Verdict() == Full {
				n++
			}
		}
		return n
	}
	for range 4 {
		p, _ := r.enter("c", Welcome)
		p.Known()
	}
	if closed("a") != 2 || closed("b") != 2 || r.entries["a"][0].Verdict() != Full || r.entries["a"][9].Verdict() != Welcome {
		t.Errorf("%d of a and %d of b gave way, want 2 and 2, the oldest first", closed("a"), closed("b"))
	}
	r.enter("a", Trial) // it has as many as those that have most
	for i := range 40 {
		r.enter(fmt.Sprint("flood ", i), Welcome)
	}
	if *knownEnd || closed("c") != 0 {
		t.Error("one that had said who it is gave way")
	}
	if r.all > 30 || r.strangers.most != 1 {
		t.Errorf("%d connections, at most %d strangers of a network", r.all, r.strangers.most)
	}
	r.enter("flood 39", Trial) // each network has one
	device, end := r.enter("device", Welcome)
	for i := range 14 {
		r.enter(fmt.Sprint("further ", i), Welcome)
	}
	if *end {
		t.Error("a connection gave way before all that were there before it")
	}
	device.Known()
	for _, list := range r.entries {
		for _, p := range list {
			p.Leave(r.now)
		}
	}
	if len(r.strangers.networks) != 0 || len(r.strangers.levels) != 0 || r.all != 0 {
		t.Errorf("%d networks, %d levels and %d connections are left", len(r.strangers.networks), len(r.strangers.levels), r.all)
	}
}

// Without places for machines a broker that is full has strangers give way, too.
func TestStrangersGiveWayWithoutMachines(t *testing.T) {
	t.Parallel()
	r := newRow(t, Limits{All: 3})
	for range 3 {
		r.enter("a", Welcome)
	}
	r.enter("b", Welcome)
	r.enter("b", Welcome) // a had two, and b one
	r.enter("b", Full)    // no other network has more
	for _, p := range append(r.entries["a"], r.entries["b"]...) {
		p.Known()
	}
	r.enter("c", Full)
	if r.all != 3 {
		t.Errorf("%d connections", r.all)
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64", "[::ffff:192.0.2.1]:5": "192.0.2.1"} {
		addr, err := net.ResolveTCPAddr("tcp", remote)
		if err != nil {
			t.Fatal(err)
		}
		if got := Address(addr); got != want {
			t.Errorf("%s: %q, want %q", remote, got, want)
		}
	}
	if got := Address(&net.UnixAddr{Name: "@", Net: "unix"}); got != "" {
		t.Errorf("of a Unix socket: %q", got)
	}
}
