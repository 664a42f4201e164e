package uplink

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

// TestWhatIsSentTwiceIsNotSentForEver has a broker that acknowledges batches at once, and a
// CO that commits them one after the other, slowly. Once what is queued there is
// sent a second time, each answer to a second copy says nothing new: that is no
// reason to send all a third time.
func TestWhatIsSentTwiceIsNotSentForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1)
		s.opts = Options{MaxBatchEvents: 10, MaxInFlightBytes: 1 << 20, Window: 16}
		var mu sync.Mutex
		var queue [][]byte
		came := notify.New()
		s.publish = func(_ context.Context, _ string, payload []byte) (func(context.Context) error, error) {
			mu.Lock()
			defer mu.Unlock()
			s.net.n++
			queue = append(queue, payload)
			came.Notify()
			return answer(nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				mu.Lock()
				var next []byte
				if len(queue) > 0 {
					next, queue = queue[0], queue[1:]
				}
				mu.Unlock()
				if next == nil {
					select {
					case <-came.C():
						continue
					case <-ctx.Done():
						return
					}
				}
				<-time.After(100 * time.Millisecond)
				if err := s.net.deliver(next); err != nil {
					t.Error(err)
				}
			}
		}()
		s.start()
		const events = 4000
		s.produce(events)
		<-time.After(5 * time.Second)
		s.u.Connected(true) // the connection is a new one, and the CO knows nothing of that
		s.drain()
		s.shut()
		cancel()
		<-done
		mu.Lock()
		sent := s.net.n
		mu.Unlock()
		// Once each, the window a second time, and some that are small.
		if most := events/10 + 100; sent > most {
			t.Errorf("%d batches were sent, want at most %d", sent, most)
		}
		t.Logf("%d batches for %d events", sent, events)
		s.check()
	})
}

// TestOrder has a network that takes some time, or fails, before it has a message: the next one
// is not handed to it before, in any order of goroutines, and the CO leaves nothing out.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 1)
		s.opts = Options{MaxBatchEvents: 10, MaxInFlightBytes: 1 << 20}
		rng := rand.New(rand.NewPCG(1, 1))
		calls, most, last := atomic.Int32{}, atomic.Int32{}, uint64(0)
		s.publish = func(ctx context.Context, topic string, payload []byte) (func(context.Context) error, error) {
			most.Store(max(most.Load(), calls.Add(1)))
			defer calls.Add(-1)
			switch rng.IntN(100) { // without a lock: calls come one after the other
			case 0:
				<-time.After(time.Second)
				return nil, errRefused
			case 1, 2, 3, 4, 5, 6, 7, 8, 9:
				<-time.After(time.Duration(rng.IntN(50)) * time.Millisecond)
			default:
				runtime.Gosched()
			}
			var b protocol.Batch
			if err := protocol.Unmarshal(payload, &b); err != nil {
				t.Error(err)
			}
			if b.Count > 0 && b.First > last+1 {
				t.Errorf("batch of %d after %d", b.First, last)
			}
			if b.Count > 0 {
				last = b.First + uint64(b.Count) - 1
			}
			outcome, err := s.net.publish(ctx, topic, payload)
			return func(ctx context.Context) error {
				<-time.After(300 * time.Millisecond)
				return outcome(ctx)
			}, err
		}
		s.start()
		s.produce(4000)
		s.drain()
		s.shut()
		s.check()
		if most.Load() != 1 {
			t.Errorf("Publish was called by %d goroutines at once", most.Load())
		}
	})
}
