package uplink

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// ack handles an Ack, which says where the CO stands.
func (l *link) ack(a protocol.Ack, now time.Time) {
	epoch, trimmed, _, opened := l.u.opts.Journal.Position()
	l.epoch, l.acked = epoch, trimmed
	l.owed = max(0, l.owed-1)
	ours := a.Epoch == epoch
	if ours || a.Epoch == "" {
		l.sync.refusal.Clear()
	}
	switch {
	case ours && a.Seq > max(opened, l.sent):
		// It holds what this journal never had: so this journal is a copy.
		if l.phase != idle {
			l.renew(a, max(opened, l.sent), now)
		}
	case ours && a.Seq > trimmed:
		l.advance(a.Seq, now)
		l.settle(now)
	case l.phase == probing:
		l.probed(a, now)
	case l.phase == sending:
		l.stood(a, now)
	}
	if a.Resync && ours && l.phase == sending {
		l.repeat(a, now)
	}
}

// repeat brings a CO up to date whose record lacks something, unless what does so is on its way,
// or was sent a moment ago.
func (l *link) repeat(a protocol.Ack, now time.Time) {
	if a.Seq < l.sync.resynced || !l.sync.repeatedAt.IsZero() && now.Sub(l.sync.repeatedAt) < repeatEvery {
		return
	}
	l.sync.repeatedAt = now
	if err := l.resync(0); err != nil {
		l.u.log.Error("bring the CO up to date, whose record of the site lacks something", "err", err)
		return
	}
	l.u.log.Warn("the CO's record of the site lacks something, bringing it up to date", "resync", l.sync.resynced)
}

// here reports whether an Ack is at the position from which the journal goes on: also that of a CO
// which is new to a journal that is whole.
func (l *link) here(a protocol.Ack) bool {
	return a.Epoch == l.epoch && a.Seq == l.acked || a.Epoch == "" && l.acked == 0
}

// probed handles an Ack that is not ahead, while it is asked where the CO stands.
func (l *link) probed(a protocol.Ack, now time.Time) {
	switch {
	case l.here(a):
		l.settle(now)
	case l.probe == nil:
		// It was sent before the probe.
	default:
		l.gap(a, now)
	}
}

// stood handles an Ack that is not ahead, while batches are sent.
func (l *link) stood(a protocol.Ack, now time.Time) {
	ours := a.Epoch == l.epoch
	switch {
	case l.reported > 0 && l.here(a):
		l.reported-- // the answer to a batch that only reported the backlog
	case ours && l.flights.Len() > 0 && l.owed >= l.flights.Len():
		// Answers enough are to come: this one is about what was sent before, or came
		// out of turn, as where several programs answer.
	case ours && a.Seq == l.acked:
		// It left something out. Unless this is an old Ack: then the batch is still
		// on its way and not returned.
		if l.flights.Len() > 0 && !l.flights.Batches()[0].returned.IsZero() {
			l.restart("left_out", 0, now)
		}
	default:
		// It may have lost state, or this Ack is late. A probe shows which.
		l.restart("behind", 0, now)
	}
}

// advance forgets what the CO has.
func (l *link) advance(seq uint64, now time.Time) {
	if err := l.u.opts.Journal.Trim(seq); err != nil {
		l.u.log.Warn("trim journal", "through", seq, "err", err)
		return
	}
	l.u.metrics.acked.Add(float64(seq - l.acked))
	l.acked, l.progressAt = seq, now
	l.tries.Reset()
	l.next = max(l.next, seq+1) // a late Ack may be for a batch before the last restart
	acked, once := 0, false
	for _, f := range l.flights.Acknowledge(seq) {
		acked += len(f.payload)
		l.ticket.End(f.route, !f.retransmitted, now)
		if !f.retransmitted {
			once = true
			l.latency = now.Sub(f.route.Began)
			l.u.metrics.ackSeconds.Observe(l.latency.Seconds())
		}
	}
	if acked > 0 {
		l.steer(acked, now)
	}
	if once { // of what was sent before it, all is answered, or lost
		l.owed = min(l.owed, l.flights.Len()+l.reported)
	}
	for s := range l.expired {
		if s <= seq {
			delete(l.expired, s)
			l.u.expired.Add(1)
			l.u.metrics.expired.Inc()
		}
	}
}

// steer grows what may be in flight while Acks are quick, as TCP does in slow start, and halves it
// when they take long, so that about TargetLatency of data is in flight on a slow link, and not
// minutes of it. It halves once per such latency, and not below the rate that was measured: one
// lost segment delays all Acks behind it, which says little about the capacity of the link.
func (l *link) steer(acked int, now time.Time) {
	switch target := l.u.opts.TargetLatency; {
	case l.latency > target:
		if now.Sub(l.cutAt) > l.latency {
			l.budget, l.cutAt = max(minBudget, l.budget/2, l.u.gate.Carries(target, now)), now
		}
	case l.latency < target/2:
		l.budget = min(l.u.opts.MaxInFlightBytes, l.budget+acked)
	default:
		l.budget = min(l.u.opts.MaxInFlightBytes, l.budget+acked/4)
	}
}

