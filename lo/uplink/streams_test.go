package uplink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
)

// TestStreamsOnABadNetwork has the events and three streams of data share one gate,
// with batches and Acks lost, doubled, delayed and reordered, centres put back,
// streams restarted, and the CO asking for the backlog all the while.
func TestStreamsOnABadNetwork(t *testing.T) {
	t.Parallel()
	for seed := range uint64(count(20)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				gate := pace.New(pace.Options{Rate: []int{0, 20_000}[seed%2]})
				streams := make([]*site, 4)
				for i := range streams {
					s := newSite(t, seed*10+uint64(i))
					s.opts = Options{Gate: gate, MaxBatchEvents: 20, Window: 4, ResendAfter: 5 * time.Second}
					if i > 0 {
						s.opts.Stream, s.opts.Priority = fmt.Sprintf("data/%d", i), i
						s.opts.Linger = time.Duration(i) * 50 * time.Millisecond
					}
					s.net.refuse, s.net.hang, s.net.lose, s.net.double, s.net.late = 5, 2, 5, 10, 30
					s.net.loseAck, s.net.doubleAck, s.net.lateAck = 10, 10, 20
					s.start()
					streams[i] = s
				}
				rng := rand.New(rand.NewPCG(seed, 5))
				for range 40 {
					s := streams[rng.IntN(len(streams))]
					s.produce(rng.IntN(60))
					switch rng.IntN(10) {
					case 0:
						for _, s := range streams {
							s.u.Connected(false)
						}
						<-time.After(time.Duration(rng.IntN(20)) * time.Second)
						for _, s := range streams {
							s.u.Connected(true)
						}
					case 1:
						s.shut()
						s.start()
					case 2:
						s.c.restore(database{retired: map[string]bool{}})
					case 3, 4, 5:
						s.u.Ack(protocol.Ack{V: protocol.Version, Ask: true})
					}
					<-time.After(time.Duration(rng.IntN(1500)) * time.Millisecond)
				}
				for _, s := range streams {
					s.net.perfect()
					s.produce(5)
				}
				for _, s := range streams {
					s.drain()
				}
				if inFlight, data, _ := gate.Load(); inFlight != 0 || data != 0 {
					t.Errorf("%d bytes are under way for the gate, %d of data", inFlight, data)
				}
				for _, s := range streams {
					s.shut()
					s.check()
				}
				if _, _, joined := gate.Load(); joined != 0 {
					t.Errorf("%d streams did not leave", joined)
				}
			})
		})
	}
}

// TestShares has streams compete for a link, and counts what each gets.
func TestShares(t *testing.T) {
	t.Parallel()
	data := func(name string, priority int) Options { return Options{Stream: "data/" + name, Priority: priority} }
	events := func() Options { return Options{} }
	for _, tt := range []struct {
		name    string
		limit   int
		streams []Options
		least   map[string]float64
	}{
		{"strict, but not for ever", 0, []Options{data("high", 1), data("normal", 2), data("low", 3)}, map[string]float64{"data/high": 0.8, "data/normal": 0.05, "data/low": 0.05}},
		{"equal", 0, []Options{data("a", 2), data("b", 2), data("c", 2), data("d", 2)}, map[string]float64{"data/a": 0.23, "data/b": 0.23, "data/c": 0.23, "data/d": 0.23}},
		{"events are many", 0, []Options{events(), data("low", 3)}, map[string]float64{"": 0.8, "data/low": 0.04}},
		{"under a rate limit", 4000, []Options{events(), data("high", 1), data("low", 3)}, map[string]float64{"": 0.75, "data/high": 0.05, "data/low": 0.05}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &wire{t: t, rate: 16e3, delay: 50 * time.Millisecond}
				for i := range tt.streams {
					tt.streams[i].Journal = newMemory(1_000_000, readings())
				}
				w.run(pace.New(pace.Options{Rate: tt.limit}), tt.streams, func() {
					<-time.After(5 * time.Second)
					before, total := map[string]int{}, 0
					for _, o := range tt.streams {
						before[o.Stream] = w.bytes(o.Stream)
						total -= before[o.Stream]
					}
					<-time.After(2 * time.Minute)
					for _, o := range tt.streams {
						total += w.bytes(o.Stream)
					}
					for _, o := range tt.streams {
						share := float64(w.bytes(o.Stream)-before[o.Stream]) / float64(total)
						t.Logf("stream %q got %.1f %%", o.Stream, share*100)
						if share < tt.least[o.Stream] {
							t.Errorf("stream %q got %.1f %%, want at least %.1f %%", o.Stream, share*100, tt.least[o.Stream]*100)
						}
					}
				})
			})
		})
	}
}

