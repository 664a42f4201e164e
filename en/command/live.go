package command

import (
	"context"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// frameBytes and leastFrame bound from which size on a frame is sent at once: half of what there is credit for, so that over a slow way little
	// waits in one frame for its turn.
	frameBytes = 8 << 10
	leastFrame = 2 << 10
)

// lease is how long a live command goes on after a Credit.
const lease = wire.LeaseMillis * time.Millisecond

// errRead ends a command whose reader has left: the command has then done what was asked.
var errRead = Failf("", "its reader has ended")

// A Live sends the output of a command while it runs. It sends no more than the reader has given credit for, and only while the reader renews
// the lease. It is for one goroutine; only the Service calls it from others.
type Live struct {
	send   func(ctx context.Context, m wire.Frame) error
	ctx    context.Context // of the execution: it ends with the lease
	end    context.CancelCauseFunc
	budget uint64
	frame  wire.Frame // that is being filled
	seq    uint64
	items  uint64 // of the frames so far
	inputs inputs

	mu     sync.Mutex // protects what follows
	credit uint64
	sent   uint64
	until  time.Time
	news   notify.Signal
}

// openLive begins to send live for a command of a kind that does. done sends the last frame, and is to be called.
func (s *Service) openLive(ctx context.Context, c *wire.Command) (l *Live, done func(r *wire.Result)) {
	d, err := wire.Lookup(c.Kind)
	if err != nil || !d.Live {
		return nil, func(*wire.Result) {}
	}
	l = &Live{budget: d.Budget, until: time.Now().Add(lease), news: notify.New(), inputs: inputs{news: notify.New()}}
	if c.Budget > 0 {
		l.budget = c.Budget
	}
	l.send = func(ctx context.Context, m wire.Frame) error { return s.o.Uplink.Frame(ctx, c.ID, m) }
	l.ctx, l.end = context.WithCancelCause(ctx)
	s.mu.Lock()
	s.live[c.ID] = l
	s.mu.Unlock()
	var watch sync.WaitGroup
	watch.Go(l.watch)
	return l, func(r *wire.Result) {
		s.mu.Lock()
		delete(s.live, c.ID)
		s.mu.Unlock()
		if r.State == wire.Failed && r.Code == "" { // its reader has ended it
			r.State, r.Message = wire.Done, ""
		}
		last := l.frame
		last.End, last.Code, last.Message = true, r.Code, r.Message
		_ = l.write(context.WithoutCancel(ctx), last) // it may get lost
		l.end(nil)
		watch.Wait()
	}
}

// within returns the context of an execution.
func (l *Live) within(ctx context.Context) context.Context {
	if l == nil {
		return ctx
	}
	return l.ctx
}

// renew takes a Credit.
func (l *Live) renew(m wire.Credit) {
	if m.End {
		l.end(errRead)
		return
	}
	l.mu.Lock()
	l.credit, l.until = max(l.credit, m.Bytes), time.Now().Add(lease)
	l.mu.Unlock()
	l.news.Notify()
}

// watch ends the execution when the lease expires.
func (l *Live) watch() {
	for l.ctx.Err() == nil {
		l.mu.Lock()
		left := time.Until(l.until)
		l.mu.Unlock()
		if left <= 0 {
			l.end(Failf(wire.NotFollowed, "no reader renewed the lease for %s", lease))
			return
		}
		_ = retry.Sleep(l.ctx, left) // the loop looks for its end
	}
}

// Send adds an item, encoded. It waits for credit. An error ends the execution.
func (l *Live) Send(item []byte) error {
	most := l.most()
	if len(l.frame.Data) > 0 && len(l.frame.Data)+len(item) > most {
		if err := l.Flush(); err != nil {
			return err
		}
	}
	l.frame.Data = append(l.frame.Data, item...)
	l.frame.Items++
	if len(l.frame.Data) >= most {
		return l.Flush()
	}
	return l.ctx.Err()
}

// most returns from which size on a frame is sent at once.
func (l *Live) most() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(min(max((max(l.credit, l.sent)-l.sent)/2, leastFrame), frameBytes))
}

// Flush sends what was added, without waiting for more.
func (l *Live) Flush() error {
	if l.frame.Items == 0 {
		return l.ctx.Err()
	}
	size := uint64(len(l.frame.Data))
	if l.sent+size > l.budget {
		return Failf(wire.BudgetUsed, "it has sent as much as it was allowed to: %d bytes", l.sent)
	}
	for covered, credit := l.covered(size); !covered; {
		if err := l.news.Wait(l.ctx); err != nil {
			return err
		}
		was := credit
		if covered, credit = l.covered(size); !covered && credit == was && l.sent > 0 {
			// The reader renews the lease and gives no more: it may not know of what got lost on the way, and would never.
			if err := l.write(l.ctx, wire.Frame{}); err != nil {
				return err
			}
		}
	}
	m := l.frame
	l.frame = wire.Frame{}
	return l.write(l.ctx, m)
}

// covered reports whether there is credit for so many more bytes, and all credit that there is.
func (l *Live) covered(size uint64) (ok bool, credit uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent+size <= l.credit, l.credit
}

// write sends a frame. One that the link did not take is lost, and counted in the next one.
func (l *Live) write(ctx context.Context, m wire.Frame) error {
	l.seq++
	m.V, m.Seq = protocol.Version, l.seq
	l.mu.Lock()
	l.sent += uint64(len(m.Data))
	l.mu.Unlock()
	l.items += m.Items
	m.TotalItems, m.TotalBytes = l.items, l.sent
	if err := l.send(ctx, m); err != nil {
		l.frame.LostItems += m.Items + m.LostItems
		l.frame.LostBytes += uint64(len(m.Data)) + m.LostBytes
	}
	return context.Cause(ctx)
}
