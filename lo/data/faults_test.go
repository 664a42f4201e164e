package data

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// reopen closes a Forwarder and opens it again with other rules.
func reopen(t *testing.T, d *Forwarder, rules ...protocol.DataRule) *Forwarder {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return newForwarder(t, d.o.Dir, rules...)
}

// change puts other rules into force.
func change(t *testing.T, d *Forwarder, rules ...protocol.DataRule) {
	t.Helper()
	d.o.Rules = func() ([]protocol.DataRule, bool) { return rules, true }
	d.changed = true
	d.Reconcile(t.Context())
}

// retain publishes a message that the broker retains.
func retain(t *testing.T, d *Forwarder, name, payload string) {
	t.Helper()
	m := message(name, payload)
	m.Retain = true
	acceptAll(t, d, m)
}

// lists counts the whole lists of what is retained in a rule's queue.
func lists(t *testing.T, d *Forwarder, rule string) int {
	t.Helper()
	n := 0
	for _, e := range queued(t, d, rule) {
		if e.Kind == protocol.RetainedEnd {
			n++
		}
	}
	return n
}

// Two publish on one topic: what the store has last, the queue has last.
func TestTwoRetainOnOneTopic(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1})
	const topics = 150
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range topics {
				m := message(fmt.Sprintf("t%d", i), fmt.Sprint(w))
				m.Retain = true
				if err := d.Accept(t.Context(), "", m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	want := map[string]string{}
	for _, m := range d.Retained().All() {
		want[strings.TrimPrefix(m.Topic, "colony/v1/s1/data/")] = string(m.Data.Payload)
	}
	if diff := cmp.Diff(want, mirror(t, queued(t, d, "r"))); diff != "" || len(want) != topics {
		t.Errorf("the site has %d, the CO would have (-want +got):\n%s", len(want), diff)
	}
}

// Two publish on one topic of a rule that holds samples: the one that is held is on
// disk, for both were acknowledged.
func TestTwoSamplesOfOneTopic(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}})
	const topics = 150
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range topics {
				if err := d.Accept(t.Context(), "", message(fmt.Sprintf("t%d", i), fmt.Sprint(w))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l := d.streams["r"]
	for i := range topics {
		name := fmt.Sprintf("colony/v1/s1/data/t%d", i)
		s, ok := l.sampler.Held(name)
		m, stored := l.held.Get(name)
		if !ok || !stored {
			t.Fatalf("%s: held %v, on disk %v", name, ok, stored)
		}
		var e protocol.Event
		if err := protocol.Unmarshal(s.body, &e); err != nil {
			t.Fatal(err)
		}
		if got := body(t, e); string(got.Payload) != string(m.Data.Payload) {
			t.Errorf("%s: %s is held, %s is on disk", name, got.Payload, m.Data.Payload)
		}
	}
}

// A large sample of QoS 0 is bounded by the bytes of the store, too.
func TestLargeSamplesAreOnDisk(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, MaxBytes: 1 << 20, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}})
	d.Connected(true)
	for i := range 10 {
		m := message(fmt.Sprint(i), strings.Repeat("x", 200<<10))
		m.QoS = 0
		acceptAll(t, d, m)
	}
	if n := d.streams["r"].sampler.Topics(); n != 5 {
		t.Errorf("%d samples of 200 KiB are held in a queue of 1 MiB", n)
	}
	if n := d.Status()[0].Refused; n != 5 {
		t.Errorf("%d are refused", n)
	}
}

// A message that the journal can never accept is refused by itself: those that are
// written together with it are not to blame.
func TestTooLargeHurtsNobody(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}})
	l := d.streams["r"]
	l.mu.Lock() // holds up the loop that appends
	l.sooner.Notify()
	if err := l.put(t.Context(), "x", l.event(1, "", protocol.DataMessage{V: 1, Topic: "x"}), false); err != nil {
		t.Error(err)
	}
	large := make(chan error)
	go func() { large <- l.put(t.Context(), "y", make([]byte, journal.MaxBody+1), true) }()
	select {
	case err := <-large:
		if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "too large") {
			t.Error(err)
		}
		l.mu.Unlock()
	case <-time.After(patience):
		l.mu.Unlock()
		t.Fatal("the message waits for its turn", <-large)
	}
	acceptAll(t, d, message("z", "1"))
	if n := len(queued(t, d, "r")); n != 2 {
		t.Errorf("%d messages are queued, want 2", n)
	}
}

