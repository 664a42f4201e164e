package uplink

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// phase is what the link does.
type phase int

const (
	idle    phase = iota // not connected
	probing              // asking the centre where it stands
	sending              // sending from there
)

const (
	minBudget   = 4 << 10
	startBudget = 32 << 10
	maxBackoff  = 30 * time.Second
	// snapshotTries is how often a snapshot is taken in a row that events overtook.
	snapshotTries = 16
	snapshotKey   = "snapshot"
	forever       = time.Hour
)

// link is the state of sending. Only Run's goroutine touches it.
type link struct {
	u       *Uplink
	ctx     context.Context
	wg      *sync.WaitGroup
	results chan result

	phase   phase
	round   context.Context // of what was sent since the last restart
	endRnd  context.CancelFunc
	retryAt time.Time // nothing is sent before
	fails   int       // in a row without progress

	epoch   string
	acked   uint64 // the centre has it; equal to what the journal forgot
	next    uint64 // to send
	sent    uint64 // highest sent by this process
	probe   *flight
	flights []*flight // in sequence
	held    *flight   // encoded, waits for the rate limit
	moved   time.Time // last progress

	pacing
	sync syncState
	gaps uint64
}

// pacing is how much the link carries.
type pacing struct {
	bytes   int           // of flights
	budget  int           // bytes that may be in flight
	latency time.Duration // of the last batch
}

// syncState is what the link knows of a gap.
type syncState struct {
	declaring bool   // batches tell the centre what is gone
	declared  uint64 // the sequence up to which it is
	snapshot  uint64 // the newest snapshot in the journal
	stale     bool   // events overtook it, so that it may be older than its place

	foreign time.Time // since when Acks name another epoch only
}

func newLink(ctx context.Context, u *Uplink, wg *sync.WaitGroup) *link {
	l := &link{u: u, ctx: ctx, wg: wg, results: make(chan result), pacing: pacing{budget: startBudget}}
	l.round, l.endRnd = context.WithCancel(ctx)
	l.epoch, l.acked, _, _ = u.opts.Journal.Position()
	return l
}

// read takes in the mail: first whether the link is up, then the Acks, which
// came on it.
func (l *link) read(now time.Time) {
	l.u.mu.Lock()
	m := l.u.mail
	l.u.mail = mail{up: m.up}
	l.u.mu.Unlock()
	if m.changed && m.up {
		l.fails = 0
		l.restart("connected", 0, now)
	} else if m.changed {
		l.down()
	}
	for _, a := range m.acks {
		l.ack(a, now)
	}
}

// down forgets what is in flight.
func (l *link) down() {
	l.endRnd()
	l.phase, l.probe, l.flights, l.held, l.bytes = idle, nil, nil, nil, 0
}

// restart asks the centre anew, after a wait.
func (l *link) restart(reason string, wait time.Duration, now time.Time) {
	l.down()
	l.round, l.endRnd = context.WithCancel(l.ctx)
	l.phase, l.retryAt = probing, now.Add(wait)
	l.u.metrics.restarts.WithLabelValues(reason).Inc()
	l.u.log.Debug("asking where the centre stands", "reason", reason, "wait", wait, "acked", l.acked)
}

// backoff returns a wait that grows with each failure, with full jitter so that
// sites that failed together do not come back together.
func (l *link) backoff() time.Duration {
	top := min(maxBackoff, 250*time.Millisecond<<min(l.fails, 10))
	l.fails++
	return time.Duration(rand.Int64N(int64(top))) + time.Millisecond
}

// published takes in how a Publish ended.
func (l *link) published(r result, now time.Time) {
	live := r.f == l.probe
	for _, f := range l.flights {
		live = live || r.f == f
	}
	if !live {
		return // of an earlier round, or acknowledged already
	}
	if r.err == nil {
		r.f.returned = now
		return
	}
	wait := l.backoff()
	l.u.log.Warn("batch not taken, it will be sent again", "first", r.f.first, "wait", wait, "err", r.err)
	l.restart("refused", wait, now)
}

// step does what is due, and returns how long nothing else will be.
func (l *link) step(now time.Time) time.Duration {
	if l.phase == idle {
		return forever
	}
	if wait := l.retryAt.Sub(now); wait > 0 {
		return wait
	}
	oldest := l.probe
	if len(l.flights) > 0 {
		oldest = l.flights[0]
	}
	if oldest != nil && !oldest.returned.IsZero() {
		since := oldest.returned
		if l.moved.After(since) {
			since = l.moved
		}
		if wait := l.u.opts.ResendAfter - now.Sub(since); wait > 0 {
			return min(wait, l.fill(now))
		}
		wait := l.backoff()
		l.u.log.Warn("no answer from the centre", "first", oldest.first, "wait", wait)
		l.restart("timeout", wait, now)
		return wait
	}
	return l.fill(now)
}

// fill sends as much as the window takes.
func (l *link) fill(now time.Time) time.Duration {
	if l.phase == probing {
		if l.probe == nil {
			l.probe = l.newProbe()
			l.launch(l.probe, now)
		}
		return forever
	}
	for len(l.flights) < l.u.opts.Window && (l.bytes < min(l.budget, l.u.opts.MaxInFlightBytes) || len(l.flights) == 0) {
		if l.held == nil {
			f, err := l.load(l.sync.declaredTrim())
			if err != nil {
				return l.unreadable(err, now)
			}
			if f == nil {
				l.refresh(now)
				return forever
			}
			f.ready = l.reserve(len(f.payload), now)
			l.held = f
		}
		if wait := l.held.ready.Sub(now); wait > 0 {
			return wait
		}
		f := l.held
		l.held = nil
		l.flights = append(l.flights, f)
		l.bytes += len(f.payload)
		l.next, l.sent = max(l.next, f.last+1), max(l.sent, f.last)
		l.launch(f, now)
	}
	return forever
}

func (s *syncState) declaredTrim() uint64 {
	if s.declaring {
		return s.declared
	}
	return 0
}

// reserve returns when n bytes may go under the rate limit.
func (l *link) reserve(n int, now time.Time) time.Time {
	lim := l.u.limiter
	if lim == nil {
		return now
	}
	var wait time.Duration
	for n > 0 { // a batch may be larger than the limiter's burst
		part := min(n, lim.Burst())
		wait = lim.ReserveN(now, part).DelayFrom(now)
		n -= part
	}
	return now.Add(wait)
}

// unreadable deals with a journal that cannot be read.
func (l *link) unreadable(err error, now time.Time) time.Duration {
	wait := l.backoff()
	l.retryAt = now.Add(wait)
	if protocol.KindOf(err) != protocol.Internal {
		l.u.log.Warn("read journal", "err", err, "wait", wait)
		return wait
	}
	l.u.log.Error("journal is damaged, giving up what cannot be read", "err", err)
	lost, serr := l.u.opts.Journal.Salvage()
	if serr != nil {
		l.u.log.Error("salvage journal", "err", serr, "wait", wait)
		return wait
	}
	l.u.metrics.lost.Add(float64(lost))
	l.sync.snapshot = 0 // what is lost may be newer than it
	if err := l.snapshot(lost); err != nil {
		l.sync.stale = true
		l.u.log.Error("append snapshot", "err", err)
	}
	return wait
}

// refresh repeats a snapshot that events had overtaken, now that it is calm.
func (l *link) refresh(now time.Time) {
	if !l.sync.stale || len(l.flights) > 0 {
		return
	}
	l.sync.snapshot = 0
	if err := l.snapshot(0); err != nil {
		l.retryAt = now.Add(l.backoff())
		l.u.log.Error("append snapshot", "err", err)
	}
}
