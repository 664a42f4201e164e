package downlink

import (
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// acknowledge moves a stream on by an Ack.
func (d *Downlink) acknowledge(s *session, a protocol.Ack) error {
	var l *ruleStream
	name, _ := strings.CutPrefix(a.Stream, protocol.DataStream(""))
	for _, each := range s.streams {
		if each.rule.Name == name {
			l = each
		}
	}
	if l == nil || !l.met && l.asked.IsZero() {
		return nil
	}
	first := !l.met
	record, err := d.opts.Store.AckDown(s.ctx, s.site, name, a, first)
	if err != nil {
		return err
	}
	l.last = max(l.last, record.Last)
	if first {
		l.met, l.acked, l.next = true, record.Acked, record.Acked
		l.sent.Clear()
		l.refusal.Clear()
		s.answered()
		return nil
	}
	if l.refusal.Answer(record.Epoch, a, time.Now(), 2*d.opts.AckTimeout) {
		// The site reports that; or every batch since the first Ack has declared the epoch.
		if err := d.opts.Store.RenewDown(s.ctx, s.site, name, record.Epoch); err != nil {
			return err
		}
		l.met, l.asked = false, time.Time{}
		l.sent.Clear()
		l.refusal.Clear()
		return nil
	}
	if record.Acked <= l.acked {
		return nil // what is missing is sent again when no Ack comes in time
	}
	l.acked, l.next = record.Acked, max(l.next, record.Acked)
	s.answered()
	for _, b := range l.sent.Acknowledge(l.acked) {
		s.adapt(b, time.Since(b.at))
	}
	return nil
}

// adapt makes batches as large as the link carries in a second or two.
func (s *session) adapt(b sentBatch, took time.Duration) {
	switch {
	case took < time.Second && b.bytes >= s.limit/2:
		s.limit = min(2*s.limit, mostBatch)
	case took > 4*time.Second:
		s.limit = max(s.limit/2, leastBatch)
	}
}

// inFlight counts the batches on their way to the site.
func (s *session) inFlight() int {
	n := 0
	for _, l := range s.streams {
		n += l.sent.Len()
	}
	return n
}

// send asks where the site stands, or sends what follows as far as the window
// allows.
func (d *Downlink) send(s *session, l *ruleStream) error {
	if !l.met {
		if !l.asked.IsZero() {
			return nil
		}
		question := protocol.Batch{V: protocol.Version, Stream: protocol.DataStream(l.rule.Name)}
		if err := d.opts.Publish(s.ctx, s.site, protocol.Marshal(&question)); err != nil {
			return err
		}
		l.asked = time.Now()
		return nil
	}
	for l.next < l.last && s.inFlight() < d.opts.Window {
		if time.Now().Before(l.hold) {
			return nil
		}
		more, err := d.sendBatch(s, l)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// sendBatch sends one batch. It reports whether there may be another.
func (d *Downlink) sendBatch(s *session, l *ruleStream) (more bool, err error) {
	limit := s.limit
	if r := int(l.rule.BatchBytes); r > 0 {
		limit = min(limit, r)
	}
	b, err := d.opts.Store.DownBatch(s.ctx, fleet.DownRead{
		Site: s.site, Rule: l.rule.Name, After: l.next, MaxBytes: limit, MaxAge: time.Duration(l.rule.MaxAgeMillis) * time.Millisecond,
		Sender: d.name,
	})
	if err != nil {
		return false, err
	}
	if b.Busy > 0 {
		l.hold = time.Now().Add(b.Busy)
		return false, nil
	}
	l.last = max(l.last, b.Last)
	if len(b.Events) == 0 {
		// All that was to come was dropped under a bound, or acknowledged elsewhere.
		if b.Trimmed >= l.next {
			l.acked, l.next = b.Trimmed, b.Trimmed
			l.sent.Clear()
		}
		l.last = l.next
		return false, nil
	}
	raw := stream.Sequence(b.Events)
	if d.gather(l, b, len(raw), limit) {
		return false, nil
	}
	last := b.Events[len(b.Events)-1].Seq
	m := protocol.Batch{
		V: protocol.Version, Epoch: b.Epoch, First: b.Events[0].Seq, Count: uint32(len(b.Events)), Events: raw,
		Trimmed: b.Trimmed, Stream: protocol.DataStream(l.rule.Name), SentMillis: b.Now.UnixMilli(),
	}
	if !l.rule.Uncompressed {
		d.pack.Pack(&m, raw)
	}
	payload := protocol.Marshal(&m)
	if err := d.opts.Publish(s.ctx, s.site, payload); err != nil {
		return false, err
	}
	l.next = last
	l.sent.Add(sentBatch{last: last, bytes: len(raw), at: time.Now()})
	return true, nil
}

// gather reports whether a small batch waits for more, as its rule allows.
func (d *Downlink) gather(l *ruleStream, b fleet.DownBatch, size, limit int) bool {
	wait := time.Duration(l.rule.BatchMillis) * time.Millisecond
	age := b.Now.Sub(time.UnixMilli(b.Events[0].UnixMillis))
	if age >= wait || size >= limit/2 {
		l.hold = time.Time{}
		return false
	}
	l.hold = time.Now().Add(wait - age)
	return true
}
