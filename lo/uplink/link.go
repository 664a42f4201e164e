package uplink

import (
	"context"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// phase is what the link does.
type phase int

const (
	idle    phase = iota // not connected
	probing              // asking the CO where it stands
	sending              // sending from there
)

const (
	minBudget   = 4 << 10
	startBudget = 32 << 10
	forever     = time.Hour
	// reportEvery is how often the backlog is reported on request, at most.
	reportEvery = time.Second
	// repeatEvery is how often the state is sent because the CO's record lacks something, at most.
	repeatEvery = time.Minute
)

// link is the state of sending. Only Run's goroutine touches it.
type link struct {
	u   *Uplink
	ctx context.Context
	publishing

	phase   phase
	round   context.Context // of what was sent since the last restart
	endRnd  context.CancelFunc
	retryAt time.Time     // nothing is sent before
	tries   retry.Backoff // failures in a row without progress

	epoch      string
	acked      uint64 // the CO has it; equal to what the journal forgot
	next       uint64 // to send
	sent       uint64 // highest sent by this process
	probe      *flight
	flights    stream.Window[*flight]
	progressAt time.Time // last progress

	pacing
	sync syncState
	reporting
	expired map[uint64]struct{} // sequences sent as expired, without an Ack
}

// publishing is what the goroutines of batches on their way share with the loop.
type publishing struct {
	wg      *sync.WaitGroup
	results chan result
	handed  *handover // of what was launched last; nil: nothing was
}

// reporting is about the batches without events that report the backlog, and about
// the answers that are to come.
type reporting struct {
	asked      bool
	reported   int // without an Ack
	reportedAt time.Time
	// owed is how many Acks are to come, one for each batch that was sent, those of
	// earlier rounds and connections included: with what is sent again, one that says
	// nothing new may be about the first copy. Those that are lost keep it too high
	// until what was sent once is acknowledged, or nothing is for too long.
	owed int
}

// pacing is how much the link carries.
type pacing struct {
	ticket  *pace.Ticket
	sizes   sizes
	since   time.Time     // since when events wait for others; zero: none do
	began   time.Time     // when the last batch was sent
	budget  int           // bytes that may be in flight
	latency time.Duration // of the last batch
	cutAt   time.Time     // when budget was halved last
}

// syncState is what the link knows of a gap.
type syncState struct {
	declaring bool   // batches declare to the CO what is trimmed
	declared  uint64 // the sequence up to which it is
	resynced  uint64 // the end of the newest resync in the journal
	stale     bool   // events overtook it, so that it may be older than its position
	// repeatedAt is when the CO was brought up to date last because its record lacked something.
	repeatedAt time.Time
	cause      string // why this process began the journal's epoch, until the CO has it

	refusal stream.Refusal
	gaps    uint64
}

func newLink(ctx context.Context, u *Uplink, wg *sync.WaitGroup) *link {
	l := &link{u: u, ctx: ctx, publishing: publishing{wg: wg, results: make(chan result)}, expired: map[uint64]struct{}{}}
	l.pacing = pacing{budget: startBudget, ticket: u.gate.Join(u.opts.Priority, u.turn), sizes: sizes{raw: 200, wire: 100}}
	// With full jitter, sites that failed together do not come back together.
	l.tries.Policy = retry.Policy{Min: 250 * time.Millisecond, Max: 30 * time.Second, Jitter: 1}
	l.round, l.endRnd = context.WithCancel(ctx)
	l.epoch, l.acked, _, _ = u.opts.Journal.Position()
	return l
}

// read handles the mail: first whether the link is up, then the Acks, which
// came on it.
func (l *link) read(now time.Time) {
	l.u.mu.Lock()
	m := l.u.mail
	l.u.mail = mail{up: m.up}
	l.u.mu.Unlock()
	if m.changed && m.up {
		l.tries.Reset()
		l.restart("connected", 0, now)
		l.ticket.Connected()
	} else if m.changed {
		l.down(now)
	}
	l.asked = l.asked || m.asked
	for _, a := range m.acks {
		l.ack(a, now)
	}
}

// down forgets what is in flight.
func (l *link) down(now time.Time) {
	l.endRnd()
	for _, f := range l.flights.Batches() {
		l.ticket.End(f.route, false, now)
	}
	if l.probe != nil {
		l.ticket.End(l.probe.route, false, now)
	}
	l.ticket.Cancel(0, now)
	l.flights.Clear()
	l.phase, l.probe, l.since, l.reported = idle, nil, time.Time{}, 0
}

// restart asks the CO anew, after a wait.
func (l *link) restart(reason string, wait time.Duration, now time.Time) {
	l.down(now)
	l.round, l.endRnd = context.WithCancel(l.ctx)
	l.phase, l.retryAt = probing, now.Add(wait)
	l.u.metrics.restarts.WithLabelValues(reason).Inc()
	l.u.log.Debug("asking where the CO stands", "reason", reason, "wait", wait, "acked", l.acked)
}

// published handles how a Publish ended.
func (l *link) published(r result, now time.Time) {
	if r.err != nil && r.f.round == l.round {
		l.owed = max(0, l.owed-1)
	}
	live := r.f == l.probe
	for _, f := range l.flights.Batches() {
		live = live || r.f == f
	}
	if !live {
		return // of an earlier round, or acknowledged already
	}
	if r.err == nil {
		r.f.returned = now
		return
	}
	wait := l.tries.Next()
	l.u.log.Warn("batch refused, it will be sent again", "first", r.f.first, "wait", wait, "err", r.err)
	l.restart("refused", wait, now)
}

// step does what is due, and returns how long nothing else will be.
func (l *link) step(now time.Time) time.Duration {
	if l.phase == idle {
		l.asked = false
		return forever
	}
	wait := l.proceed(now)
	if !l.asked || l.phase != sending {
		return wait // a probe reports the backlog, too
	}
	if due := l.reportedAt.Add(reportEvery).Sub(now); due > 0 {
		return min(wait, due)
	}
	if now.Sub(l.reportedAt) > l.u.opts.ResendAfter {
		l.reported = 0 // those are lost
	}
	f := l.empty()
	l.ticket.End(l.ticket.Wait(len(f.payload), now), false, now)
	l.asked, l.reported, l.reportedAt = false, l.reported+1, now
	l.launch(f)
	return wait
}

// proceed asks or sends.
func (l *link) proceed(now time.Time) time.Duration {
	if wait := l.retryAt.Sub(now); wait > 0 {
		return wait
	}
	oldest := l.probe
	if l.flights.Len() > 0 {
		oldest = l.flights.Batches()[0]
	}
	if oldest != nil && !oldest.returned.IsZero() {
		since := oldest.returned
		if l.progressAt.After(since) {
			since = l.progressAt
		}
		if wait := l.u.opts.ResendAfter - now.Sub(since); wait > 0 {
			return min(wait, l.fill(now))
		}
		wait := l.tries.Next()
		l.owed = 0 // those are lost
		l.u.log.Warn("no answer from the CO", "first", oldest.first, "wait", wait)
		l.restart("timeout", wait, now)
		return wait
	}
	return l.fill(now)
}

// fill sends as much as the window and the gate admit.
func (l *link) fill(now time.Time) time.Duration {
	if l.phase == probing {
		return l.ask(now)
	}
	limit := l.u.opts.MaxInFlightBytes
	if l.u.opts.Priority == 0 {
		limit = min(limit, l.budget)
	}
	for l.flights.Len() < l.u.opts.Window && (l.flights.Bytes() < limit || l.flights.Len() == 0) {
		raw, wire, wait := l.gather(now)
		if raw == 0 {
			l.ticket.Cancel(0, now) // others need not wait for this one
			return wait
		}
		if ok, wait := l.ticket.Ask(wire, now); !ok {
			return wait
		}
		f, err := l.load(raw)
		if err != nil || f == nil {
			l.ticket.Cancel(wire, now)
		}
		if err != nil {
			return l.unreadable(err, now)
		}
		if f == nil {
			return forever
		}
		f.route = l.ticket.Begin(wire, len(f.payload), now)
		l.flights.Add(f)
		l.since, l.began = time.Time{}, now
		l.next, l.sent = max(l.next, f.last+1), max(l.sent, f.last)
		l.launch(f)
	}
	l.ticket.Cancel(0, now)
	return forever
}

// ask sends a probe, unless one is under way. Those of the data streams wait for
// their turn, so that on a slow link the events are asked for first.
func (l *link) ask(now time.Time) time.Duration {
	if l.probe != nil {
		return forever
	}
	granted := 0
	if l.u.opts.Priority > 0 {
		ok, wait := l.ticket.Ask(batchHead, now)
		if !ok {
			return wait
		}
		granted = batchHead
	}
	l.probe, l.asked = l.empty(), false
	l.probe.route = l.ticket.Begin(granted, len(l.probe.payload), now)
	l.launch(l.probe)
	return forever
}

// gather returns how large the next batch should be, before compression and after
// it. Where there is nothing to send, or it should wait for more, raw is 0.
func (l *link) gather(now time.Time) (raw, wire int, wait time.Duration) {
	_, _, last, _ := l.u.opts.Journal.Position()
	if l.next > last {
		l.since = time.Time{}
		l.refresh(now)
		return 0, 0, forever
	}
	o, n := &l.u.opts, last-l.next+1
	own := 0
	if o.Priority == 0 {
		own = l.budget / 4
	}
	wire = l.u.gate.BatchBytes(own)
	raw = min(o.MaxBatchBytes, l.sizes.uncompressed(wire))
	if n < uint64(o.MaxBatchEvents) && float64(n)*l.sizes.raw < float64(raw) {
		// Together they compress far better, and share what each batch costs. So on
		// a long way batches follow one another at a distance; the first one after
		// some quiet goes at once.
		if l.since.IsZero() {
			l.since = now
		}
		due := later(l.since.Add(o.Linger), l.began.Add(l.u.gate.Distance(l.latency)))
		if wait := due.Sub(now); wait > 0 {
			return 0, 0, wait
		}
	}
	return raw, min(wire, int(float64(n)*l.sizes.wire)) + batchHead, 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *syncState) declaredTrim() uint64 {
	if s.declaring {
		return s.declared
	}
	return 0
}

// unreadable deals with a journal that cannot be read.
func (l *link) unreadable(err error, now time.Time) time.Duration {
	wait := l.tries.Next()
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
	l.sync.resynced = 0 // what is lost may be newer than it
	if err := l.resync(lost); err != nil {
		l.sync.stale = true
		l.u.log.Error("bring the CO up to date", "err", err)
	}
	return wait
}

// refresh repeats a resync that events had overtaken, now that it is calm.
func (l *link) refresh(now time.Time) {
	if !l.sync.stale || l.flights.Len() > 0 {
		return
	}
	l.sync.resynced = 0
	if err := l.resync(0); err != nil {
		l.retryAt = now.Add(l.tries.Next())
		l.u.log.Error("bring the CO up to date", "err", err)
	}
}