// settle goes on at the CO's position, which is within the journal.
func (l *link) settle(now time.Time) {
	if l.sync.declaring && l.acked >= l.sync.declared {
		l.sync.declaring = false
	}
	if l.sync.resynced > 0 && l.acked >= l.sync.resynced {
		l.sync.cause = "" // the CO has it
	}
	if l.phase == probing {
		l.send(now)
	}
}

func (l *link) send(now time.Time) {
	if l.probe != nil {
		// After trouble, this may be the answer to something older.
		fresh := l.tries.Failures() == 0
		l.ticket.End(l.probe.route, fresh, now)
		if fresh {
			l.latency = now.Sub(l.probe.route.Began)
		}
	}
	l.phase, l.probe, l.next = sending, nil, l.acked+1
}

// gap prepares that the CO passes over what it will never receive.
func (l *link) gap(a protocol.Ack, now time.Time) {
	wait := time.Duration(0)
	if l.sync.declaring && l.sync.declared == l.acked {
		wait = l.tries.Next() // it was declared already, or this Ack is late
	}
	if l.refused(a, now) {
		l.u.log.Error("the CO has retired this epoch, beginning a new one", "epoch", l.epoch, "co_epoch", a.Epoch)
		if err := l.newEpoch(0, fmt.Sprintf("the CO gave up the numbering %s of this journal for a later one: the LO runs on an older copy of its disk, or a second one has the site's name", l.epoch)); err != nil {
			l.u.log.Error("begin new epoch", "err", err)
			l.restart("retired", l.tries.Next(), now)
			return
		}
		wait = 0
	}
	lost := l.acked
	if a.Epoch == l.epoch {
		lost -= a.Seq
	} else if f := l.u.previous(); f.Epoch != "" && f.Epoch == a.Epoch {
		lost -= min(lost, a.Seq, f.Through)
	}
	if err := l.resync(lost); err != nil && protocol.KindOf(err) != protocol.Invalid {
		wait := l.tries.Next()
		l.u.log.Error("bring the CO up to date", "err", err, "wait", wait)
		l.restart("resync", wait, now)
		return
	} else if err != nil {
		// Events are better than nothing, and this cannot get better by waiting.
		l.u.log.Error("the state cannot be sent to the CO", "err", err)
	}
	if !l.sync.declaring || l.sync.declared != l.acked {
		l.sync.gaps++
		l.u.metrics.gaps.Inc()
		l.u.metrics.lost.Add(float64(lost))
		l.u.log.Warn("the CO is behind the journal, bringing it up to date", "co_epoch", a.Epoch, "co_seq", a.Seq,
			"epoch", l.epoch, "trimmed", l.acked, "resync", l.sync.resynced)
	}
	l.sync.declaring, l.sync.declared = true, l.acked
	l.send(now)
	l.retryAt = now.Add(wait)
}

// refused reports that the CO has retired this epoch: its Ack says so. A CO of an earlier release
// shows it by another epoch in its Acks, after the gap was declared, for longer than any Ack is
// delayed.
func (l *link) refused(a protocol.Ack, now time.Time) bool {
	refused := l.sync.refusal.Answer(l.epoch, a, now, 2*l.u.opts.ResendAfter)
	return refused && (a.Retired == l.epoch || l.sync.declaring && l.sync.declared == l.acked)
}

// newEpoch begins a new epoch of the journal; have is what the CO holds of the old one.
// The cause, for people, goes up with what brings the CO up to date.
func (l *link) newEpoch(have uint64, cause string) error {
	if err := l.u.opts.Journal.Renew(have); err != nil {
		return err
	}
	l.epoch, l.acked, _, _ = l.u.opts.Journal.Position()
	l.sync = syncState{gaps: l.sync.gaps, cause: cause}
	return nil
}

// renew begins a new epoch for a journal that turned out to be a copy.
func (l *link) renew(a protocol.Ack, opened uint64, now time.Time) {
	l.u.log.Error("the CO has events that this journal never held: it was put back from a copy; beginning a new epoch",
		"epoch", l.epoch, "sent", l.sent, "co_seq", a.Seq)
	cause := fmt.Sprintf("the CO has events through %d of the journal %s, which holds none after %d: the LO runs on an older copy of its disk", a.Seq, l.epoch, opened)
	if err := l.newEpoch(a.Seq, cause); err != nil {
		l.u.log.Error("begin new epoch", "err", err)
		l.restart("renew", l.tries.Next(), now)
		return
	}
	l.restart("renew", 0, now) // the answer names the old epoch, which is a gap
}

// resync brings the CO up to date, unless the journal holds what does so and
// the CO has not got it yet: the events after that have the rest.
func (l *link) resync(lost uint64) error {
	if l.sync.resynced > l.acked {
		return nil
	}
	last, err := l.u.opts.Resync(l.ctx, Missed{Events: lost, Cause: l.sync.cause})
	l.sync.stale = protocol.KindOf(err) == protocol.Conflict
	if err != nil && !l.sync.stale {
		return err
	}
	l.sync.resynced = last
	return nil
}
