package uplink

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// ack takes in where the centre stands.
func (l *link) ack(a protocol.Ack, now time.Time) {
	epoch, trimmed, _, opened := l.u.opts.Journal.Position()
	l.epoch, l.acked = epoch, trimmed
	l.owed = max(0, l.owed-1)
	ours := a.Epoch == epoch
	if ours || a.Epoch == "" {
		l.sync.foreign = time.Time{}
	}
	switch {
	case ours && a.Seq > max(opened, l.sent):
		// It holds what this journal never had: so this journal is a copy.
		if l.phase != idle {
			l.renew(a, now)
		}
	case ours && a.Seq > trimmed:
		l.advance(a.Seq, now)
		l.settle(now)
	case l.phase == probing && (ours && a.Seq == trimmed || a.Epoch == "" && trimmed == 0):
		l.settle(now) // also a centre that is new to a journal that is whole
	case l.phase == probing && l.probe == nil:
		// It was sent before we asked.
	case l.phase == probing:
		l.gap(a, now)
	case l.phase == sending && l.reported > 0 && (ours && a.Seq == trimmed || a.Epoch == "" && trimmed == 0):
		l.reported-- // the answer to a batch that only told of the backlog
	case l.phase == sending && ours && len(l.flights) > 0 && l.owed >= len(l.flights):
		// Answers enough are to come: this one is about what was sent before, or came
		// out of turn, as where several programs answer.
	case l.phase == sending && ours && a.Seq == trimmed:
		// It left something out. Unless this is an old Ack: then the batch is still
		// on its way and not returned.
		if len(l.flights) > 0 && !l.flights[0].returned.IsZero() {
			l.restart("left_out", 0, now)
		}
	case l.phase == sending:
		// It may have lost state, or this Ack is late. A probe tells.
		l.restart("behind", 0, now)
	}
}

// advance forgets what the centre has.
func (l *link) advance(seq uint64, now time.Time) {
	if err := l.u.opts.Journal.Trim(seq); err != nil {
		l.u.log.Warn("trim journal", "through", seq, "err", err)
		return
	}
	l.u.metrics.acked.Add(float64(seq - l.acked))
	l.acked, l.progressAt = seq, now
	l.tries.Reset()
	l.next = max(l.next, seq+1) // a late Ack may tell of a batch before the last restart
	acked, once := 0, false
	for len(l.flights) > 0 && l.flights[0].last <= seq {
		f := l.flights[0]
		l.flights = l.flights[1:]
		l.bytes -= len(f.payload)
		acked += len(f.payload)
		l.ticket.end(f.route, !f.retransmitted, now)
		if !f.retransmitted {
			once = true
			l.latency = now.Sub(f.route.began)
			l.u.metrics.ackSeconds.Observe(l.latency.Seconds())
		}
	}
	if acked > 0 {
		l.steer(acked, now)
	}
	if once { // of what was sent before it, all is answered, or lost
		l.owed = min(l.owed, len(l.flights)+l.reported)
	}
	for s := range l.expired {
		if s <= seq {
			delete(l.expired, s)
			l.u.expired.Add(1)
			l.u.metrics.expired.Inc()
		}
	}
}

// steer grows what may be in flight while Acks are quick, as TCP does in slow
// start, and halves it when they take long, so that a slow link carries about
// TargetLatency of data and not minutes of it. It halves once for each time that
// long, and not below what the link was seen to carry: one lost segment holds up
// all Acks behind it, which says little of what the link takes.
func (l *link) steer(acked int, now time.Time) {
	switch target := l.u.opts.TargetLatency; {
	case l.latency > target:
		if now.Sub(l.cutAt) > l.latency {
			l.budget, l.cutAt = max(minBudget, l.budget/2, l.u.gate.carries(target, now)), now
		}
	case l.latency < target/2:
		l.budget = min(l.u.opts.MaxInFlightBytes, l.budget+acked)
	default:
		l.budget = min(l.u.opts.MaxInFlightBytes, l.budget+acked/4)
	}
}

