package rivals

import (
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
	agent  string // of the record
	online bool
}

// connect has a gateway connect after some time and reports whether it was admitted.
func (s *site) connect(g protocol.Gateway, after time.Duration) (admitted bool) {
	s.t.Helper()
	s.now = s.now.Add(after)
	_, err := s.names.Admit("gw-1", g, s.agent, s.online, s.now)
	if err == nil {
		s.agent, s.online = g.Agent, true
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
	_, err := s.names.Admit("gw-1", b, s.agent, s.online, s.now)
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
	s.agent = "a"
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
