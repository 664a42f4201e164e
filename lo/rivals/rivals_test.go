package rivals

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

var (
	a = protocol.Gateway{Agent: "a", Address: "10.0.0.5:40000"}
	b = protocol.Gateway{Agent: "b", Address: "10.0.0.6:40000"}
	c = protocol.Gateway{Agent: "c", Address: "10.0.0.7:40000"}
)

// site is Names and the record of one node, as a site that admits gateways has them.
type site struct {
	t      *testing.T
	names  *Names
	now    time.Time
	holder protocol.Gateway // of the record
	online bool
}

// connect has a gateway connect after some time and reports whether it was admitted.
func (s *site) connect(g protocol.Gateway, after time.Duration) (admitted bool) {
	s.t.Helper()
	s.now = s.now.Add(after)
	_, err := s.names.Admit("gw-1", g, s.holder, s.online, s.now)
	if err == nil {
		s.holder, s.online = g, true
		return true
	}
	if protocol.KindOf(err) != protocol.Unavailable {
		s.t.Errorf("refused by %v, want an error of kind unavailable", err)
	}
	return false
}

func newSite(t *testing.T) *site {
	return &site{t: t, names: New(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// TestInstalledAnew has agents follow each other, as after an exchange of the disk: no name
// is contested.
func TestInstalledAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, g := range []protocol.Gateway{a, a, b, b, c, c} {
		if !s.connect(g, time.Second) {
			t.Errorf("gateway %s is refused", g.Agent)
		}
	}
	if got := s.names.Contested("gw-1"); got != nil {
		t.Errorf("contested by %v, want none", got)
	}
}

// TestTwoGateways has two gateways take the name from each other: when the first returns
// it keeps the name, and the second is refused with the address of the first.
func TestTwoGateways(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i, want := range []struct {
		gateway  protocol.Gateway
		admitted bool
	}{{a, true}, {b, true}, {a, true}, {b, false}, {a, true}, {b, false}, {c, false}} {
		if got := s.connect(want.gateway, 3*time.Second); got != want.admitted {
			t.Errorf("connection %d, of gateway %s: admitted %t, want %t", i, want.gateway.Agent, got, want.admitted)
		}
	}
	if diff := cmp.Diff([]protocol.Gateway{a, b, c}, s.names.Contested("gw-1")); diff != "" {
		t.Errorf("gateways (-want +got):\n%s", diff)
	}
	_, err := s.names.Admit("gw-1", b, s.holder, s.online, s.now)
	for _, want := range []string{"gw-1", a.Address, "agent a", "another name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
}

// TestAfterARestart begins without knowledge of the gateway that the record names.
func TestAfterARestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.holder = protocol.Gateway{Agent: "a"}
	for i, want := range []struct {
		gateway  protocol.Gateway
		admitted bool
	}{{b, true}, {a, true}, {b, false}} {
		if got := s.connect(want.gateway, time.Second); got != want.admitted {
			t.Errorf("connection %d, of gateway %s: admitted %t, want %t", i, want.gateway.Agent, got, want.admitted)
		}
	}
}

// TestHolderIsAway has the gateway that holds a contested name go: another one gets it
// after HoldFor, and not before.
func TestHolderIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, g := range []protocol.Gateway{a, b, a} {
		s.connect(g, time.Second)
	}
	s.online = false
	if s.connect(b, HoldFor-time.Second) {
		t.Error("another gateway is admitted while the holder may be restarting")
	}
	s.online = false
	if !s.connect(b, time.Second) {
		t.Error("another gateway is refused though the holder is away for HoldFor")
	}
	if s.connect(a, time.Second) {
		t.Error("the earlier holder takes the contested name back at once")
	}
}

// TestSettled has the second gateway get another name.
func TestSettled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, g := range []protocol.Gateway{a, b, a, b} {
		s.connect(g, time.Second)
	}
	ids, next := s.names.Settled(s.now)
	if want := s.now.Add(QuietAfter); len(ids) != 0 || !next.Equal(want) {
		t.Errorf("settled %v, next %v; want none and %v", ids, next, want)
	}
	ids, next = s.names.Settled(next)
	if diff := cmp.Diff([]protocol.NodeID{"gw-1"}, ids); diff != "" || !next.IsZero() {
		t.Errorf("next %v; settled (-want +got):\n%s", next, diff)
	}
	if got := s.names.Contested("gw-1"); got != nil {
		t.Errorf("contested by %v, want none", got)
	}
	if !s.connect(b, time.Hour) {
		t.Error("an exchange of the gateway long after is refused")
	}
}

// TestManyGateways bounds what is remembered.
func TestManyGateways(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, g := range []protocol.Gateway{a, b, a} {
		s.connect(g, time.Second)
	}
	for _, agent := range []string{"d", "e", "f", "g", "h"} {
		s.connect(protocol.Gateway{Agent: agent}, time.Second)
	}
	if got := s.names.Contested("gw-1"); len(got) != most || got[0] != a {
		t.Errorf("gateways %v, want %d, the first %v", got, most, a)
	}
}

