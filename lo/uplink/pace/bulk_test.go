package pace

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

// A narrow is a link of so many bytes per second and a way: what waits before it waits in order.
type narrow struct {
	rate int
	way  time.Duration

	mu   sync.Mutex // guards what follows
	free time.Time  // when the link has carried what was sent
}

// carry returns after n bytes were acknowledged.
func (l *narrow) carry(n int) {
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	arrives := l.free.Add(l.way)
	l.mu.Unlock()
	time.Sleep(time.Until(arrives))
}

// latency is how long events took to be acknowledged, one each seven tenths of a second, with as much as possible of bulk beside them or nothing, and
// how much of that was carried.
func latency(t *testing.T, beside bool) (p50, p90 time.Duration, carried int) {
	synctest.Test(t, func(t *testing.T) {
		g, link := New(Options{}), &narrow{rate: 8000, way: 600 * time.Millisecond}
		ctx, cancel := context.WithCancel(t.Context())
		var flows sync.WaitGroup
		var mu sync.Mutex
		if beside {
			b := g.Bulk()
			flows.Go(func() {
				for {
					n := b.Room()
					end, err := b.Wait(ctx, n)
					if err != nil {
						return
					}
					flows.Go(func() {
						link.carry(n)
						end(true)
						mu.Lock()
						carried += n
						mu.Unlock()
					})
				}
			})
		}
		events := g.Join(0, notify.New())
		var took []time.Duration
		for range 400 {
			began := time.Now()
			if ok, _ := events.Ask(200, began); !ok {
				t.Fatal("an event has to wait for its turn")
			}
			p := events.Begin(200, 200, began)
			link.carry(200)
			events.End(p, true, time.Now())
			took = append(took, time.Since(began))
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		flows.Wait()
		slices.Sort(took)
		p50, p90 = took[len(took)/2], took[len(took)*9/10]
	})
	return p50, p90, carried
}

// TestBulkDelaysNoEvents follows something live that could fill the link many times: events take hardly longer, and most of what they leave of
// the link is used.
func TestBulkDelaysNoEvents(t *testing.T) {
	t.Parallel()
	p50, p90, _ := latency(t, false)
	with50, with90, carried := latency(t, true)
	t.Logf("events alone: p50 %s, p90 %s; with bulk: %s, %s; %d bytes carried", p50, p90, with50, with90, carried)
	if with50 > p50+p50/10 || with90 > p90+p90/10 {
		t.Errorf("events take %s and %s, without bulk %s and %s", with50, with90, p50, p90)
	}
	if least := 8000 * 400 * 7 / 10 / 4; carried < least {
		t.Errorf("%d bytes carried, want %d at least", carried, least)
	}
}

// TestSmall has small pieces go at once while a large one waits, and no more of them than their part of the link.
func TestSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{}).Bulk()
		if b.Small(mostSmall+1) != nil {
			t.Error("a large piece goes at once")
		}
		sent := 0
		for range 10 * 60 { // a minute
			for end := b.Small(100); end != nil; end = b.Small(100) {
				sent += 100
				end(true)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if most := smallBurst + 60*leastSmall; sent > most || sent < most*9/10 {
			t.Errorf("%d bytes went at once in a minute, of a link of which nothing is known", sent)
		}
		limited := New(Options{Rate: 800}).Bulk()
		sent = 0
		for range 60 {
			for end := limited.Small(100); end != nil; end = limited.Small(100) {
				sent += 100
				end(true)
			}
			time.Sleep(time.Second)
		}
		if most := smallBurst + 60*100; sent > most {
			t.Errorf("%d bytes went at once in a minute, of a link that is limited to 800 a second", sent)
		}
	})
}

// TestBulkComesBack has a link that was cut, so that bulk had its part of it halved many times, carry small pieces: nothing but an acknowledgement
// makes room for the next one, and what goes grows to what the link carries.
func TestBulkComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, link := New(Options{}), &narrow{rate: 1 << 20, way: 10 * time.Millisecond}
		b := g.Bulk()
		ctx, cancel := context.WithCancel(t.Context())
		var flows sync.WaitGroup
		var carried atomic.Int64
		flows.Go(func() {
			for {
				n := min(b.Room(), 2<<10) // what the agent has credit for, while little comes through
				end, err := b.Wait(ctx, n)
				if err != nil {
					return
				}
				flows.Go(func() {
					link.carry(n)
					end(true)
					carried.Add(int64(n))
				})
			}
		})
		rate := func() int64 {
			before := carried.Load()
			time.Sleep(5 * time.Second)
			return (carried.Load() - before) / 5
		}
		time.Sleep(10 * time.Second)
		before := rate()
		if before < 1<<20*8/10 {
			t.Errorf("%d bytes a second in small pieces, of a link that carries %d", before, 1<<20)
		}
		g.mu.Lock()
		b.share.part, b.share.halved = 0.001, time.Now()
		g.mu.Unlock()
		if got := rate(); got < before/8 {
			t.Errorf("%d bytes a second just after the cut, %d before", got, before)
		}
		time.Sleep(10 * time.Second)
		if got := rate(); got < before*9/10 {
			t.Errorf("%d bytes a second in the end, %d before the cut", got, before)
		}
		cancel()
		flows.Wait()
	})
}