// settle goes on at the centre's position, which is within the journal.
func (l *link) settle(now time.Time) {
	if l.sync.declaring && l.acked >= l.sync.declared {
		l.sync.declaring = false
	}
	if l.phase == probing {
		l.send(now)
	}
}

func (l *link) send(now time.Time) {
	if l.probe != nil {
		// After trouble, this may be the answer to something older.
		fresh := l.tries.Failures() == 0
		l.ticket.end(l.probe.route, fresh, now)
		if fresh {
			l.latency = now.Sub(l.probe.route.began)
		}
	}
	l.phase, l.probe, l.next = sending, nil, l.acked+1
}

// gap prepares the centre's passing over what it will never see.
func (l *link) gap(a protocol.Ack, now time.Time) {
	wait := time.Duration(0)
	if l.sync.declaring && l.sync.declared == l.acked {
		wait = l.tries.Next() // it was told already, or this Ack is late
	}
	if l.refused(a, now) {
		l.u.log.Error("the centre does not take this epoch, beginning a new one", "epoch", l.epoch, "centre_epoch", a.Epoch)
		if err := l.u.opts.Journal.Renew(0); err != nil {
			l.u.log.Error("begin new epoch", "err", err)
		}
		l.epoch, l.acked, _, _ = l.u.opts.Journal.Position()
		l.sync.foreign = time.Time{}
	}
	lost := l.acked
	if a.Epoch == l.epoch {
		lost -= a.Seq
	}
	if err := l.resync(lost); err != nil && protocol.KindOf(err) != protocol.Invalid {
		wait := l.tries.Next()
		l.u.log.Error("bring the centre up to date", "err", err, "wait", wait)
		l.restart("resync", wait, now)
		return
	} else if err != nil {
		// Events are better than nothing, and this cannot get better by waiting.
		l.u.log.Error("the state cannot be told to the centre", "err", err)
	}
	if !l.sync.declaring || l.sync.declared != l.acked {
		l.sync.gaps++
		l.u.metrics.gaps.Inc()
		l.u.metrics.lost.Add(float64(lost))
		l.u.log.Warn("centre is behind the journal, bringing it up to date", "centre_epoch", a.Epoch, "centre_seq", a.Seq,
			"epoch", l.epoch, "trimmed", l.acked, "resync", l.sync.resynced)
	}
	l.sync.declaring, l.sync.declared = true, l.acked
	l.send(now)
	l.retryAt = now.Add(wait)
}

// refused reports that the centre has left this epoch for another: it was told of
// the gap, and has answered with that epoch only for longer than any Ack is on
// its way. To be hasty here would store what is in flight a second time.
func (l *link) refused(a protocol.Ack, now time.Time) bool {
	s := &l.sync
	if a.Epoch == l.epoch || a.Epoch == "" {
		return false
	}
	if s.foreign.IsZero() {
		s.foreign = now
	}
	return s.declaring && s.declared == l.acked && now.Sub(s.foreign) > 2*l.u.opts.ResendAfter
}

// renew begins a new epoch for a journal that turned out to be a copy.
func (l *link) renew(a protocol.Ack, now time.Time) {
	l.u.log.Error("the centre has events that this journal never held: it was put back from a copy; beginning a new epoch",
		"epoch", l.epoch, "sent", l.sent, "centre_seq", a.Seq)
	if err := l.u.opts.Journal.Renew(a.Seq); err != nil {
		l.u.log.Error("begin new epoch", "err", err)
		l.restart("renew", l.tries.Next(), now)
		return
	}
	l.epoch, l.acked, _, _ = l.u.opts.Journal.Position()
	l.restart("renew", 0, now) // the answer names the old epoch, which is a gap
}

// resync brings the centre up to date, unless the journal holds what does so and
// the centre has not got it yet: the events after that tell the rest.
func (l *link) resync(lost uint64) error {
	if l.sync.resynced > l.acked {
		return nil
	}
	last, err := l.u.opts.Resync(l.ctx, lost)
	l.sync.stale = protocol.KindOf(err) == protocol.Conflict
	if err != nil && !l.sync.stale {
		return err
	}
	l.sync.resynced = last
	return nil
}