// TestCopiedDisk has a machine boot several times, which is no conflict, and then one that runs from a copy
// of its disk connect: its boot distinguishes it.
func TestCopiedDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boot := func(id, address string) protocol.Gateway {
		return protocol.Gateway{Agent: "a", Boot: id, Address: address}
	}
	first, second := boot("2", a.Address), boot("3", b.Address)
	for _, g := range []protocol.Gateway{boot("1", a.Address), boot("1", a.Address), first, first} {
		if !s.connect(g, time.Second) {
			t.Errorf("the machine is refused after boot %s", g.Boot)
		}
	}
	if got := s.names.Contested("gw-1"); got != nil {
		t.Errorf("contested by %v after boots of one machine, want none", got)
	}
	s.names = New() // the LO was restarted, and knows the record alone
	for i, want := range []struct {
		gateway  protocol.Gateway
		admitted bool
	}{{second, true}, {first, true}, {second, false}} {
		if got := s.connect(want.gateway, time.Second); got != want.admitted {
			t.Errorf("connection %d, of boot %s: admitted %t, want %t", i, want.gateway.Boot, got, want.admitted)
		}
	}
	got := s.names.Contested("gw-1")
	if diff := cmp.Diff([]protocol.Gateway{first, second}, got); diff != "" {
		t.Errorf("gateways (-want +got):\n%s", diff)
	}
	m := protocol.NodeGateways{Gateways: got}
	for _, want := range []string{"agent a at 10.0.0.5:40000 (boot 2)", "(boot 3)", "copies of one disk: decide which one is the original"} {
		if problem := m.Problem(); !strings.Contains(problem, want) {
			t.Errorf("the problem does not say %q: %s", want, problem)
		}
	}
	_, err := s.names.Admit("gw-1", second, s.holder, true, s.now)
	for _, want := range []string{"at 10.0.0.5 (boot 2), at 10.0.0.6 (boot 3)", "decide which one is the original", "remove its state directory", "enrol it anew"} {
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), ":40000", ""), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
}

// A step is a connection of a gateway after some time, while the record says that the holder is connected or not.
type step struct {
	gateway  protocol.Gateway
	after    time.Duration
	online   bool
	admitted bool
}

// TestReboot has the holder of a contested name, or one of several machines with copies of its disk, start anew.
func TestReboot(t *testing.T) {
	t.Parallel()
	boot := func(id, address string) protocol.Gateway {
		return protocol.Gateway{Agent: "a", Boot: id, Address: address}
	}
	a1, a2, a3, copied, copied2 := boot("1", a.Address), boot("2", a.Address), boot("3", a.Address), boot("8", c.Address), boot("9", c.Address)
	contest := []step{{a1, 0, false, true}, {b, time.Second, true, true}, {a1, time.Second, true, true}, {b, time.Second, true, false}}
	copies := []step{{a1, 0, false, true}, {copied, time.Second, true, true}, {a1, time.Second, true, true}, {copied, time.Second, true, false}}
	for name, tt := range map[string]struct {
		before, steps []step
		want          []protocol.Gateway
	}{
		"it stops and starts": {contest, []step{
			{b, time.Second, false, false},
			{a2, time.Minute, false, true},
			{b, time.Second, true, false},
			{b, HoldFor, true, false},
			{a3, time.Minute, false, true},
			{b, time.Second, false, false},
		}, []protocol.Gateway{a3, b}},
		"its power is cut": {contest, []step{
			{a2, 20 * time.Second, true, false},
			{b, 20 * time.Second, true, false},
			{a2, 30 * time.Second, false, true},
			{b, time.Second, true, false},
		}, []protocol.Gateway{a2, b}},
		"a copy tries while the holder goes on": {contest, []step{
			{copied, time.Second, true, false},
			{copied, time.Minute, true, false},
			{copied, time.Second, false, false},
			{a1, time.Second, false, true},
		}, []protocol.Gateway{a1, copied, b}},
		"the holder, of which there is a copy": {copies, []step{
			{a2, time.Minute, false, false},
			{copied, time.Second, false, false},
		}, []protocol.Gateway{a1, a2, copied}},
		"the copy": {copies, []step{
			{copied2, time.Minute, true, false},
			{copied2, time.Minute, true, false},
		}, []protocol.Gateway{a1, copied, copied2}},
		"a boot that ended returns": {[]step{{a1, 0, false, true}, {a2, time.Minute, false, true}}, []step{
			{a1, time.Second, true, true},
			{a2, time.Second, true, false},
			{a2, time.Second, false, false},
		}, []protocol.Gateway{a1, a2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for i, step := range slices.Concat(tt.before, tt.steps) {
				s.online = step.online
				if got := s.connect(step.gateway, step.after); got != step.admitted {
					t.Errorf("step %d, agent %s boot %s: admitted %t, want %t", i, step.gateway.Agent, step.gateway.Boot, got, step.admitted)
				}
			}
			if diff := cmp.Diff(tt.want, s.names.Contested("gw-1")); diff != "" {
				t.Errorf("gateways (-want +got):\n%s", diff)
			}
		})
	}
}
