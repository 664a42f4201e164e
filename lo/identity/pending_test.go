package identity_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/testpart"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/protocol"
)

// key is that of a test, as a SHA-256 in hex.
func key(of string) string { return strings.Repeat(of, 64)[:64] }

// apply is the claim of a node without a token.
func apply(node, k, host string) identity.Claim {
	return identity.Claim{Name: identity.OfNode("plant1", protocol.NodeID(node)), Key: key(k), Device: "S-" + k, Remote: host + ":5"}
}

// openPending opens machines that hold nodes without a token, with the list of what they reported.
func openPending(t *testing.T, dir string, p loidentity.Pending) (m *loidentity.Machines, reports, revoked *[]string) {
	t.Helper()
	reports, revoked = new([]string), new([]string)
	m, err := loidentity.Open(loidentity.Options{
		Site: "plant1", Dir: dir, Disk: disk.OS, Clock: identity.NewClock(time.Now, identity.Floor{}, nil), Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Pending: p, Changed: func(keys []string) { *revoked = keys },
		Report: func(_ context.Context, kind protocol.EventKind, n protocol.NodeID, e protocol.Enrolment) error {
			report := fmt.Sprintf("%s %s %.2x %s %s", kind, n, e.Key, e.Device, e.Remote)
			if e.Renewal {
				report += " again"
			}
			*reports = append(*reports, report)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // a test may have closed it
	return m, reports, revoked
}

// decided gives the site what the CO decided.
func decided(t *testing.T, m *loidentity.Machines, list ...protocol.DecidedKey) {
	t.Helper()
	if err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Decided: list})); err != nil {
		t.Fatal(err)
	}
}

func decision(node, k string, approved, replace bool, end time.Time) protocol.DecidedKey {
	raw, _ := hex.DecodeString(key(k))
	return protocol.DecidedKey{Node: protocol.NodeID(node), Key: raw, Approved: approved, Replace: replace, ExpiresMillis: end.UnixMilli()}
}