// stream runs a data stream on a journal of its own, with a CO that notes all.
func newStream(t *testing.T, o Options) *site {
	s := newSite(t, 1)
	s.opts = o
	s.opts.Stream, s.opts.Priority = "data/readings", 2
	return s
}

// message appends a message of machine data to the stream's journal.
func (s *site) message(text string, expiry time.Duration) {
	s.t.Helper()
	body := protocol.Marshal(protocol.Event{
		UnixMillis: s.j.Now().UnixMilli(), Kind: protocol.DataEvent,
		Body: protocol.Marshal(protocol.DataMessage{V: protocol.Version, Topic: "t", Payload: []byte(text), ExpiryMillis: uint64(expiry.Milliseconds())}),
	})
	if _, err := s.j.Append(context.Background(), journal.Entry{Class: journal.Data, Body: body}); err != nil {
		s.t.Fatal(err)
	}
}

// texts returns the messages that the CO has; an expired one is "-".
func (s *site) texts() (texts []string) {
	for _, e := range s.c.seen().log {
		var m protocol.DataMessage
		switch e.event.Kind {
		case protocol.DataEvent:
			if err := protocol.Unmarshal(e.event.Body, &m); err != nil {
				s.t.Fatal(err)
			}
			texts = append(texts, string(m.Payload))
		case protocol.DataExpired:
			texts = append(texts, "-")
		default:
			texts = append(texts, string(e.event.Kind))
		}
	}
	return texts
}

// TestExpiry lets messages grow old in the queue, and on the way.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, Options{MaxAge: time.Minute, ResendAfter: 5 * time.Second})
		s.start()
		s.drain()
		s.u.Connected(false)
		synctest.Wait()
		s.message("short", 5*time.Second)
		s.message("long", time.Hour)
		s.message("none", 0)
		<-time.After(10 * time.Second)
		s.u.Connected(true)
		s.drain()
		if got := strings.Join(s.texts(), " "); got != "- long none" {
			t.Errorf("after 10 s: %s", got)
		}
		s.net.mu.Lock()
		s.net.lose = 100 // the broker acknowledges it, and the CO never receives it
		s.net.mu.Unlock()
		s.message("fresh", 4500*time.Millisecond)
		<-time.After(4 * time.Second)
		s.net.perfect()
		s.drain() // sent again after ResendAfter
		if got := strings.Join(s.texts(), " "); got != "- long none -" {
			t.Errorf("sent again: %s", got)
		}
		s.u.Connected(false)
		s.message("old", time.Hour)
		<-time.After(2 * time.Minute) // more than MaxAge
		s.u.Connected(true)
		s.drain()
		if got := strings.Join(s.texts(), " "); got != "- long none - -" {
			t.Errorf("after MaxAge: %s", got)
		}
		if b := s.u.Status().Backlog; b.Expired != 3 || b.Last != 5 {
			t.Errorf("backlog %+v, want 3 expired of 5", b)
		}
		s.shut()
	})
}

// TestLossIsMadeUpFor drops records under the byte bound: what the CO holds is
// then brought up to date, once, by what Resync appends.
func TestLossIsMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, Options{})
		s.journal.MaxBytes = 64 << 10
		s.start()
		s.drain()
		s.u.Connected(false)
		synctest.Wait()
		for i := range 1000 {
			s.message(fmt.Sprintf("%d %s", i, strings.Repeat("x", 200)), 0)
		}
		if s.j.Stats().Dropped == 0 {
			t.Fatal("nothing was dropped")
		}
		s.u.Connected(true)
		s.drain()
		s.shut()
		lost, snapshots, lastLoss, lastSnapshot := 0, 0, 0, 0
		for i, e := range s.c.seen().log {
			switch e.event.Kind {
			case protocol.DataLost:
				lost, lastLoss = lost+1, i
			case protocol.SnapshotEvent:
				snapshots, lastSnapshot = snapshots+1, i
			}
		}
		if lost == 0 || snapshots != 1 || lastSnapshot < lastLoss {
			t.Errorf("%d losses up to position %d, %d snapshots up to %d", lost, lastLoss, snapshots, lastSnapshot)
		}
	})
}

