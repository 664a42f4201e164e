package ingest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/protocol"
)

// record is a database that several programs share: a position for each stream.
type record struct {
	mu        sync.Mutex
	committed map[string]uint64
	looks     int
}

func (r *record) CommitBatch(_ context.Context, _ protocol.SiteID, b protocol.Batch, events []protocol.Event) (protocol.Ack, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	if b.First == r.committed[b.Stream]+1 {
		r.committed[b.Stream] += uint64(len(events))
	}
	return protocol.Ack{V: 1, Stream: b.Stream, Epoch: "e", Seq: r.committed[b.Stream]}, nil
}

func (r *record) CommitData(
	ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event, _ func(context.Context, []fleet.Delivery) error,
) (protocol.Ack, error) {
	return r.CommitBatch(ctx, site, b, events)
}

func (r *record) looked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looks
}

func (a *acks) said() (out string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ack := range a.list {
		out += fmt.Sprintf("%d ", ack.Seq)
	}
	return out
}

// TestReplicasShareALane gives the batches of a stream to two programs, the later one
// first: it is held, and none is left out.
func TestReplicasShareALane(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "data/temps"} {
		for _, same := range []bool{false, true} {
			t.Run(fmt.Sprintf("stream %q, same program %v", name, same), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, a := &record{committed: map[string]uint64{}}, &acks{}
					one := ingest.New(ingest.Options{Store: r, Data: r, PublishAck: a.publish, Shared: true})
					two := ingest.New(ingest.Options{Store: r, Data: r, PublishAck: a.publish, Shared: true})
					defer one.Close()
					defer two.Close()
					accept := func(in *ingest.Ingest, first uint64) {
						t.Helper()
						b := batch(first, "", online("n1"))
						b.Stream = name
						if err := in.Accept(t.Context(), "home", protocol.Marshal(b)); err != nil {
							t.Error(err)
						}
					}
					accept(one, 3)
					accept(one, 2)
					<-time.After(100 * time.Millisecond)
					if got := a.said(); got != "" {
						t.Errorf("answered %s before the first batch came", got)
					}
					if same {
						accept(one, 1)
					} else {
						accept(two, 1)
					}
					<-time.After(200 * time.Millisecond)
					if got := a.said(); got != "1 2 3 " {
						t.Errorf("acks %s, want 1 2 3", got)
					}
					if n := r.looked(); n > 20 {
						t.Errorf("the database was asked %d times", n)
					}
				})
			})
		}
	}
}

// TestWhatIsMissingIsAskedFor loses a batch: what is behind it is left out after a
// moment, of which there is one for all of them.
func TestWhatIsMissingIsAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, a := &record{committed: map[string]uint64{"": 1}}, &acks{}
		in := ingest.New(ingest.Options{Store: r, Data: r, PublishAck: a.publish, Shared: true})
		defer in.Close()
		for first := uint64(3); first < 40; first++ {
			if err := in.Accept(t.Context(), "home", protocol.Marshal(batch(first, "", online("n1")))); err != nil {
				t.Error(err)
			}
		}
		<-time.After(240 * time.Millisecond)
		if got, n := a.said(), r.looked(); got != "" || n > 10 {
			t.Errorf("acks %s after %d looks, want none yet", got, n)
		}
		<-time.After(20 * time.Millisecond)
		if got, want := a.said(), strings.Repeat("1 ", 37); got != want {
			t.Errorf("acks %s, want one for each batch", got)
		}
	})
}

