package uplink

import (
	"context"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// batchHead is about what a batch has beside its events, in bytes.
const batchHead = 150

// publishTimeout ends a Publish that neither succeeds nor fails, and slowest is the
// rate, in bytes per second, that it allows for on top.
const (
	publishTimeout = 2 * time.Minute
	slowest        = 1 << 10
)

// flight is a batch on its way. A probe has no events and last 0.
type flight struct {
	first, last   uint64
	payload       []byte
	raw           int
	retransmitted bool // some of it was sent before, so that its Ack may be an older one
	route         pace.Passage
	round         context.Context //nolint:containedctx // in which it was sent; compared only
	returned      time.Time       // when Publish returned without an error
}

// Through implements stream.Sent.
func (f *flight) Through() uint64 { return f.last }

// Bytes implements stream.Sent: what goes over the link.
func (f *flight) Bytes() int { return len(f.payload) }

// result is how a Publish ended.
type result struct {
	f   *flight
	err error
}

// sizes is what the batches of a stream were like lately.
type sizes struct {
	raw, wire float64 // bytes of an event
}

func (s *sizes) learn(events, raw, wire int) {
	n := float64(events)
	s.raw += (float64(raw)/n - s.raw) / 4
	s.wire += (float64(wire)/n - s.wire) / 4
}

// uncompressed returns how many bytes of events become wire bytes.
func (s *sizes) uncompressed(wire int) int {
	ratio := min(max(s.wire/max(s.raw, 1), 1.0/64), 1)
	return int(float64(wire) / ratio)
}

// load reads the next batch from the journal, of about size bytes; nil means that
// there is none.
func (l *link) load(size int) (*flight, error) {
	u := l.u
	first, bodies, err := u.opts.Journal.Bodies(l.next-1, u.opts.MaxBatchEvents, size)
	if err != nil || len(bodies) == 0 {
		return nil, err
	}
	if first != l.next {
		return nil, protocol.Errorf(protocol.Unavailable, "journal gave event %d for %d", first, l.next)
	}
	backlog, now := u.backlogReport(l.latency)
	if err := l.look(first, bodies, now); err != nil {
		return nil, err
	}
	total := 0
	for _, b := range bodies {
		total += len(b)
	}
	raw := make([]byte, 0, total)
	for _, b := range bodies {
		raw = append(raw, b...)
	}
	b := protocol.Batch{
		V: protocol.Version, Epoch: l.epoch, First: first, Count: uint32(len(bodies)), Events: raw, Trimmed: l.sync.declaredTrim(),
		Stream: u.opts.Stream, SentMillis: now.UnixMilli(), Backlog: backlog,
	}
	if l.sync.declaring {
		b.Previous = u.previous()
	}
	if !u.opts.Uncompressed {
		u.gate.Encoder.Pack(&b, raw)
	}
	l.sizes.learn(len(bodies), len(raw), len(b.Events))
	f := &flight{first: first, last: first + uint64(len(bodies)) - 1, payload: protocol.Marshal(b), raw: len(raw)}
	f.retransmitted = f.first <= l.sent
	return f, nil
}

// look goes through events that are about to be sent: those of machine data whose
// time is up become empty ones, and where records were lost, the CO must be
// brought up to date.
func (l *link) look(first uint64, bodies [][]byte, now time.Time) error {
	millis, maxAge := now.UnixMilli(), uint64(l.u.opts.MaxAge.Milliseconds())
	for i, body := range bodies {
		g, ok := glance(body)
		if !ok {
			continue
		}
		seq := first + uint64(i)
		switch {
		case string(g.kind) == string(protocol.DataLost):
			if err := l.lost(seq, body); err != nil {
				return err
			}
		case l.u.opts.Stream != "" && g.expired(millis, maxAge):
			bodies[i] = expiredBody
			l.expired[seq] = struct{}{}
		}
	}
	return nil
}

// lost brings the CO up to date after a loss that the event seq reports. The
// journal has that event until then, so that a crash forgets nothing.
func (l *link) lost(seq uint64, body []byte) error {
	if l.sync.resynced >= seq {
		return nil
	}
	var e protocol.Event
	var loss protocol.Loss
	if err := protocol.Unmarshal(body, &e); err == nil {
		_ = protocol.Unmarshal(e.Body, &loss) // without it, how many there are is not known
	}
	if err := l.resync(loss.Records); err != nil && protocol.KindOf(err) != protocol.Invalid {
		return fmt.Errorf("bring the CO up to date: %w", err)
	}
	l.sync.resynced = max(l.sync.resynced, seq)
	return nil
}

// empty returns a batch without events, which asks, or reports the backlog.
func (l *link) empty() *flight {
	backlog, now := l.u.backlogReport(l.latency)
	return &flight{payload: protocol.Marshal(protocol.Batch{
		V: protocol.Version, Epoch: l.epoch, Events: []byte{}, Stream: l.u.opts.Stream, SentMillis: now.UnixMilli(), Backlog: backlog,
	})}
}

// handover is the moment at which a message is with the network, or has failed to be.
type handover struct {
	round context.Context //nolint:containedctx // of the message; compared only
	done  chan struct{}
	err   error // set before done is closed
}

// publish sends one message, when the one before it is with the network. Where that failed in
// the same round, this one fails, too: the CO would leave it out.
func (u *Uplink) publish(before, h *handover, payload []byte) error {
	if before != nil {
		<-before.done
	}
	if before != nil && before.round == h.round && before.err != nil {
		h.err = before.err
		close(h.done)
		return h.err
	}
	ctx, cancel := context.WithTimeout(h.round, publishTimeout+time.Duration(len(payload)/slowest)*time.Second)
	defer cancel()
	outcome, err := u.opts.Publish(ctx, topic.ForSite(topic.Up, u.opts.Site), payload)
	if err != nil {
		err = fmt.Errorf("publish batch: %w", err)
	}
	h.err = err
	close(h.done)
	if err != nil {
		return err
	}
	if err := outcome(ctx); err != nil {
		return fmt.Errorf("publish batch: %w", err)
	}
	return nil
}

// launch publishes f on a goroutine of its own, which ends with the round. Messages are handed to
// the network in the order of the calls, so that the CO receives batches in that of their numbers.
func (l *link) launch(f *flight) {
	u := l.u
	f.round = l.round
	l.owed++
	before := l.handed
	l.handed = &handover{round: l.round, done: make(chan struct{})}
	h := l.handed
	l.wg.Go(func() {
		err := u.publish(before, h, f.payload)
		select {
		case l.results <- result{f, err}:
		case <-l.ctx.Done():
		}
	})
	u.metrics.batches.Inc()
	u.metrics.wireBytes.Add(float64(len(f.payload)))
	u.metrics.rawBytes.Add(float64(f.raw))
	if f.last > 0 {
		u.metrics.events.Add(float64(f.last - f.first + 1))
	}
}

// previous is the epoch with whose numbers that of the journal goes on.
func (u *Uplink) previous() protocol.PreviousEpoch {
	if u.opts.Previous == nil {
		return protocol.PreviousEpoch{}
	}
	return u.opts.Previous()
}