// TestApproved goes through what becomes of nodes without a token, with a restart of the LO before each question:
// what is approved is a key by one name, and what was decided survives.
func TestApproved(t *testing.T) {
	t.Parallel()
	dir, later := t.TempDir(), time.Now().Add(time.Hour)
	m, reports, _ := openPending(t, dir, loidentity.Pending{Most: 8})
	if err := m.Apply(t.Context(), apply("g1", "a", "10.0.0.1")); identity.CodeOf(err) != identity.Pending || !strings.Contains(err.Error(), "colony node approve plant1/g1 aaaaaaaaaaaaaaaa") {
		t.Errorf("before anybody decided: %v", err)
	}
	if want := []string{"machine_pending g1 aaaa S-a 10.0.0.1:5"}; !slices.Equal(*reports, want) || !slices.Equal(m.PendingNodes(), []protocol.NodeID{"g1"}) {
		t.Errorf("reports %q, want %q; pending %q", *reports, want, m.PendingNodes())
	}
	decided(t, m, decision("g1", "a", true, false, later), decision("g1", "b", true, false, later), decision("g1", "c", true, true, later),
		decision("g4", "d", false, false, later), decision("g5", "e", true, false, time.Now()))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	foreign := apply("g1", "a", "10.0.0.1")
	foreign.Name.Site = "plant2"
	var revoked *[]string
	for _, c := range []struct {
		what  string
		claim identity.Claim
		want  identity.Code // "": admitted
	}{
		{"another site", foreign, identity.WrongSite},
		{"the approved key by another name", apply("g2", "a", "10.0.0.1"), identity.Pending},
		{"another key by the approved name", apply("g1", "f", "10.0.0.1"), identity.Pending},
		{"the approved key", apply("g1", "a", "10.0.0.1"), ""},
		{"the same, as its answer was lost", apply("g1", "a", "10.0.0.1"), ""},
		{"another one that was approved by that name", apply("g1", "b", "10.0.0.1"), identity.NameTaken},
		{"a rejected key", apply("g4", "d", "10.0.0.1"), identity.Rejected},
		{"an approval that has ended", apply("g5", "e", "10.0.0.1"), identity.Pending},
		{"one that takes its place", apply("g1", "c", "10.0.0.1"), ""},
		{"the one that was replaced", apply("g1", "a", "10.0.0.1"), identity.Revoked},
	} {
		m, _, revoked = openPending(t, dir, loidentity.Pending{Most: 8})
		err := m.Apply(t.Context(), c.claim)
		if (err != nil || c.want != "") && identity.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		if c.what == "one that takes its place" && !slices.Equal(*revoked, []string{key("a")}) {
			t.Errorf("%s: revoked %q", c.what, *revoked)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m, _, _ = openPending(t, dir, loidentity.Pending{Most: 8})
	if !m.Enrolled("g1") || m.Enrolled("g2") || m.Enrolled("g4") || m.Enrolled("g5") {
		t.Error("others than g1 are enrolled, or g1 is not")
	}
	if err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", "g1"), Key: key("c")}); err != nil {
		t.Errorf("a renewal of a node that was approved: %v", err)
	}
}

// TestPendingOfIPv6 has many addresses of one /64 ask, which one machine can have: they count as one address.
func TestPendingOfIPv6(t *testing.T) {
	t.Parallel()
	m, _, _ := openPending(t, t.TempDir(), loidentity.Pending{Most: 8})
	for i, c := range []struct {
		host string
		want identity.Code
	}{
		{"[2001:db8:0:1::1]", identity.Pending},
		{"[2001:db8:0:1::2]", identity.Pending},
		{"[2001:db8:0:1:ffff::3]", identity.PendingFull},
		{"[2001:db8:0:2::1]", identity.Pending},
		{"[::ffff:10.0.0.1]", identity.Pending},
		{"10.0.0.1", identity.Pending},
		{"10.0.0.1", identity.PendingFull},
		{"10.0.0.2", identity.Pending},
	} {
		if got := identity.CodeOf(m.Apply(t.Context(), apply("g", fmt.Sprintf("%02d", i), c.host))); got != c.want {
			t.Errorf("%d, from %s: %q, want %q", i, c.host, got, c.want)
		}
	}
}

// TestPendingBounds checks how many nodes wait, of one address and in all, that a key is reported once an hour, that those
// that ask no more are forgotten, and that no node waits where the LO does not allow it.
func TestPendingBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, reports, _ := openPending(t, t.TempDir(), loidentity.Pending{Most: 8})
		ask := func(node, k, host string) identity.Code {
			t.Helper()
			return identity.CodeOf(m.Apply(t.Context(), apply(node, k, host)))
		}
		for i := range 20 {
			want := identity.Pending
			if i >= 2 { // a quarter of them
				want = identity.PendingFull
			}
			if got := ask("g", fmt.Sprintf("%02d", i), "10.0.0.1"); got != want {
				t.Errorf("key %d of one address: %q, want %q", i, got, want)
			}
		}
		for i := range 10 {
			want := identity.Pending
			if i >= 6 {
				want = identity.PendingFull
			}
			if got := ask(fmt.Sprintf("n%d", i), fmt.Sprintf("a%d", i), fmt.Sprintf("10.0.1.%d", i)); got != want {
				t.Errorf("address %d: %q, want %q", i, got, want)
			}
		}
		for range 100 {
			time.Sleep(30 * time.Second)
			if got := ask("g", "00", "10.0.0.1"); got != identity.Pending {
				t.Errorf("one that goes on asking: %q", got)
			}
		}
		if len(*reports) != 8 { // in less than an hour
			t.Errorf("%d reports of 8 keys: %q", len(*reports), *reports)
		}
		time.Sleep(15 * time.Minute)
		if got := ask("late", "bb", "10.0.0.9"); got != identity.Pending {
			t.Errorf("after an hour in which all but one did not ask: %q", got)
		}
		if got := m.PendingNodes(); !slices.Equal(got, []protocol.NodeID{"g", "late"}) {
			t.Errorf("pending %q", got)
		}
		for range 24 * 60 {
			time.Sleep(time.Minute)
			ask("late", "bb", "10.0.0.9")
		}
		want := []string{"machine_pending late bbbb S-bb 10.0.0.9:5"}
		for range 24 {
			want = append(want, want[0]+" again")
		}
		if got := (*reports)[8:]; !slices.Equal(got, want) {
			t.Errorf("in a day: reports %q, want %q", got, want)
		}
	})
	m, reports, _ := openPending(t, t.TempDir(), loidentity.Pending{})
	if err := m.Apply(t.Context(), apply("g1", "a", "10.0.0.1")); identity.CodeOf(err) != identity.TokenUnknown || len(*reports) > 0 {
		t.Errorf("where nobody waits: %v, reports %q", err, *reports)
	}
	m, reports, _ = openPending(t, t.TempDir(), loidentity.Pending{Most: 8, Devices: []string{"S-b"}})
	if err := m.Apply(t.Context(), apply("g1", "a", "10.0.0.1")); identity.CodeOf(err) != identity.PendingFull || len(*reports) > 0 {
		t.Errorf("a serial number that is not on the list: %v, reports %q", err, *reports)
	}
	if err := m.Apply(t.Context(), apply("g1", "b", "10.0.0.1")); identity.CodeOf(err) != identity.Pending {
		t.Errorf("a serial number that is on the list: %v", err)
	}
	decided(t, m, decision("g1", "a", true, false, time.Now().Add(time.Hour)))
	if err := m.Apply(t.Context(), apply("g1", "a", "10.0.0.1")); err != nil {
		t.Errorf("a key that is approved, of a machine that is not on the list: %v", err)
	}
}

