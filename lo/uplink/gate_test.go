package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
)

// memory is a Log that makes its records up.
type memory struct {
	body func(seq uint64) []byte

	mu      sync.Mutex
	trimmed uint64
	last    uint64
	grown   chan struct{}
}

func newMemory(last uint64, body func(seq uint64) []byte) *memory {
	return &memory{body: body, last: last, grown: make(chan struct{})}
}

func (m *memory) Position() (string, uint64, uint64, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return "0123456789abcdef0123456789abcdef", m.trimmed, m.last, 0
}

func (m *memory) Bodies(after uint64, maxRecords, maxBytes int) (first uint64, bodies [][]byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for seq := max(after, m.trimmed) + 1; seq <= m.last && len(bodies) < maxRecords && maxBytes > 0; seq++ {
		b := m.body(seq)
		if maxBytes -= len(b); maxBytes < 0 && len(bodies) > 0 {
			break
		}
		bodies = append(bodies, b)
	}
	return max(after, m.trimmed) + 1, bodies, nil
}

func (m *memory) Wait(ctx context.Context, after uint64) error {
	for {
		m.mu.Lock()
		last, grown := m.last, m.grown
		m.mu.Unlock()
		if last > after {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *memory) add(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last += n
	close(m.grown)
	m.grown = make(chan struct{})
}

func (m *memory) Trim(through uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimmed = max(m.trimmed, through)
	return nil
}

func (m *memory) Renew(uint64) error       { return nil }
func (m *memory) Salvage() (uint64, error) { return 0, nil }

func (m *memory) Backlog() (protocol.Backlog, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return protocol.Backlog{Last: m.last, Bytes: 100 * (m.last - m.trimmed)}, time.Now()
}

// wire is a link that carries rate bytes per second, one message after the other,
// each of which arrives after a delay and none before the one before it.
type wire struct {
	t     *testing.T
	rate  float64
	delay time.Duration
	wg    sync.WaitGroup

	mu      sync.Mutex
	free    time.Time // when it has sent what it was given
	arrives time.Time // when the last of it arrives
	streams map[string]*streamEnd
}

// streamEnd is the CO's end of a stream.
type streamEnd struct {
	up      *Uplink
	seq     uint64
	bytes   int
	probes  int // batches without events
	batches int
	last    protocol.Batch
	arrived map[uint64]time.Time
}

func (w *wire) publish(_ context.Context, _ string, payload []byte) (func(context.Context) error, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free = later(w.free, time.Now()).Add(time.Duration(float64(len(payload)+60) / w.rate * float64(time.Second)))
	w.arrives = later(w.arrives.Add(1), w.free.Add(w.delay))
	free, arrives := w.free, w.arrives
	w.wg.Go(func() {
		<-time.After(time.Until(arrives))
		up, ack := w.receive(payload)
		<-time.After(w.oneWay())
		up.Ack(ack)
	})
	return func(ctx context.Context) error {
		select {
		case <-time.After(time.Until(free)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func (w *wire) oneWay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.delay
}

func (w *wire) receive(payload []byte) (*Uplink, protocol.Ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b protocol.Batch
	if err := protocol.Unmarshal(payload, &b); err != nil {
		w.t.Error(err)
	}
	l := w.streams[b.Stream]
	l.bytes += len(payload)
	l.last = b
	switch {
	case b.Count == 0:
		l.probes++
	case b.First != l.seq+1:
		w.t.Errorf("stream %s: batch of %d after %d", b.Stream, b.First, l.seq)
	default:
		l.batches++
		for range b.Count {
			l.seq++
			if l.arrived != nil {
				l.arrived[l.seq] = time.Now()
			}
		}
	}
	return l.up, protocol.Ack{V: protocol.Version, Epoch: b.Epoch, Seq: l.seq, Stream: b.Stream}
}

// run runs the streams, connected, until do returns.
func (w *wire) run(gate *pace.Gate, streams []Options, do func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	w.mu.Lock()
	w.streams = map[string]*streamEnd{}
	for _, o := range streams {
		o.Site, o.Gate, o.Publish = "plant", gate, w.publish
		o.Resync = func(context.Context, Missed) (uint64, error) { return 0, nil }
		end := &streamEnd{up: New(o)}
		if o.Stream == "" {
			end.arrived = map[uint64]time.Time{}
		}
		w.streams[o.Stream] = end
	}
	w.mu.Unlock()
	for _, end := range w.streams {
		wg.Go(func() {
			if err := end.up.Run(ctx); err != nil {
				w.t.Error(err)
			}
		})
		end.up.Connected(true)
	}
	do()
	cancel()
	wg.Wait()
	w.wg.Wait()
}

func (w *wire) bytes(stream string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams[stream].bytes
}

// telemetry is a reading that does not compress to nothing.
func telemetry(seq uint64) []byte {
	rng := rand.New(rand.NewPCG(seq, 1))
	return protocol.Marshal(protocol.Event{
		UnixMillis: int64(1_700_000_000_000 + seq*13), Kind: protocol.DataEvent,
		Body: protocol.Marshal(protocol.DataMessage{
			V: protocol.Version, Topic: fmt.Sprintf("line/%d/temperature", seq%20),
			Payload: fmt.Appendf(nil, `{"value":%.4f,"quality":"good","serial":"%x"}`, rng.Float64()*100, rng.Uint64()),
		}),
	})
}

// readings repeats a few of them, because each costs seconds.
func readings() func(seq uint64) []byte {
	made := make([][]byte, 8192)
	for i := range made {
		made[i] = telemetry(uint64(i))
	}
	return func(seq uint64) []byte { return made[seq%uint64(len(made))] }
}

func alarm(seq uint64) []byte {
	return protocol.Marshal(protocol.Event{UnixMillis: int64(seq), Kind: protocol.NodeOfflineEvent, Node: "gateway-1", Body: protocol.Marshal(protocol.Presence{V: protocol.Version})})
}

// TestUrgent has two million readings queued, and sends news all the while: they go
// first, and the link is used.
func TestUrgent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		rate  float64 // bytes per second
		delay time.Duration
		limit int           // of the gate
		every time.Duration // a piece of news
		most  time.Duration // for it to arrive
		used  float64       // of the link, at least
	}{
		{"100 Mbit/s, 2 ms", 12.5e6, time.Millisecond, 0, 90 * time.Millisecond, 200 * time.Millisecond, 0.9},
		{"10 Mbit/s, 40 ms", 1.25e6, 20 * time.Millisecond, 0, 190 * time.Millisecond, 200 * time.Millisecond, 0.9},
		{"1 Mbit/s, 600 ms", 125e3, 300 * time.Millisecond, 0, 1700 * time.Millisecond, 700 * time.Millisecond, 0.85},
		{"64 kbit/s, 600 ms", 8e3, 300 * time.Millisecond, 0, 1700 * time.Millisecond, 1500 * time.Millisecond, 0.85},
		{"64 kbit/s, 20 ms", 8e3, 10 * time.Millisecond, 0, 1700 * time.Millisecond, 1500 * time.Millisecond, 0.85},
		{"limited to 64 kbit/s", 12.5e6, time.Millisecond, 8e3, 1700 * time.Millisecond, time.Second, 0},
	} {
		if testing.Short() && tt.rate > 1e6 && tt.limit == 0 {
			continue // millions of readings
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &wire{t: t, rate: tt.rate, delay: tt.delay}
				events := newMemory(0, alarm)
				w.run(pace.New(pace.Options{Rate: tt.limit}), []Options{
					{Journal: events},
					{Journal: newMemory(2_000_000, readings()), Stream: "data/telemetry", Priority: 2},
				}, func() {
					<-time.After(2 * tt.every)
					began, before := time.Now(), w.bytes("data/telemetry")
					var sent []time.Time
					for range max(5, count(20)) {
						sent = append(sent, time.Now())
						events.add(1)
						<-time.After(tt.every)
					}
					carried := float64(w.bytes("data/telemetry")-before) / time.Since(began).Seconds() / tt.rate
					<-time.After(tt.most)
					w.mu.Lock()
					defer w.mu.Unlock()
					worst := time.Duration(0)
					for i, at := range sent {
						arrived, ok := w.streams[""].arrived[uint64(i+1)]
						if !ok {
							t.Errorf("alarm %d did not arrive", i)
							continue
						}
						worst = max(worst, arrived.Sub(at))
					}
					t.Logf("worst %v, link used to %.0f %%, telemetry sent %d in %d batches", worst, carried*100, w.streams["data/telemetry"].seq, w.streams["data/telemetry"].batches)
					if worst > tt.most {
						t.Errorf("an alarm arrived after %v, want at most %v", worst, tt.most)
					}
					if carried < tt.used {
						t.Errorf("the link was used to %.0f %%", carried*100)
					}
				})
			})
		})
	}
}