// Where one queue fails, the others do not get one snapshot after another.
func TestListsAreReportedOnce(t *testing.T) {
	t.Parallel()
	a, b := protocol.DataRule{Name: "a", Topics: []string{"a/#"}}, protocol.DataRule{Name: "b", Topics: []string{"b/#"}}
	d := newForwarder(t, t.TempDir(), a, b)
	retain(t, d, "a/x", "1")
	retain(t, d, "b/x", "1")
	if err := d.streams["b"].queue.Close(); err != nil {
		t.Fatal(err)
	}
	c := protocol.DataRule{Name: "c", Topics: []string{"#"}}
	change(t, d, c, a, b)
	for range 3 {
		d.Reconcile(t.Context())
	}
	if f := d.Fault(); !strings.Contains(f, "b") {
		t.Errorf("fault %q", f)
	}
	if na, nc := lists(t, d, "a"), lists(t, d, "c"); na != 1 || nc != 1 {
		t.Errorf("%d and %d lists, want one each", na, nc)
	}
}

// What is queued under a rule that was removed keeps the bounds that it was taken
// under, whatever rules come later, and over a restart.
func TestRemovedRuleKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rule := protocol.DataRule{Name: "r", Topics: []string{"r"}, MaxBytes: 1 << 30, MaxAgeMillis: 3_600_000, Priority: protocol.HighPriority, Remote: "x/"}
	other := protocol.DataRule{Name: "other", Topics: []string{"o"}}
	d := newForwarder(t, t.TempDir(), rule)
	acceptAll(t, d, message("r", "1"))
	change(t, d, other)
	queue := d.streams["r"].queue
	other.Topics = []string{"p"}
	change(t, d, other)
	if d.streams["r"].queue != queue {
		t.Error("the queue was closed and opened again for nothing")
	}
	for range 2 {
		if diff := cmp.Diff(rule, d.streams["r"].rule); diff != "" {
			t.Errorf("rule of the queue (-want +got):\n%s", diff)
		}
		d = reopen(t, d, other)
	}
	change(t, d, rule, other)
	acceptAll(t, d, message("p", "1"))
	if s := d.Status(); len(s) != 2 || s[1].Rule != "r" || s[1].Draining {
		t.Errorf("status %+v", s)
	}
}

