package sessions

import (
	"fmt"
	"syscall"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// On a full disk the store still has what it has reserved. One half is for records that end messages: without them none of QoS 2
// is ever ended, and the disk stays full. They take a part of it however many they are (see sessionlog.RollEnds). The other half is
// for the checkpoints behind which the segments are removed that no session needs any more, and for the few messages that
// still live in such a segment.

// measure sets how much of the disk is reserved: a start on a full disk reserves no less than one before.
func (s *Store) measure() error {
	room, err := s.records.Room()
	s.reserve = min(room/4, max(s.forCheckpoints(), min(s.o.segmentBytes/4, room/8)))
	return err
}

// forCheckpoints is how much of the disk two checkpoints may take, about, in bytes.
func (s *Store) forCheckpoints() int64 { return s.o.segmentBytes / 16 }

// lend gives back what is reserved: for what makes room.
func (s *Store) lend() error {
	s.lent = true
	return s.records.Release()
}

// spare is as sessionlog says, where messages may take a quarter of the reserve elsewhere.
func (s *Store) spare() (bytes, moved int64, few map[uint32]bool) {
	return s.records.Spare(s.live, s.reserve/4, s.unmovable)
}

// endMessages writes those changes of a batch that end messages, which the disk did not take, into what is reserved, and
// carries them out. The others remain in the batch. It reports whether a caller waited for any.
func (s *Store) endMessages(b *batch) bool {
	ends := batch{removed: b.removed}
	var others []change
	for _, one := range b.list {
		if one.endsMessage() {
			ends.list = append(ends.list, one)
		} else {
			others = append(others, one)
		}
	}
	if len(ends.list)+len(ends.removed) == 0 || s.lend() != nil || s.writeEnds(&ends) != nil {
		return false
	}
	b.list, b.removed = others, nil
	ends.carryOut(s)
	return len(ends.list) > 0
}

// writeEnds makes a batch durable that has nothing but what ends messages. Where the records of before have grown, all that they
// come to takes their place.
func (s *Store) writeEnds(ends *batch) error {
	ends.publish = make([]*state.Publish, len(ends.list))
	var bodies [][]byte
	size := int64(0)
	add := func(r state.Record) {
		b := r.Append(nil)
		bodies = append(bodies, b)
		const head = 16
		size += int64(len(b)) + head
	}
	for i := range ends.list {
		add(ends.list[i].record)
	}
	if len(ends.removed) > 0 {
		add(state.Removed{List: ends.removed})
	}
	if at := s.records.EndsSize(); at >= 0 && at+size <= max(s.reserve/4, 2*s.leftSize) {
		return s.records.AppendEnds(bodies)
	}
	s.begun = false
	if err := s.records.RollEnds(append(s.left(), bodies[:len(ends.list)]...)); err != nil { // what was removed is not left
		return err
	}
	s.leftSize = s.records.Size()
	return nil
}

// left returns the records of what is left of all messages.
func (s *Store) left() (bodies [][]byte) {
	const about = 1 << 20 // bytes of a record
	var r state.Left
	size := 0
	flush := func() {
		if len(r.List) > 0 {
			bodies = append(bodies, r.Append(nil))
			r, size = state.Left{}, 0
		}
	}
	for _, one := range s.All() {
		one.mu.Lock()
		left := one.state.Remaining()
		one.mu.Unlock()
		r.List = append(r.List, left)
		const each = 8
		if size += each * (1 + len(left.Ranges) + len(left.Received)); size > about {
			flush()
		}
	}
	flush()
	return bodies
}

// restore takes the reserve again once the disk has room for it. Until then it returns an error: other changes would use
// what is left for those that make room.
func (s *Store) restore() error {
	if !s.lent {
		return nil
	}
	if err := s.measure(); err != nil {
		return err
	}
	if free, err := s.records.Free(); err == nil && free+s.records.Reserved() < s.reserve+min(s.reserve, s.forCheckpoints()) || !s.records.Reserve(s.reserve) {
		return fmt.Errorf("sessions: what the disk has left is for acknowledgements: %w", syscall.ENOSPC)
	}
	s.lent = false
	return nil
}

// endsMessage reports whether the change is the last but one step of a message of QoS 2: its record takes some bytes, and
// none follows without a message that is stored.
func (one *change) endsMessage() bool {
	switch one.record.(type) {
	case state.Recorded, state.Finished:
		return true
	}
	return false
}

// relocate copies the messages that live in some segments to the end of the log. It runs on the committer.
func (s *Store) relocate(segments map[uint32]bool) error {
	var bodies [][]byte
	var moved []*state.Message
	for m := range s.living(segments) {
		ref := m.Ref()
		body, err := s.records.Read(ref)
		if err != nil { // each recipient will see that, and count it
			s.unmovable[ref.Segment] = true
			continue
		}
		bodies, moved = append(bodies, state.Copied{From: ref}.Append(nil), body), append(moved, m)
	}
	if len(bodies) == 0 {
		return nil
	}
	refs, err := s.records.Append(bodies)
	if err == nil {
		err = s.records.Sync()
	}
	if err != nil {
		return err
	}
	for i, m := range moved {
		s.live.Relocate(m, refs[2*i+1])
	}
	return nil
}

// living returns the messages of some segments that sessions are still to get.
func (s *Store) living(segments map[uint32]bool) map[*state.Message]struct{} {
	seen := make(map[*state.Message]struct{})
	for _, one := range s.All() {
		one.mu.Lock()
		for item := range one.state.Queue.All {
			if segments[item.Message.Ref().Segment] {
				seen[item.Message] = struct{}{}
			}
		}
		one.mu.Unlock()
	}
	return seen
}
