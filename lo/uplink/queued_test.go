package uplink

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
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
		s.publish = func(_ context.Context, _ string, payload []byte) error {
			mu.Lock()
			defer mu.Unlock()
			s.net.n++
			queue = append(queue, payload)
			came.Notify()
			return nil
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
