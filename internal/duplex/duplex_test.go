package duplex_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/duplex"
	"github.com/colonyfleet/colony/protocol/command"
)

// A way carries segments from one end to the other one, in their order; it loses some, and is cut for a while.
type way struct {
	to   *duplex.Peer
	rng  *rand.Rand
	loss float64
	cut  func() bool
	calm *atomic.Bool
	t    *testing.T

	queue chan arrival

	mu   sync.Mutex // protects what follows
	sent int        // bytes
}

func (w *way) emit(m *command.Segment) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent += len(m.Data)
	if !w.calm.Load() && (w.rng.Float64() < w.loss || w.cut()) {
		return nil
	}
	w.queue <- arrival{*m, time.Now().Add(100 * time.Millisecond)}
	return nil
}

// carry delivers what was sent, in its order, until ctx ends.
func (w *way) carry(ctx context.Context) {
	for {
		select {
		case a := <-w.queue:
			time.Sleep(time.Until(a.at))
			if err := w.to.Accept(&a.m); err != nil {
				w.t.Error(err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// An arrival is a segment that is under way.
type arrival struct {
	m  command.Segment
	at time.Time
}

// TestBothWays has two ends write to each other over ways that lose three in a hundred messages, and all for ten seconds: what each wrote arrives at the other
// one, whole and in its order, and both learn that it has.
func TestBothWays(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]float64{"sound": 0, "lossy": 0.03} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { bothWays(t, loss) })
		})
	}
}

func bothWays(t *testing.T, loss float64) {
	began := time.Now()
	var calm atomic.Bool // what was written has arrived: an end that has closed acknowledges nothing more
	cut := func() bool { s := time.Since(began); return loss > 0 && s > 3*time.Second && s < 13*time.Second }
	ends := [2]*duplex.Peer{duplex.New(), duplex.New()}
	var mu sync.Mutex // protects got
	var got [2]bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sending, serving sync.WaitGroup
	const size = 300_000
	want := bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), size/36)
	for i, p := range ends {
		w := &way{to: ends[1-i], rng: rand.New(rand.NewPCG(1, uint64(i))), loss: loss, cut: cut, calm: &calm, t: t, queue: make(chan arrival, 1000)}
		serving.Go(func() { w.carry(ctx) })
		sending.Go(func() {
			if err := p.Send(ctx, w.emit); err != nil {
				t.Errorf("end %d: %v", i, err)
			}
			if w.mu.Lock(); loss == 0 && w.sent > size+10_000 {
				t.Errorf("end %d sent %d bytes for %d", i, w.sent, size)
			}
			w.mu.Unlock()
		})
		serving.Go(func() {
			err := p.Serve(ctx, func(list []command.Record) error {
				mu.Lock()
				defer mu.Unlock()
				for _, r := range list {
					got[i].Write(r.Data)
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("end %d: %v", i, err)
			}
		})
		sending.Go(func() {
			for rest := want; len(rest) > 0; {
				n := min(len(rest), 1+int(rest[0])*13%command.MaxRecord)
				if err := p.Write(ctx, &command.Record{Kind: command.Stdout, Data: rest[:n]}); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
		})
	}
	for sizes := func() int { mu.Lock(); defer mu.Unlock(); return got[0].Len() + got[1].Len() }; sizes() < 2*len(want); {
		time.Sleep(time.Second)
	}
	calm.Store(true)
	for _, p := range ends {
		p.Close()
	}
	sending.Wait()
	time.Sleep(time.Second) // the last acknowledgement is on its way
	stop()
	serving.Wait()
	for i := range ends {
		if !bytes.Equal(got[i].Bytes(), want) {
			t.Errorf("end %d has %d bytes of %d, or others", i, got[i].Len(), len(want))
		}
	}
}

// TestSlowReader has an end do nothing with what arrives: no more than a window is taken, and the writer waits.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := duplex.New(), duplex.New()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		w := &way{to: b, rng: rand.New(rand.NewPCG(1, 1)), cut: func() bool { return false }, calm: new(atomic.Bool), t: t, queue: make(chan arrival, 1000)}
		var group sync.WaitGroup
		group.Go(func() { w.carry(ctx) })
		group.Go(func() { _ = a.Send(ctx, w.emit) })
		group.Go(func() { _ = b.Serve(ctx, func([]command.Record) error { <-ctx.Done(); return nil }) })
		written := 0
		for a.Write(ctx, &command.Record{Kind: command.Stdin, Data: make([]byte, 1000)}) == nil {
			written++
		}
		group.Wait()
		if written < 60 || written > 70 {
			t.Errorf("%d records of 1000 bytes were taken of nobody who reads", written)
		}
		if quiet := time.Since(b.Heard()); quiet > 10*time.Second {
			t.Errorf("an end that waits was not heard for %s", quiet)
		}
	})
}