// TestSlowJournal has the journal wait while it records a node that waits, and then a refusal: others are served
// meanwhile. What it does not record is reported with the next question.
func TestSlowJournal(t *testing.T) {
	t.Parallel()
	begun, end := make(chan protocol.EventKind), make(chan error)
	m, err := loidentity.Open(loidentity.Options{
		Site: "plant1", Dir: t.TempDir(), Disk: disk.OS, Clock: identity.NewClock(time.Now, identity.Floor{}, nil), Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Pending: loidentity.Pending{Most: 8}, Changed: func([]string) {},
		Report: func(_ context.Context, kind protocol.EventKind, _ protocol.NodeID, _ protocol.Enrolment) error {
			begun <- kind
			return <-end
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	decided(t, m, decision("g2", "b", true, false, time.Now().Add(time.Hour)))
	// during has a call report, and others be answered before the journal answers.
	during := func(call func(), want protocol.EventKind, answer error) {
		t.Helper()
		done := make(chan struct{})
		go func() { defer close(done); call() }()
		if kind := <-begun; kind != want {
			t.Errorf("reported %s, want %s", kind, want)
		}
		var served atomic.Bool
		go func() {
			if err := m.Apply(t.Context(), apply("g2", "b", "10.0.0.2")); err != nil {
				t.Errorf("a node that is approved: %v", err)
			}
			if err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", "g2"), Key: key("b")}); err != nil {
				t.Errorf("a renewal: %v", err)
			}
			m.SetListed([]string{key("c")})
			served.Store(true)
		}()
		defer func() { end <- answer; <-done }()
		testpart.Eventually(t, "others are served while the journal waits", served.Load)
	}
	ask := func() {
		if got := identity.CodeOf(m.Apply(t.Context(), apply("g1", "a", "10.0.0.1"))); got != identity.Pending {
			t.Errorf("a node that waits: %q", got)
		}
	}
	during(ask, protocol.MachinePending, errors.New("the journal is full"))
	during(ask, protocol.MachinePending, nil)
	ask() // is not reported
	during(func() {
		m.Refused(t.Context(), identity.OfNode("plant1", "g3"), "10.0.0.3:5", identity.Refuse(identity.NameTaken, "x"))
	}, protocol.MachineRefused, nil)
}
