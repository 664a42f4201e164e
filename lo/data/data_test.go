package data

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
)

const patience = 20 * time.Second

// newForwarder opens a Forwarder whose link is down.
func newForwarder(t testing.TB, dir string, rules ...protocol.DataRule) *Forwarder {
	t.Helper()
	failed := make(chan error, 8)
	d, err := Open(Options{
		Site: "s1", Dir: dir, Gate: pace.New(pace.Options{}), Logger: slog.New(slog.DiscardHandler),
		Begin: func(context.Context, string, []byte) (func(context.Context) error, error) {
			return nil, protocol.Errorf(protocol.Unavailable, "no link")
		},
		Rules: func() ([]protocol.DataRule, bool) { return rules, true },
		Fail:  func(err error) { failed <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Reconcile(t.Context())
	if f := d.Fault(); f != "" {
		t.Fatal(f)
	}
	t.Cleanup(func() { _ = d.Close() }) // a test that looks at the error closes it itself
	return d
}

// TestMessagesAreMarked accepts messages of all kinds by a clock that nothing keeps in step, and
// by one that is in step again.
func TestMessagesAreMarked(t *testing.T) {
	t.Parallel()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1}
	d := newForwarder(t, t.TempDir(), rule)
	unsynced := true
	d.o.Unsynced = func() bool { return unsynced }
	retained := message("b", "1")
	retained.Retain = true
	for range 2 {
		acceptAll(t, d, message("a", "1"))
		acceptAll(t, d, retained)
		unsynced = false
	}
	unsynced = true
	if _, err := d.streams["r"].appendSnapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []bool
	for _, e := range queued(t, d, "r") {
		if e.Kind == protocol.DataEvent {
			got = append(got, e.Unsynced)
		}
	}
	if want := []bool{true, true, false, false, true}; !slices.Equal(got[max(0, len(got)-5):], want) {
		t.Errorf("marked %v, want %v at the end", got, want)
	}
}

func message(name, payload string) client.Message {
	return client.Message{Topic: "colony/v1/s1/data/" + name, Payload: []byte(payload), QoS: 1}
}

func acceptAll(t testing.TB, d *Forwarder, m client.Message) {
	t.Helper()
	if err := d.Accept(t.Context(), "", m); err != nil {
		t.Fatal(err)
	}
}

// queued returns the events of a rule's queue.
func queued(t testing.TB, d *Forwarder, rule string) []protocol.Event {
	t.Helper()
	var out []protocol.Event
	for after := uint64(0); ; {
		records, err := d.streams[rule].queue.Read(after, 10_000, 16<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			return out
		}
		for _, r := range records {
			var e protocol.Event
			if err := protocol.Unmarshal(r.Body, &e); err != nil {
				t.Fatal(err)
			}
			out, after = append(out, e), r.Seq
		}
	}
}

func body(t testing.TB, e protocol.Event) protocol.DataMessage {
	t.Helper()
	var m protocol.DataMessage
	if err := protocol.Unmarshal(e.Body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// mirror is what a CO holds retained that has committed the events.
func mirror(t testing.TB, events []protocol.Event) map[string]string {
	t.Helper()
	out, unnamed := map[string]string{}, map[string]bool{}
	for _, e := range events {
		switch e.Kind { //nolint:exhaustive // nothing else is in these queues
		case protocol.RetainedBegin:
			clear(unnamed)
			for name := range out {
				unnamed[name] = true
			}
		case protocol.RetainedEnd:
			for name := range unnamed {
				delete(out, name)
			}
		case protocol.DataEvent:
			m := body(t, e)
			delete(unnamed, m.Topic)
			if out[m.Topic] = string(m.Payload); len(m.Payload) == 0 {
				delete(out, m.Topic)
			}
		}
	}
	return out
}

// Whatever clients do while snapshots are appended, the CO ends with what
// the site has.
func TestMirrorUnderLoad(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1})
	var clients, lister sync.WaitGroup
	for w := range 4 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for i := range 150 {
				m := message(fmt.Sprintf("%d/%d", w, rng.IntN(4)), fmt.Sprint(i)) // a topic has one publisher
				m.Retain = true
				if rng.IntN(3) == 0 {
					m.Payload = nil
				}
				if err := d.Accept(t.Context(), "", m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	lists := 0
	lister.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := d.streams["r"].appendSnapshot(t.Context()); err != nil {
				t.Error(err)
			}
			lists++
		}
	})
	clients.Wait()
	close(stop)
	lister.Wait()
	want := map[string]string{}
	for _, m := range d.Retained().All() {
		want[strings.TrimPrefix(m.Topic, "colony/v1/s1/data/")] = string(m.Data.Payload)
	}
	got := mirror(t, queued(t, d, "r"))
	if len(want) == 0 || lists < 2 {
		t.Errorf("%d retained messages and %d snapshots: the test tests nothing", len(want), lists)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the CO would have is not what the site has (-want +got):\n%s", diff)
	}
}

// The order of one client's messages is that of the queue, also where those of
// QoS 0 are not waited for.
func TestOrderAcrossQoS(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1})
	d.Connected(true)
	var want []string
	for i := range 500 {
		m := message("x", fmt.Sprint(i))
		m.QoS = byte(i % 10 / 9) // every tenth is waited for
		acceptAll(t, d, m)
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	for _, e := range queued(t, d, "r") {
		got = append(got, string(body(t, e).Payload))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d messages, or not in order", len(got), len(want))
	}
}