// TestAsk has the CO ask for the backlog while its Acks are late: it gets it
// at once, once a second, and what is under way is not disturbed.
func TestAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var batches []protocol.Batch
		s := newStream(t, Options{})
		s.publish = func(ctx context.Context, topic string, payload []byte) (func(context.Context) error, error) {
			var b protocol.Batch
			if err := protocol.Unmarshal(payload, &b); err != nil {
				t.Error(err)
			}
			mu.Lock()
			batches = append(batches, b)
			n := len(batches)
			mu.Unlock()
			if n == 1 || b.Count == 0 {
				return s.net.publish(ctx, topic, payload)
			}
			return func(ctx context.Context) error {
				<-time.After(8 * time.Second) // the CO is slow
				outcome, err := s.net.publish(ctx, topic, payload)
				return errors.Join(err, outcome(ctx))
			}, nil
		}
		s.start()
		s.message("first", 0)
		<-time.After(100 * time.Millisecond)
		ask := protocol.Ack{V: protocol.Version, Stream: "data/readings", Ask: true}
		for range 30 { // 3 s
			s.u.Ack(ask)
			<-time.After(100 * time.Millisecond)
		}
		s.drain()
		s.shut()
		reported, restarts := 0, 0
		for i, b := range batches {
			if b.Stream != "data/readings" || b.SentMillis == 0 {
				t.Errorf("batch %d: stream %q, sent at %d", i, b.Stream, b.SentMillis)
			}
			switch {
			case i == 0 && b.Count != 0:
				t.Error("no probe at first")
			case i > 0 && b.Count == 0:
				reported++
				if b.Backlog.Last != 1 || b.Backlog.Bytes == 0 || b.Backlog.OldestMillis < 90 {
					t.Errorf("reported Backlog = %+v", b.Backlog)
				}
			case b.Count > 0:
				restarts++
			}
		}
		if reported < 3 || reported > 4 || restarts != 1 {
			t.Errorf("reported %d times in 3 s, the message was sent %d times", reported, restarts)
		}
		if b := s.u.Status().Backlog; b.RTTMicros < 8e6 || b.BytesPerSecond == 0 || b.OldestMillis != 0 {
			t.Errorf("Status().Backlog = %+v", b)
		}
	})
}

// TestGather has single messages wait for others.
func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, Options{Linger: time.Second})
		s.start()
		s.drain()
		s.net.mu.Lock()
		before := s.net.n
		s.net.mu.Unlock()
		for i := range 50 { // 5 s
			s.message(fmt.Sprint(i), 0)
			<-time.After(100 * time.Millisecond)
		}
		s.drain()
		if n := s.net.n - before; n < 4 || n > 6 {
			t.Errorf("%d batches in 5 s", n)
		}
		s.shut()
	})
}

// TestManyStreams has 64 streams in one registry, and removes them again; and it
// looks at what they cost.
func TestManyStreams(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	const streams = 64
	registry := prometheus.NewRegistry()
	gate := pace.New(pace.Options{})
	dir := t.TempDir()
	before := inUse()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	ups := make([]*Uplink, streams)
	journals := make([]*journal.Journal, streams)
	for i := range streams {
		j, err := journal.Open(filepath.Join(dir, fmt.Sprint(i)), journal.Options{MaxBytes: 256 << 20})
		if err != nil {
			t.Fatal(err)
		}
		journals[i] = j
		up := New(Options{
			Journal: j, Site: "plant", Stream: protocol.DataStream(fmt.Sprintf("rule-%d", i)), Priority: 2, Gate: gate, Registerer: registry,
			Resync:  func(context.Context, Missed) (uint64, error) { return 0, nil },
			Publish: func(context.Context, string, []byte) (func(context.Context) error, error) { return answer(nil) },
		})
		ups[i] = up
		wg.Go(func() {
			if err := up.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	again := New(Options{
		Journal: journals[0], Site: "plant", Stream: protocol.DataStream("rule-0"), Priority: 2, Gate: gate, Registerer: registry,
		Resync: func(context.Context, Missed) (uint64, error) { return 0, nil }, Publish: func(context.Context, string, []byte) (func(context.Context) error, error) { return answer(nil) },
	})
	again.Close() // it was not in the registry, and removes nothing
	cost := inUse() - before
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if len(f.GetMetric()) < streams && f.GetName() != "colony_lo_uplink_restarts_total" {
			t.Errorf("%s has %d streams", f.GetName(), len(f.GetMetric()))
		}
	}
	t.Logf("%d idle streams take %d KiB", streams, cost>>10)
	if cost > 6<<20 {
		t.Errorf("%d idle streams hold %d bytes", streams, cost)
	}
	cancel()
	wg.Wait()
	for i := range streams {
		ups[i].Close()
		if err := journals[i].Close(); err != nil {
			t.Error(err)
		}
	}
	if families, err = registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d families are left: %v", len(families), err)
	}
}

// inUse returns the bytes of heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
