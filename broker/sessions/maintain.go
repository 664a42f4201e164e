package sessions

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// maintain ends a segment that is full, with a checkpoint, and copies what still lives in
// one that is nearly empty. It runs on the committer.
func (s *Store) maintain() {
	if !s.failing.Load() && !s.unmarked.Load() && s.settled.Swap(false) {
		if err := s.records.SetIncomplete(false); err != nil {
			s.settled.Store(true) // it is tried again
		}
	}
	if !s.lent && !s.failing.Load() && s.reserveDue.Swap(false) {
		s.records.Reserve(s.reserve)
	}
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
	s.records.KeepEnds() // a checkpoint belongs to the segment behind them
	s.checkpointDue, s.rollAbove = false, 0
	if s.unended.ends() {
		s.log.Info("segments of the sessions are ended again")
	}
	n, content, used := s.records.Number(), s.capture(), s.live.Segments()
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
		s.unmarked.Store(false)
		s.settled.Store(true)
		s.reserveDue.Store(true)
		s.compact()
	})
}

// errSaving is why the committer cannot write a checkpoint now.
var errSaving = errors.New("a checkpoint is being written")

// catchUp writes a checkpoint where the log lacks changes that were made while the disk took none:
// before anything else is stored that stands on them. Where it took none because it is full, and there is what no session
// needs any more, it writes two: with the second that is removed. Both have room in what is reserved.
func (s *Store) catchUp() error {
	if !s.unrecorded && !s.roomDue {
		return nil
	}
	if s.saving.Load() {
		return errSaving
	}
	times := int64(1)
	var moved int64
	var few map[uint32]bool
	if s.roomDue {
		if err := s.lend(); err != nil {
			return err
		}
		times = 2
		_, moved, few = s.spare()
	}
	content := s.capture()
	if err := s.fits(times, int64(len(content)), moved); err != nil {
		return err
	}
	if err := s.checkpointNow(content); err != nil {
		return err
	}
	if s.roomDue {
		if err := s.relocate(few); err != nil {
			return err
		}
		if err := s.checkpointNow(s.capture()); err != nil {
			return err
		}
		if s.records.Reserve(s.reserve) {
			s.lent = false
		}
	}
	s.unrecorded, s.roomDue = false, false
	s.checkpointDue = true // another checkpoint is due: this one alone may have what the log lacks
	return nil
}

// fits returns an error where the disk is too full for so many checkpoints and what is moved, or for one that frees nothing
// beside what ends messages.
func (s *Store) fits(times, size, moved int64) error {
	if !s.lent {
		return nil
	}
	const page = 4 << 10
	need := moved + times*(size+2*page)
	if !s.roomDue {
		need += s.reserve / 2
	}
	if free, err := s.records.Free(); err == nil && free < need {
		return fmt.Errorf("sessions: a checkpoint needs %d bytes, and the disk has %d left: %w", need, free, syscall.ENOSPC)
	}
	return nil
}

// checkpointNow begins a segment with a checkpoint.
func (s *Store) checkpointNow(content []byte) error {
	if !s.begun {
		if err := s.records.Roll(); err != nil {
			return err
		}
		s.begun = true
	}
	if err := s.records.Checkpoint(s.records.Number(), content, s.live.Segments()); err != nil {
		return err
	}
	s.records.KeepEnds()
	s.begun = false
	return nil
}

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
			if live := s.live.Of(n); live > 0 && live < size/2 && live < least {
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
	const window = 64
	slots := make(chan error, window)
	free := window
	wait := func() error { free++; return <-slots }
	failed := false
	for m := range s.living(map[uint32]bool{n: true}) {
		if free == 0 {
			failed = wait() != nil || failed
		}
		ref := m.Ref()
		body, err := s.records.Read(ref)
		if failed {
			break
		}
		if err != nil {
			continue // each recipient will see that, and count it
		}
		free--
		s.changes.add(change{copied: m, body: body, from: ref, flush: true, done: func(err error) { slots <- err }})
	}
	for free < window {
		failed = wait() != nil || failed
	}
	return !failed
}