// A refused message leaves no trace: it passes when it is sent again, and a
// restart does not find it retained.
func TestQueueFails(t *testing.T) {
	t.Parallel()
	sample := protocol.Sample{Mode: protocol.SampleChange}
	last := protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "change", Topics: []string{"c"}, Sample: sample}, protocol.DataRule{Name: "last", Topics: []string{"l"}, Sample: last})
	kept := message("c", "kept")
	kept.Retain = true
	acceptAll(t, d, kept)
	acceptAll(t, d, message("l", "held"))
	for _, rule := range []string{"change", "last"} {
		if err := d.streams[rule].queue.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []client.Message{message("c", "2"), {Topic: kept.Topic, Payload: []byte("3"), QoS: 1, Retain: true}, message("l", "")} {
		if err := d.Accept(t.Context(), "", m); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "data rule") {
			t.Errorf("accept %q with a queue that fails: %v", m.Payload, err)
		}
	}
	loose := message("c", "4")
	loose.QoS = 0
	d.Connected(true)
	if err := d.Accept(t.Context(), "", loose); err != nil {
		t.Errorf("a message of QoS 0 is kept from the site: %v", err)
	}
	d.Connected(false)
	if err := d.streams["change"].put(t.Context(), "x", nil, true); err == nil { // what was not waited for is through now
		t.Error("a closed queue took something")
	}
	if n := d.streams["change"].sampler.Topics(); n != 0 {
		t.Errorf("%d topics are known: what was refused would be left out when it comes again", n)
	}
	if m, ok := d.streams["last"].sampler.Held("colony/v1/s1/data/l"); !ok || m.ref == 0 {
		t.Error("the sample is lost, though nothing replaced it")
	}
	if got := d.Retained().All(); len(got) != 1 || string(got[0].Data.Payload) != "kept" {
		t.Errorf("retained %+v", got)
	}
	if s := d.Status(); s[0].Refused != 4 || s[1].Refused != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	d := newForwarder(t, t.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, MaxBytes: 64 << 10})
	err := d.Accept(t.Context(), "", message("x", strings.Repeat("x", 17<<10)))
	if protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "maxBytes") {
		t.Errorf("a message that never fits: %v", err)
	}
	acceptAll(t, d, message("x", strings.Repeat("x", 15<<10)))
}