// A kill between the store of retained messages and the queue: the CO gets a snapshot of
// what the site's broker will have.
func TestKilledBetweenStoreAndQueue(t *testing.T) {
	t.Parallel()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}}
	d := newForwarder(t, t.TempDir(), rule)
	retain(t, d, "x", "1")
	retain(t, d, "gone", "1")
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(d.o.Dir)); err != nil {
		t.Fatal(err)
	}
	s, err := retained.Open(filepath.Join(killed, "retained"), retained.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := message("x", "").Topic
	if _, err := s.Put(retained.Message{Topic: name, Data: protocol.DataMessage{V: 1, Payload: []byte("2"), Retain: true}}, retained.Message{Topic: message("gone", "").Topic}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	k := newForwarder(t, killed, rule)
	k.Connected(true)
	for range 3 {
		k.Reconcile(t.Context())
	}
	if diff := cmp.Diff(map[string]string{"x": "2"}, mirror(t, queued(t, k, "r"))); diff != "" {
		t.Errorf("the CO would hold (-want +got):\n%s", diff)
	}
	if n := lists(t, k, "r"); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
	// After an orderly close the copy is fresh: no snapshot.
	d = reopen(t, d, rule)
	d.Connected(true)
	d.Reconcile(t.Context())
	if n := lists(t, d, "r"); n != 0 {
		t.Errorf("%d snapshots after an orderly close, want none", n)
	}
}

// A list that would push itself out of its queue, with all that is in it, is not
// made, and it is said what to do.
func TestListIsTooLarge(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir())
	for i := range 20 {
		retain(t, d, fmt.Sprint(i), strings.Repeat("x", 10<<10))
	}
	retain(t, d, "huge", strings.Repeat("x", 300<<10))
	small := protocol.DataRule{Name: "r", Topics: []string{"#"}, MaxBytes: 256 << 10}
	change(t, d, small)
	d.Connected(true)
	acceptAll(t, d, message("m", "1"))
	for range 3 {
		d.Reconcile(t.Context())
	}
	if f := d.Fault(); !strings.Contains(f, "raise maxBytes") {
		t.Errorf("fault %q", f)
	}
	if got := queued(t, d, "r"); len(got) != 1 {
		t.Errorf("%d records are queued, want the message only", len(got))
	}
	small.MaxBytes = 1 << 20
	change(t, d, small)
	if f := d.Fault(); f != "" {
		t.Errorf("fault %q", f)
	}
	if got := mirror(t, queued(t, d, "r")); len(got) != 20 { // without huge
		t.Errorf("the CO would hold %d", len(got))
	}
}

// Rules trade topics while both have something queued: whichever queue comes
// first, in the end the CO holds what the site does.
func TestTopicsChangeRule(t *testing.T) {
	t.Parallel()
	a, b := protocol.DataRule{Name: "a", Topics: []string{"#"}}, protocol.DataRule{Name: "b", Topics: []string{"#"}}
	d := newForwarder(t, t.TempDir(), a, b)
	retain(t, d, "x", "old")
	change(t, d, b, a)
	retain(t, d, "x", "new")
	d.Connected(true)
	d.Reconcile(t.Context())
	before := map[string]uint64{"a": d.streams["a"].queue.Last(), "b": d.streams["b"].queue.Last()}
	// The CO gets b first, and with a what is older.
	for _, name := range []string{"b", "a"} {
		if err := d.streams[name].queue.Trim(before[name]); err != nil {
			t.Fatal(err)
		}
		d.Reconcile(t.Context())
	}
	if diff := cmp.Diff(map[string]string{"x": "new"}, mirror(t, queued(t, d, "b"))); diff != "" {
		t.Errorf("after all else the CO gets of b (-want +got):\n%s", diff)
	}
	if err := d.streams["b"].queue.Trim(d.streams["b"].queue.Last()); err != nil {
		t.Fatal(err)
	}
	d.Reconcile(t.Context())
	if n := len(queued(t, d, "a")) + len(queued(t, d, "b")); n != 0 {
		t.Errorf("%d records more: it does not end", n)
	}
}

// After a crash while topics move from rule to rule the CO must still get the snapshot.
func TestTopicsChangeRuleOverAKill(t *testing.T) {
	t.Parallel()
	a, b := protocol.DataRule{Name: "a", Topics: []string{"#"}}, protocol.DataRule{Name: "b", Topics: []string{"#"}}
	d := newForwarder(t, t.TempDir(), a, b)
	retain(t, d, "x", "old")
	d = reopen(t, d, b, a)
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(d.o.Dir)); err != nil {
		t.Fatal(err)
	}
	d = newForwarder(t, killed, b, a)
	d.Connected(true)
	d.Reconcile(t.Context())
	for _, name := range []string{"b", "a"} {
		if err := d.streams[name].queue.Trim(d.streams[name].queue.Last()); err != nil {
			t.Fatal(err)
		}
		d.streams[name].notBefore, d.streams[name].snapshotEnd = time.Time{}, 0 // a minute later
		d.Reconcile(t.Context())
	}
	if diff := cmp.Diff(map[string]string{"x": "old"}, mirror(t, queued(t, d, "b"))); diff != "" {
		t.Errorf("after all else the CO gets of b (-want +got):\n%s", diff)
	}
}

