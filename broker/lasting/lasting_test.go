package lasting

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
)

// TestHeapOfSession is what a session without subscriptions and messages takes of the heap.
func TestHeapOfSession(t *testing.T) { // not parallel to others: it reads the heap of all
	var l limits.Limits
	l.Defaults()
	log := slog.New(slog.DiscardHandler)
	m := metrics.New("test", metrics.Held{})
	s, err := Open(t.Context(), Options{
		Storage: Storage{Dir: t.TempDir(), Limits: sessions.Limits{PerIdentity: 1 << 20, PerAddress: 1 << 20}}, Logger: log, Metrics: m,
		Routes: routing.New(routing.Options{Access: access.Site("s1"), Limits: &l, Metrics: m, Logger: log, Context: t.Context()}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	const count, limit = 10_000, 500
	before := heap(t, s)
	for i := range count {
		client := fmt.Sprintf("mes@s1/%05d", i)
		id := access.Identity{Name: fmt.Sprintf("mes%d@s1", i), Site: "s1", Client: "mes"}
		one, err := s.Create(client, sessions.Owner{Name: id.Name, Identity: id.Encode(), Address: "192.0.2.1"}, 3600)
		if err != nil {
			t.Fatal(err)
		}
		sub := s.Subscriber(one)
		one.Attach(sessions.Receiver{Window: 10}, 3600).Detach(3600, nil)
		if s.Rest(sub); s.Subscriber(one) == sub {
			t.Fatal("the subscriber of a session that rests is kept")
		}
		s.Rest(s.Subscriber(one))
	}
	if each := (heap(t, s) - before) / count; each > limit {
		t.Errorf("%d bytes of the heap for each session, want at most %d", each, limit)
	} else {
		t.Logf("%d bytes of the heap for each session", each)
	}
	runtime.KeepAlive(s)
}

// heap is how many bytes are reachable once all changes are on disk.
func heap(t *testing.T, s *Sessions) int {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
