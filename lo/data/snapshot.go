package data

import (
	"context"
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// appendSnapshot appends all messages that are retained under the stream, between RetainedBegin and
// RetainedEnd, and returns the last sequence. Messages that are retained or deleted meanwhile come
// after it. It fails with kind Invalid, and appends nothing, where the snapshot is more than the
// queue can hold.
func (s *stream) appendSnapshot(ctx context.Context) (last uint64, err error) {
	s.forwarder.sequence.Lock()
	defer s.forwarder.sequence.Unlock()
	messages, err := s.snapshot()
	if err != nil {
		return 0, err
	}
	now := s.queue.Now().UnixMilli()
	events := slices.Concat(
		[]protocol.Event{{UnixMillis: now, Kind: protocol.RetainedBegin}}, messages, []protocol.Event{{UnixMillis: now, Kind: protocol.RetainedEnd}},
	)
	var piece []journal.Entry
	size := 0
	for i, e := range events {
		body := protocol.Marshal(e)
		piece, size = append(piece, journal.Entry{Class: journal.Data, Body: body}), size+len(body)
		if size < s.pieceBytes() && i < len(events)-1 {
			continue
		}
		if last, err = s.queue.Append(ctx, piece...); err != nil {
			return 0, err
		}
		piece, size = nil, 0
	}
	return last, nil
}

// eventOverhead is more than an event takes beside its body and what the journal adds,
// in bytes.
const eventOverhead = 128

// snapshot returns the messages that are retained under the stream, by the clock of the
// queue. It fails with kind Invalid where they are more than a queue can hold.
func (s *stream) snapshot() ([]protocol.Event, error) {
	table, now, queueNow := s.forwarder.table.Load(), s.forwarder.Now().UnixMilli(), s.queue.Now().UnixMilli()
	var out []protocol.Event
	var size int64
	for _, m := range s.forwarder.retained.Stream("") {
		r, remote, ok := table.Up(m.Topic)
		if !ok || r.Name != s.rule.Name {
			continue
		}
		msg, age := outgoing(r, remote, m.Data), max(0, now-m.UnixMillis)
		if msg.ExpiryMillis > 0 && uint64(age) >= msg.ExpiryMillis {
			continue // it would expire in the queue, and cause another snapshot
		}
		e := protocol.Event{UnixMillis: queueNow - age, Kind: protocol.DataEvent, Node: m.Node, Body: protocol.Marshal(&msg), Unsynced: s.forwarder.o.Unsynced()}
		bytes := len(e.Body) + eventOverhead
		if bytes > s.largest() {
			s.forwarder.log.Error("retained message is too large for the queue of its data rule; the co does not get it", "rule", r.Name, "topic", m.Topic, "bytes", bytes)
			continue
		}
		out, size = append(out, e), size+int64(bytes)
	}
	if most := s.maxBytes() / 2; size > most {
		reason := fmt.Sprintf("data rule %s: the site's retained messages take %d bytes, and a snapshot of them may take %d at most, half of the queue: the CO may go on with stale ones; raise maxBytes of the rule above %d",
			s.rule.Name, size, most, 2*size)
		s.tooLarge.Store(&reason)
		return nil, protocol.Errorf(protocol.Invalid, "%s", reason)
	}
	s.tooLarge.Store(nil)
	return out, nil
}
