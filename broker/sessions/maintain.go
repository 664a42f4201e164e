package sessions

import (
	"errors"
	"math"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// maintain ends a segment that is full, with a checkpoint, and copies what still lives in
// one that is nearly empty. It runs on the committer.
func (s *Store) maintain() {
	if s.records.Size() < max(s.o.segmentBytes, s.lastCheckpoint, s.rollAbove) && !s.checkpointDue || s.failing.Load() || s.saving.Load() {
		return
	}
	if err := s.records.Roll(); err != nil {
		if s.unended.begins() {
			s.log.Warn("a segment of the sessions cannot be ended: it grows until the disk has room for the next", "err", err)
		}
		s.checkpointDue, s.rollAbove = false, s.records.Size()+s.o.segmentBytes/16
		return
	}
	s.checkpointDue, s.rollAbove = false, 0
	if s.unended.ends() {
		s.log.Info("segments of the sessions are ended again")
	}
	n, content, used := s.records.Number(), s.capture(), s.live.segments()
	s.lastCheckpoint = int64(len(content)) // no more is written for checkpoints than for the log
	s.saving.Store(true)
	s.work.Go(func() {
		defer s.saving.Store(false)
		if err := s.records.Checkpoint(n, content, used); err != nil {
			if s.unsaved.begins() {
				s.log.Error("a checkpoint of the sessions is not written: it is tried again with each segment; until then a start takes longer", "err", err)
			}
			return
		}
		if s.unsaved.ends() {
			s.log.Info("checkpoints of the sessions are written again")
		}
		s.records.Reserve(s.reserved())
		s.compact()
	})
}

// catchUp writes a checkpoint where the log lacks changes that were made while the disk took none:
// before anything else is stored that stands on them. Where it took none because it is full, and there is what nobody
// needs any more, it writes two: with the second that is removed.
func (s *Store) catchUp() error {
	if !s.unrecorded && !s.roomDue {
		return nil
	}
	if s.saving.Load() {
		return errors.New("a checkpoint is being written")
	}
	times := 1
	if s.roomDue {
		if err := s.records.Release(); err != nil {
			return err
		}
		times = 2
	}
	for range times {
		if !s.begun {
			if err := s.records.Roll(); err != nil {
				return err
			}
			s.begun = true
		}
		if err := s.records.Checkpoint(s.records.Number(), s.capture(), s.live.segments()); err != nil {
			return err
		}
		s.begun = false
	}
	if s.roomDue {
		s.records.Reserve(s.reserved())
	}
	s.unrecorded, s.roomDue = false, false
	s.checkpointDue = true // another checkpoint is due: this one alone may have what the log lacks
	return nil
}

// reserved is how much of the disk is kept for the checkpoints that make room once it is full, in bytes.
func (s *Store) reserved() int64 { return s.o.segmentBytes / 16 }

// capture returns a checkpoint of all sessions. No message gets into a queue meanwhile; other changes
// may be in it already whose records come behind it, which say the same again.
func (s *Store) capture() []byte {
	all := s.All()
	s.mu.RLock()
	last := s.lastID
	s.mu.RUnlock()
	s.stamp = s.clock.Stamp(s.o.Now())
	b := state.AppendHead(make([]byte, 0, 256*len(all)+16*int(s.messages.Load())), s.stamp, last, len(all))
	for _, one := range all {
		one.mu.Lock()
		b = one.state.Append(b)
		one.mu.Unlock()
	}
	return b
}

// compact copies what lives in the emptiest segments to the end of the log, so that the next
// checkpoint can remove them: where the segments take more than twice what lives in them.
func (s *Store) compact() {
	sizes := s.records.Sizes()
	total := int64(0)
	for _, size := range sizes {
		total += size
	}
	for total > 2*s.bytes.Load()+4*s.o.segmentBytes {
		victim, least := uint32(0), int64(math.MaxInt64)
		for n, size := range sizes {
			if live := s.live.of(n); live > 0 && live < size/2 && live < least {
				victim, least = n, live
			}
		}
		if victim == 0 || !s.copySegment(victim) {
			return
		}
		total -= sizes[victim]
		delete(sizes, victim)
	}
}

// copySegment copies the live messages of a segment; false if the store is closing or failing.
func (s *Store) copySegment(n uint32) bool {
	seen := make(map[*state.Message]struct{})
	for _, one := range s.All() {
		one.mu.Lock()
		for item := range one.state.Queue.All {
			if item.Message.Ref().Segment == n {
				seen[item.Message] = struct{}{}
			}
		}
		one.mu.Unlock()
	}
	const window = 64
	slots := make(chan error, window)
	free := window
	wait := func() error { free++; return <-slots }
	failed := false
	for m := range seen {
		if free == 0 {
			failed = wait() != nil || failed
		}
		ref := m.Ref()
		body, err := s.records.Read(ref)
		if failed {
			break
		}
		if err != nil {
			continue // whoever is to get it will see that, and count it
		}
		free--
		s.changes.add(change{copied: m, body: body, from: ref, flush: true, done: func(err error) { slots <- err }})
	}
	for free < window {
		failed = wait() != nil || failed
	}
	return !failed
}