// What the CO could never deliver or decode is refused at the site.
func TestRefused(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, Local: "plc/"})
	long := client.Message{Topic: "plc/" + strings.Repeat("x", 65_535-4), Payload: []byte("1"), QoS: 1}
	many := client.Message{Topic: "plc/x", QoS: 1, Properties: slices.Repeat([]client.Property{{Key: "k"}}, 40_000)}
	for _, m := range []client.Message{long, many} {
		if err := d.Accept(t.Context(), "", m); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%v", err)
		}
	}
	long.Topic = long.Topic[:65_000]
	acceptAll(t, d, long)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Accept(t.Context(), "", message("x", "")); err != nil {
		t.Errorf("a message without a rule: %v", err)
	}
	if err := d.Accept(t.Context(), "", long); protocol.KindOf(err) != protocol.Unavailable || strings.HasSuffix(err.Error(), ": ") {
		t.Errorf("after the end: %v", err)
	}
}

// A deletion counts however long an outage lasts.
func TestDeletionHasNoEnd(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, TTLMillis: 1})
	retain(t, d, "x", "1")
	removed := message("x", "")
	removed.Retain, removed.Expiry = true, time.Second
	acceptAll(t, d, removed)
	got := queued(t, d, "r")
	if m := body(t, got[1]); m.ExpiryMillis != 0 || len(m.Payload) != 0 {
		t.Errorf("deletion %+v", m)
	}
	if m := body(t, got[0]); m.ExpiryMillis != 1 {
		t.Errorf("message %+v", m)
	}
}

// A store of retained messages that is damaged or removed costs what was in it; the CO
// must not go on with it.
func TestStoreIsLost(t *testing.T) {
	t.Parallel()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}}
	d := newForwarder(t, t.TempDir(), rule)
	retain(t, d, "x", "1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.o.Dir, "retained")); err != nil {
		t.Fatal(err)
	}
	d = newForwarder(t, d.o.Dir, rule)
	d.Connected(true)
	d.Reconcile(t.Context())
	if got := mirror(t, queued(t, d, "r")); len(got) != 0 {
		t.Errorf("the CO would hold %v", got)
	}
}

// What has outlived the rule's TTL is no longer valid at the CO: each list that
// named it would be followed by another one, because something has expired.
func TestListWithoutWhatIsOver(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, TTLMillis: 2})
	retain(t, d, "x", "1")
	for began := d.Now(); d.Now().Sub(began) < 5*time.Millisecond; {
	}
	if _, err := d.streams["r"].appendSnapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(queued(t, d, "r")); n != 1+2 {
		t.Errorf("%d records, want the message and an empty list", n)
	}
}

// On a link that needs an hour for a snapshot, the next one does not follow at once.
func TestListsAreRareOnASlowLink(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}})
	retain(t, d, "x", "1")
	d.Connected(true)
	l := d.streams["r"]
	l.stale = true
	d.Reconcile(t.Context())
	if n := lists(t, d, "r"); n != 1 {
		t.Fatalf("%d snapshots, want 1", n)
	}
	l.appendedAt, l.notBefore = l.appendedAt.Add(-time.Hour), l.notBefore.Add(-time.Hour)
	l.stale = true
	d.Reconcile(t.Context())
	if n := lists(t, d, "r"); n != 1 {
		t.Errorf("%d snapshots while the CO does not have the first one, want none", n)
	}
	if err := l.queue.Trim(l.queue.Last()); err != nil {
		t.Fatal(err)
	}
	d.Reconcile(t.Context())
	if n := lists(t, d, "r"); n != 0 {
		t.Error("another snapshot at once")
	}
	l.notBefore = l.notBefore.Add(-10 * time.Hour)
	d.Reconcile(t.Context())
	if n := lists(t, d, "r"); n != 1 {
		t.Errorf("%d snapshots nine hours later, want 1", n)
	}
}