// TestStuckDataStopsNobody hangs a batch of data, as a subscriber that does not read
// would: one connection's events and other data go on, and what is sent behind it is
// bounded.
func TestStuckDataStopsNobody(t *testing.T) {
	t.Parallel()
	stuck, a := make(chan struct{}), &acks{}
	h := &oneHangs{record: record{committed: map[string]uint64{}}, stuck: stuck}
	in := ingest.New(ingest.Options{Store: h, Data: h, PublishAck: a.publish})
	t.Cleanup(in.Close)
	t.Cleanup(func() { close(stuck) })
	began := time.Now()
	accept := func(site protocol.SiteID, b protocol.Batch) error {
		return in.Accept(t.Context(), site, protocol.Marshal(b))
	}
	var refused error
	n := uint64(1)
	for b := data("data/stuck", n, "a"); refused == nil && n < 1000; n++ {
		b.First = n
		refused = accept("home", b)
	}
	if protocol.KindOf(refused) != protocol.Unavailable {
		t.Errorf("%d batches wait, and one more: %v", n-1, refused)
	}
	for _, b := range []protocol.Batch{batch(1, "", online("n1")), data("data/other", 1, "a")} {
		for _, site := range []protocol.SiteID{"home", "away"} {
			if err := accept(site, b); err != nil {
				t.Errorf("site %s, stream %q: %v", site, b.Stream, err)
			}
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// oneHangs is a store in which one stream hangs.
type oneHangs struct {
	record
	stuck chan struct{}
}

func (s *oneHangs) CommitData(
	ctx context.Context, site protocol.SiteID, b protocol.Batch, events []protocol.Event, _ func(context.Context, []fleet.Delivery) error,
) (protocol.Ack, error) {
	if b.Stream == "data/stuck" {
		select {
		case <-s.stuck:
		case <-ctx.Done():
		}
		return protocol.Ack{}, protocol.Errorf(protocol.Unavailable, "stuck")
	}
	return s.CommitBatch(ctx, site, b, events)
}

func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	h := &oneHangs{record: record{committed: map[string]uint64{}}, stuck: stuck}
	in := ingest.New(ingest.Options{Store: h, Data: h, PublishAck: (&acks{}).publish})
	for n := range uint64(10) {
		if err := in.Accept(t.Context(), "home", protocol.Marshal(data("data/stuck", n+1, "a"))); err != nil {
			t.Error(err)
		}
	}
	in.Close()
	if err := in.Accept(t.Context(), "home", protocol.Marshal(batch(1, "", online("n1")))); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("taken after Close: %v", err)
	}
}

// TestReplicasOnOneDatabase deals the batches of two streams out to two programs, as a
// shared subscription does: they need not be sent again.
func TestReplicasOnOneDatabase(t *testing.T) {
	t.Parallel()
	_, s, a := setup(t)
	const batches, each = 200, 20
	replicas := make([]*ingest.Ingest, 2)
	for i := range replicas {
		replicas[i] = ingest.New(ingest.Options{Store: s, Data: s.data, PublishAck: a.publish, Deliver: a.deliver, Shared: true})
		t.Cleanup(replicas[i].Close)
	}
	payloads := map[string][]byte{}
	events, messages := make([]any, each), make([]string, each)
	for i := range each {
		events[i], messages[i] = online(fmt.Sprintf("n%d", i)), "a"
	}
	for name, b := range map[string]protocol.Batch{"": batch(1, "", events...), "data/temps": data("data/temps", 1, messages...)} {
		for n := range uint64(batches) {
			b.First = n*each + 1
			payloads[fmt.Sprint(name, n)] = protocol.Marshal(b)
		}
	}
	// A program that has to wait for its processor may be too late now and then: what
	// it left out is sent again.
	const enough = 5
	names, at := []string{"", "data/temps"}, map[string]uint64{}
	for round := 1; at[""] < batches*each || at["data/temps"] < batches*each; round++ {
		if round > enough {
			t.Fatalf("after %d rounds only %v are committed", enough, at)
		}
		a.mu.Lock()
		a.list = nil
		a.mu.Unlock()
		sent := 0
		for n := range uint64(batches) {
			for _, name := range names {
				if n*each < at[name] {
					continue
				}
				sent++
				if err := replicas[n%2].Accept(t.Context(), "home", payloads[fmt.Sprint(name, n)]); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, ack := range a.wait(t, sent) {
			at[ack.Stream] = max(at[ack.Stream], ack.Seq)
		}
	}
}

// wait returns the Acks once there are so many.
func (a *acks) wait(t *testing.T, n int) []protocol.Ack {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		a.mu.Lock()
		list := a.list
		a.mu.Unlock()
		if len(list) >= n {
			return list
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d batches are answered", len(list), n)
		}
	}
}