// A loss of the file of the reported rules costs a snapshot, and no data.
func TestReportedRulesAreLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1}
	d := newForwarder(t, dir, rule)
	m := message("x", "1")
	m.Retain = true
	acceptAll(t, d, m)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = newForwarder(t, dir, rule)
	if n := len(queued(t, d, "r")); n != 1 {
		t.Errorf("%d events after a restart, want 1: nothing has changed", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.reportedFile().Path, []byte("garbage"), filePerm); err != nil {
		t.Fatal(err)
	}
	d = newForwarder(t, dir, rule)
	if diff := cmp.Diff(map[string]string{"x": "1"}, mirror(t, queued(t, d, "r"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := len(queued(t, d, "r")); n != 4 {
		t.Errorf("%d events, want a list of three more", n)
	}
}

// A site that has lost its desired state goes on with the rules that it had.
func TestDesiredStateIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rule := protocol.DataRule{Name: "r", Topics: []string{"#"}}
	d := newForwarder(t, dir, rule)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	known := atomic.Bool{}
	o := d.o
	o.Rules = func() ([]protocol.DataRule, bool) { return nil, known.Load() }
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	d.Reconcile(t.Context())
	acceptAll(t, d, message("x", "1"))
	if s := d.Status(); len(s) != 1 || s[0].Draining || s[0].Queued != 1 {
		t.Errorf("status %+v", s)
	}
	known.Store(true) // and now it is known that there are none
	d.Adopt()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if s := d.Status(); len(s) == 1 && s[0].Draining {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("status %+v", d.Status())
		case <-tick.C:
		}
	}
	if err := d.Accept(t.Context(), "", message("x", "2")); err != nil {
		t.Errorf("a message without a rule: %v", err)
	}
	if s := d.Status(); s[0].Accepted != 1 {
		t.Errorf("status %+v: a rule that was removed accepted something", s)
	}
}

// A queue that cannot be opened holds up its own rule alone. Once it opens the CO gets
// a snapshot of it.
func TestOneQueueIsBroken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := []protocol.DataRule{{Name: "gone", Topics: []string{"g/#"}}, {Name: "broken", Topics: []string{"b/#"}}, {Name: "well", Topics: []string{"#"}}}
	d := newForwarder(t, dir, rules...)
	for _, name := range []string{"b/x", "w/x", "g/x"} {
		m := message(name, "1")
		m.Retain = true
		acceptAll(t, d, m)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.reportedFile().Path); err != nil { // so that each stream gets a snapshot
		t.Fatal(err)
	}
	broken := d.queueDir("broken")
	if err := os.Rename(broken, broken+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, nil, filePerm); err != nil {
		t.Fatal(err)
	}
	d, err := Open(d.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	for range 3 {
		d.Reconcile(t.Context())
	}
	if f := d.Fault(); !strings.Contains(f, "data rule broken") {
		t.Errorf("fault %q", f)
	}
	acceptAll(t, d, message("w/y", "1"))
	if err := d.Accept(t.Context(), "", message("b/y", "1")); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "broken") {
		t.Errorf("accept without a queue: %v", err)
	}
	// Once, though it was tried three times.
	if n := len(queued(t, d, "well")); n != 1+3+1 {
		t.Errorf("%d events in the queue that is well", n)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	d.Reconcile(t.Context())
	if f := d.Fault(); f != "" {
		t.Error(f)
	}
	if diff := cmp.Diff(map[string]string{"b/x": "1"}, mirror(t, queued(t, d, "broken"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A rule that went away while the LO was down leaves a queue that drains: with its
// samples, and with the end of what the CO has retained of it, said once.
func TestRuleGoesWhileDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newForwarder(t, dir, protocol.DataRule{Name: "r", Topics: []string{"#"}, Sample: protocol.Sample{Mode: protocol.SampleLast, PeriodMillis: 3_600_000}})
	m := message("kept", "1")
	m.Retain = true
	acceptAll(t, d, m)
	acceptAll(t, d, message("x", "1"))
	acceptAll(t, d, message("x", "2"))
	// As at a kill: nothing is flushed.
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = newForwarder(t, killed)
		if s := d.Status(); len(s) != 1 || !s[0].Draining {
			t.Fatalf("status %+v", s)
		}
		var kinds []protocol.EventKind
		events := queued(t, d, "r")
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
		if diff := cmp.Diff([]protocol.EventKind{protocol.DataEvent, protocol.DataEvent, protocol.RetainedBegin, protocol.RetainedEnd}, kinds); diff != "" {
			t.Errorf("queue (-want +got):\n%s", diff)
		}
		if got := string(body(t, events[1]).Payload); got != "2" {
			t.Errorf("the sample is %q, want the last one", got)
		}
		if got := mirror(t, events); len(got) != 0 {
			t.Errorf("the CO would still hold %v", got)
		}
		if got := d.Retained().All(); len(got) != 1 {
			t.Errorf("the site's broker would hold %+v, want what a client retained there", got)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkAccept(b *testing.B) {
	for _, clients := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			d := newForwarder(b, b.TempDir(), protocol.DataRule{Name: "r", Topics: []string{"#"}, QoS: 1})
			m := message("line1/temperature", `{"t":21.5,"unit":"C"}`)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := d.Accept(b.Context(), "", m); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
