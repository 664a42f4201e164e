package fleetdb_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	identitydb "github.com/colonyfleet/colony/co/db/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestPending has an LO report nodes that wait: the CO shows them by their keys, decides, sends the decisions with the
// tokens of the site, and forgets the nodes that have enrolled.
func TestPending(t *testing.T) {
	t.Parallel()
	pool := openDB(t)
	s, machines := fleetdb.New(pool), identitydb.New(pool)
	name := func(of string) string { return hex.EncodeToString(keyOf(of)) }
	j, sent := &journal{epoch: "e"}, 0
	report := func(kind protocol.EventKind, node protocol.NodeID, of string) {
		j.add(kind, node, &protocol.Enrolment{V: 1, Key: keyOf(of), Device: "S-" + of, Remote: "10.0.0.5:1"})
	}
	send := func() {
		t.Helper()
		if _, err := j.send(t.Context(), s, sent+1, len(j.events), uint64(sent)); err != nil {
			t.Fatal(err)
		}
		sent = len(j.events)
	}
	waits := func(what string, want ...string) {
		t.Helper()
		list, total, err := machines.Pending(t.Context(), fleet.PendingFilter{}, 100)
		var got []string
		for _, p := range list {
			got = append(got, fmt.Sprintf("%s/%s %s %v", p.Site, p.Node, p.Device, p.Taken))
		}
		if slices.Sort(got); err != nil || total != len(want) || !slices.Equal(got, want) {
			t.Errorf("%s: %d wait: %q (%v), want %q", what, total, got, err, want)
		}
	}
	decide := func(node protocol.NodeID, of string, approved bool, life time.Duration) error {
		return machines.Decide(t.Context(), fleet.Decision{Site: "home", Node: node, Key: name(of), Approved: approved, By: "anna", Expires: time.Now().Add(life)})
	}
	decided := func(what string, want ...string) {
		t.Helper()
		all, err := machines.NodeTokens(t.Context())
		var got []string
		for _, d := range all["home"].Decided {
			got = append(got, fmt.Sprintf("%s %.4x %v", d.Node, d.Key, d.Approved))
		}
		slices.Sort(want)
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: decided %q (%v), want %q", what, got, err, want)
		}
	}
	if err := decide("g1", "one", true, time.Hour); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("of a site that is not there: %v", err)
	}
	report(protocol.MachinePending, "g1", "one")
	report(protocol.MachinePending, "g1", "two")
	report(protocol.MachinePending, "g3", "three")
	report(protocol.MachinePending, "g1", "one") // a day later
	send()
	waits("three that were reported", "home/g1 S-one false", "home/g1 S-two false", "home/g3 S-three false")
	for _, c := range []struct {
		f    fleet.PendingFilter
		want int
	}{
		{fleet.PendingFilter{Site: "home"}, 3},
		{fleet.PendingFilter{Site: "other"}, 0},
		{fleet.PendingFilter{Key: name("one")[:16]}, 1},
		{fleet.PendingFilter{Site: "home", Key: name("two")}, 1},
		{fleet.PendingFilter{Site: "home", Key: name("one")[1:17]}, 0},
	} {
		if list, total, err := machines.Pending(t.Context(), c.f, 1); err != nil || total != c.want || len(list) != min(total, 1) || total == 1 && !strings.HasPrefix(list[0].Key, c.f.Key) {
			t.Errorf("%+v: %d wait: %+v (%v), want %d", c.f, total, list, err, c.want)
		}
	}
	for _, err := range []error{decide("g1", "one", true, time.Hour), decide("g3", "three", false, time.Hour), decide("g4", "early", true, time.Hour)} {
		if err != nil {
			t.Error(err)
		}
	}
	waits("the one that nobody decided about", "home/g1 S-two false")
	decided("three", fmt.Sprintf("g1 %.4x true", keyOf("one")), fmt.Sprintf("g3 %.4x false", keyOf("three")), fmt.Sprintf("g4 %.4x true", keyOf("early")))
	report(protocol.MachineEnrolled, "g1", "one")
	report(protocol.MachinePending, "g9", "three") // by another name
	report(protocol.MachinePending, "g4", "early") // it has come
	send()
	waits("after one has enrolled", "home/g1 S-two true", "home/g9 S-three false")
	if err := decide("g1", "one", false, time.Hour); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("rejection of a node that is enrolled: %v", err)
	}
	decided("what is left", fmt.Sprintf("g4 %.4x true", keyOf("early")))
	if err := decide("g9", "three", true, -time.Second); err != nil {
		t.Error(err)
	}
	decided("one that has ended", fmt.Sprintf("g4 %.4x true", keyOf("early")))
	report(protocol.MachinePending, "g9", "three")
	send()
	waits("a decision that has ended", "home/g1 S-two true", "home/g9 S-three false")
	if _, err := pool.Exec(t.Context(), `insert into revoked_keys (key, site, name, not_after) values ($1, 'home', 'x.home.en.colony.internal', now() + interval '1 day')`, name("two")); err != nil {
		t.Fatal(err)
	}
	if err := decide("g1", "two", true, time.Hour); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("approval of a revoked key: %v", err)
	}
	waits("without a revoked key", "home/g9 S-three false")
	events, err := s.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.MachinePending}, Limit: 100})
	j.add(protocol.MachinePending, "g9", &protocol.Enrolment{V: 1, Key: keyOf("three"), Renewal: true, Remote: "[2001:db8:1::1]:1"})
	send()
	later, errLater := s.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.MachinePending}, Limit: 100})
	if err != nil || errLater != nil || len(events) == 0 || len(later) != len(events) {
		t.Errorf("%d events (%v), and %d (%v) after a node was reported that goes on waiting: want as many", len(events), err, len(later), errLater)
	}
	for i := range 300 { // of one network
		j.add(protocol.MachinePending, "flood", &protocol.Enrolment{V: 1, Key: keyOf(fmt.Sprint(i)), Remote: fmt.Sprintf("[2001:db8:2::%x]:1", i)})
	}
	for i := range 5 {
		j.add(protocol.MachinePending, "late", &protocol.Enrolment{V: 1, Key: keyOf(fmt.Sprint("late", i)), Remote: fmt.Sprintf("10.0.1.%d:1", i)})
	}
	j.add(protocol.MachinePending, "", &protocol.Enrolment{V: 1, Key: keyOf("x")}) // an anomaly
	send()
	byName := func() map[protocol.NodeID]int {
		t.Helper()
		list, total, err := machines.Pending(t.Context(), fleet.PendingFilter{}, 500)
		if err != nil || total > 256 {
			t.Errorf("%d nodes wait (%v): want at most 256 of a site", total, err)
		}
		names := map[protocol.NodeID]int{}
		for _, p := range list {
			names[p.Node]++
		}
		return names
	}
	if got := byName(); got["g9"] != 1 || got["late"] != 5 || got["flood"] < 200 {
		t.Errorf("left of many of one network: %v, want all others", got)
	}
	for i := range 300 {
		j.add(protocol.MachinePending, "flood", &protocol.Enrolment{V: 1, Key: keyOf(fmt.Sprint("more", i)), Remote: fmt.Sprintf("[2001:db8:2:0:1::%x]:1", i)})
	}
	send()
	if got := byName(); got["g9"] != 1 || got["late"] != 5 || got["flood"] < 200 {
		t.Errorf("left of more of that network: %v, want all others", got)
	}
	events, err = s.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.MachineApproved, fleet.MachineRejected}, Limit: 100})
	if err != nil || len(events) != 4 || events[0].Message != fmt.Sprintf("the key %.16s of g1.home.en.colony.internal, by anna", name("one")) {
		t.Errorf("events %+v, %v", events, err)
	}
}