// TestLinkChanges takes the link from 10 Mbit/s to 64 kbit/s and back, such as from
// a cable to a modem, under one connection.
func TestLinkChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const fast, slow = 1.25e6, 8e3
		w := &wire{t: t, rate: fast, delay: 20 * time.Millisecond}
		events := newMemory(0, alarm)
		w.run(pace.New(pace.Options{}), []Options{
			{Journal: events},
			{Journal: newMemory(100_000_000, readings()), Stream: "data/telemetry", Priority: 2},
		}, func() {
			change := func(rate float64, delay time.Duration) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.rate, w.delay = rate, delay
			}
			used := func(of float64, d time.Duration) float64 {
				before := w.bytes("data/telemetry")
				<-time.After(d)
				return float64(w.bytes("data/telemetry")-before) / d.Seconds() / of
			}
			if u := used(fast, 5*time.Second); u < 0.9 {
				t.Errorf("the fast link was used to %.0f %%", u*100)
			}
			change(slow, 300*time.Millisecond)
			<-time.After(time.Minute) // what was under way needs 20 s
			sent := time.Now()
			events.add(1)
			if u := used(slow, time.Minute); u < 0.8 {
				t.Errorf("the slow link was used to %.0f %%", u*100)
			}
			w.mu.Lock()
			if took := w.streams[""].arrived[1].Sub(sent); took < 0 || took > 1500*time.Millisecond {
				t.Errorf("an alarm arrived after %v on the slow link", took)
			}
			w.mu.Unlock()
			change(fast, 20*time.Millisecond)
			<-time.After(20 * time.Second)
			if u := used(fast, 5*time.Second); u < 0.9 {
				t.Errorf("the fast link was used to %.0f %% when it was back", u*100)
			}
		})
	})
}
