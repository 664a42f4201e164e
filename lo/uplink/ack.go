package uplink

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// ack takes in where the centre stands.
func (l *link) ack(a protocol.Ack, now time.Time) {
	epoch, trimmed, _, opened := l.u.opts.Journal.Position()
	l.epoch, l.acked = epoch, trimmed
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
		l.settle()
	case l.phase == probing && (ours && a.Seq == trimmed || a.Epoch == "" && trimmed == 0):
		l.settle() // also a centre that is new to a journal that is whole
	case l.phase == probing && l.probe == nil:
		// It was sent before we asked.
	case l.phase == probing:
		l.gap(a, now)
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
	l.acked, l.moved, l.fails = seq, now, 0
	l.next = max(l.next, seq+1) // a late Ack may tell of a batch before the last restart
	if l.held != nil && l.held.last <= seq {
		l.held = nil
	}
	acked := 0
	for len(l.flights) > 0 && l.flights[0].last <= seq {
		f := l.flights[0]
		l.flights = l.flights[1:]
		l.bytes -= len(f.payload)
		acked += len(f.payload)
		l.latency = now.Sub(f.started)
		l.u.metrics.ackSeconds.Observe(l.latency.Seconds())
	}
	if acked > 0 {
		l.steer(acked)
	}
}

// steer grows what may be in flight while Acks are quick, as TCP does in slow
// start, and halves it when they take long, so that a slow link carries about
// TargetLatency of data and not minutes of it.
func (l *link) steer(acked int) {
	switch target := l.u.opts.TargetLatency; {
	case l.latency > target:
		l.budget = max(minBudget, l.budget/2)
	case l.latency < target/2:
		l.budget = min(l.u.opts.MaxInFlightBytes, l.budget+acked)
	}
}

// settle goes on at the centre's position, which is within the journal.
func (l *link) settle() {
	if l.sync.declaring && l.acked >= l.sync.declared {
		l.sync.declaring = false
	}
	if l.phase == probing {
		l.send()
	}
}

func (l *link) send() {
	l.phase, l.probe, l.next = sending, nil, l.acked+1
}

// gap prepares the centre's passing over what it will never see.
func (l *link) gap(a protocol.Ack, now time.Time) {
	wait := time.Duration(0)
	if l.sync.declaring && l.sync.declared == l.acked {
		wait = l.backoff() // it was told already, or this Ack is late
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
	if err := l.snapshot(lost); err != nil && protocol.KindOf(err) != protocol.Invalid {
		wait := l.backoff()
		l.u.log.Error("append snapshot", "err", err, "wait", wait)
		l.restart("snapshot", wait, now)
		return
	} else if err != nil {
		// Events are better than nothing, and this cannot get better by waiting.
		l.u.log.Error("the site's state does not fit into one snapshot", "err", err)
	}
	if !l.sync.declaring || l.sync.declared != l.acked {
		l.gaps++
		l.u.metrics.gaps.Inc()
		l.u.metrics.lost.Add(float64(lost))
		l.u.log.Warn("centre is behind the journal, sending a snapshot", "centre_epoch", a.Epoch, "centre_seq", a.Seq,
			"epoch", l.epoch, "trimmed", l.acked, "snapshot", l.sync.snapshot)
	}
	l.sync.declaring, l.sync.declared = true, l.acked
	l.send()
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
		l.restart("renew", l.backoff(), now)
		return
	}
	l.epoch, l.acked, _, _ = l.u.opts.Journal.Position()
	l.restart("renew", 0, now) // the answer names the old epoch, which is a gap
}

// snapshot appends the state of the site, unless the journal holds one that the
// centre has not got yet: the events after that one tell the rest.
func (l *link) snapshot(lost uint64) error {
	if l.sync.snapshot > l.acked {
		return nil
	}
	for range snapshotTries {
		_, _, before, _ := l.u.opts.Journal.Position()
		s := l.u.opts.Snapshot()
		s.V, s.Lost = protocol.Version, lost
		seq, err := l.u.opts.Journal.AppendState(l.ctx, snapshotKey, protocol.Marshal(protocol.Event{
			UnixMillis: time.Now().UnixMilli(), Kind: protocol.SnapshotEvent, Body: protocol.Marshal(s),
		}))
		if err != nil {
			return err
		}
		l.sync.snapshot = seq
		if l.sync.stale = seq != before+1; !l.sync.stale {
			return nil
		}
	}
	return nil
}
