package lo

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
)

// refusals returns what the journal says of desired states that are refused.
func refusals(t *testing.T, l *LO) []protocol.Adopted {
	t.Helper()
	records, err := l.journal.Read(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []protocol.Adopted
	for _, r := range records {
		var e protocol.Event
		if err := protocol.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		if e.Kind != protocol.DesiredRefused {
			continue
		}
		var m protocol.Adopted
		if err := protocol.Unmarshal(e.Body, &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// TestFaultOfRulesIsReported has the CO learn that a desired state is in force but for
// its data rules, once, also over a restart.
func TestFaultOfRulesIsReported(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t) // which takes nothing: the journal keeps all
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	l := startLO(t, o)
	good := rules(1, protocol.DataRule{Name: "r", Topics: []string{"#"}})
	c.want(good)
	inForce(t, l, good)
	bad := rules(2, protocol.DataRule{Name: "r", Topics: []string{"#/x"}})
	bad.Commit = "c2"
	c.want(bad)
	eventually(t, "it is told", func() bool { return len(refusals(t, l)) > 0 })
	for range 2 { // also after a restart
		stopLO(t, l)
		if err := l.loop.refuse(t.Context(), time.Now()); err != nil {
			t.Errorf("told a second time: %v", err) // which fails, because the journal is closed
		}
		l = startLO(t, o)
	}
	if f := l.status().DataFault; !strings.Contains(f, "#/x") {
		t.Errorf("fault after a restart: %q", f)
	}
	next := rules(3, protocol.DataRule{Name: "r", Topics: []string{"#/y"}})
	c.want(next)
	eventually(t, "the next one is told", func() bool { return len(refusals(t, l)) > 1 || strings.Contains(refusals(t, l)[0].Reason, "#/y") })
	got := refusals(t, l)
	last := got[len(got)-1]
	if last.Generation != 3 || !strings.Contains(last.Reason, `data rule "r"`) {
		t.Errorf("told: %+v", got)
	}
	for _, m := range got[:len(got)-1] {
		if m.Generation != 2 || m.Commit != "c2" || len(got) > 2 {
			t.Errorf("told: %+v", got)
		}
	}
	if n := kinds(t, l)[protocol.DesiredAdopted]; n == 0 {
		t.Error("what there is beside the rules is not adopted")
	}
}

// TestNothingToFetchFrom has a site without co.http say what is wrong.
func TestNothingToFetchFrom(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	l := startLO(t, localOptions(t, c, t.TempDir(), "127.0.0.1:0"))
	m := site1(4, "1", protocol.Policy{})
	m.Deployments[0].Spec = nil
	c.want(m)
	eventually(t, "it is told", func() bool { return len(refusals(t, l)) == 1 })
	if got := refusals(t, l)[0]; got.Generation != 4 || !strings.Contains(got.Reason, "co.http is not set") || !strings.Contains(got.Reason, "deployment web") {
		t.Errorf("told: %+v", got)
	}
}

// TestSweepIsRepeated has the site's broker refuse a deletion: the next try must
// still know of it.
func TestSweepIsRepeated(t *testing.T) {
	t.Parallel()
	store, err := retained.Open(t.TempDir(), retained.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // of the test
	busy := errors.New("busy")
	var cleared []string
	r := downRetained{store: store, now: time.Now, publish: func(_ context.Context, m broker.Message) error {
		if busy != nil {
			return busy
		}
		cleared = append(cleared, m.Topic)
		return nil
	}}
	if err := r.Put(t.Context(), "data/set", []downlink.Delivery{delivery("a", time.Minute)}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sweep(t.Context(), "data/set", nil); !errors.Is(err, busy) {
		t.Errorf("sweep: %v", err)
	}
	busy = nil
	if err := r.Sweep(t.Context(), "data/set", nil); err != nil || !slices.Equal(cleared, []string{"a"}) || len(r.Streams()) != 0 {
		t.Errorf("second sweep: %v, cleared %v, left %v", err, cleared, r.Streams())
	}
}

// TestRetainedByTheClockOfTheStore counts the time of a message by the clock that
// looks at it later, wherever the machine's clock was set to.
func TestRetainedByTheClockOfTheStore(t *testing.T) {
	t.Parallel()
	clock := func() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }
	store, err := retained.Open(t.TempDir(), retained.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // of the test
	r := downRetained{store: store, now: clock}
	if err := r.Put(t.Context(), "data/set", []downlink.Delivery{delivery("a", time.Minute)}); err != nil {
		t.Fatal(err)
	}
	m, ok := store.Get("a")
	if left, _ := m.ExpiresIn(clock()); !ok || left != time.Minute {
		t.Errorf("there %t, %s left", ok, left)
	}
}

func delivery(topic string, expiry time.Duration) downlink.Delivery {
	return downlink.Delivery{Stream: "data/set", Expiry: expiry, DataMessage: protocol.DataMessage{V: 1, Topic: topic, Payload: []byte("1"), Retain: true}}
}

// sweeps is a record of what is retained that is asked to forget.
type sweeps struct{ streams []string }

// Put implements downlink.Retained.
func (s *sweeps) Put(context.Context, string, []downlink.Delivery) error { return nil }

// Streams implements downlink.Retained.
func (s *sweeps) Streams() []string { return []string{"data/set"} }

// Sweep implements downlink.Retained.
func (s *sweeps) Sweep(_ context.Context, stream string, _ map[string]bool) error {
	s.streams = append(s.streams, stream)
	return nil
}

// TestInvalidRulesDeleteNothing has rules that are not valid leave what those before
// brought down.
func TestInvalidRulesDeleteNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "down")
	synctest.Test(t, func(t *testing.T) {
		s := &sweeps{}
		d, err := downlink.Open(downlink.Options{Dir: dir, Site: "s1", Retained: s})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		for _, step := range []struct {
			rule protocol.DataRule
			want []string
		}{
			{protocol.DataRule{Name: "set", Down: true, Topics: []string{"#"}}, nil},
			{protocol.DataRule{Name: "other", Down: true, Topics: []string{"#/x"}}, nil},
			{protocol.DataRule{Name: "other", Down: true, Topics: []string{"#"}}, []string{"data/set"}},
		} {
			directRules(d, rules(1, step.rule))
			synctest.Wait()
			if diff := cmp.Diff(step.want, s.streams); diff != "" {
				t.Errorf("with %+v deleted (-want +got):\n%s", step.rule, diff)
			}
		}
		cancel()
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
	})
}
