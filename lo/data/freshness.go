package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// snapshotPause is the shortest time between two snapshots of one stream, which
	// else would follow each message that a full queue drops.
	snapshotPause = time.Minute
	// snapshotRest is how many times as long as the transfer of a snapshot took the
	// stream rests before the next one: snapshots are a tenth of what a slow link
	// carries, at most.
	snapshotRest = 9
)

// freshness is what a stream knows of the CO's copy of its retained messages.
//
// The CO holds a copy of what the site's broker retains under each rule. Every retained
// message, and every deletion, is an event of the stream, so that the copy is right once
// the CO has the whole queue. The copy is stale when it may be wrong even then. The
// repair is a snapshot at the end of the queue: RetainedBegin, all messages that are
// retained now, RetainedEnd; the CO deletes what the snapshot does not name.
//
//	the copy becomes stale because            noticed by            found after a crash by
//	the queue dropped, lost or expired        losses                the mark
//	messages
//	the LO was killed between the store of    the mark, when the    the mark
//	retained messages and the queue           stream is opened
//	the store of retained messages was lost   retained.Store.Lost   the mark
//	the rules changed what belongs to it      Forwarder.report      datarules.cbor
//	it has topics that were another stream's  Forwarder.report      the mark
//	the queue had no room for a message, and  Forwarder.takeBack    the mark
//	the store could not take it back
//	the CO missed events                      the uplink            the CO, which says so again
//
// For the last cause and for changed rules the snapshot is appended at once. For the
// others repair goes through these states, of which awaiting can come with each other:
//
//	state     is                 until
//	fresh     !stale             a cause of the table
//	awaiting  awaits != nil      the CO has what other streams queued before; then stale
//	stale     stale              the snapshot is appended: the link is up, the CO has the
//	                             snapshot before, and notBefore has come; then sending
//	sending   snapshotEnd != 0   the CO has the snapshot; it may be stale again by then
//
// The mark is the file stale/<rule>. It is written before a cause can take effect, and
// removed when the snapshot is in the queue. A stream that retains something in this
// run keeps it until it is closed, because a crash can come at any time.
type freshness struct {
	// What follows belongs to the goroutine of Forwarder.Run.

	stale       bool
	awaits      map[string]uint64 // sequences that the CO must have, by rule; nil: none
	snapshotEnd uint64            // last sequence of the snapshot that the CO does not have yet; 0: none
	appendedAt  time.Time         // when the last snapshot was appended
	notBefore   time.Time         // earliest time of the next snapshot
	lost        uint64            // losses, at the last repair
	foundMark   bool              // the mark was there when the stream was opened, and repair has not seen to it

	// tooLarge says why no snapshot can be appended; nil: it can. Status reads it.
	tooLarge atomic.Pointer[string]

	// unqueued counts the retained messages that were accepted and are not in the queue.
	unqueued atomic.Uint64

	markMu sync.Mutex // protects marked
	marked bool       // something was retained in this run, and the mark is there
}

// markPath is the mark of a rule: it exists while a start must append a snapshot.
func (f *Forwarder) markPath(rule string) string { return filepath.Join(f.o.Dir, "stale", rule) }

// mark writes the mark of a rule.
func (f *Forwarder) mark(rule string) error {
	if err := f.o.Disk.MkdirAll(filepath.Dir(f.markPath(rule)), dirPerm); err != nil {
		return fmt.Errorf("mark the retained messages of data rule %s as stale: %w", rule, err)
	}
	if err := atomicfile.Write(f.o.Disk, f.markPath(rule), nil, filePerm); err != nil {
		return fmt.Errorf("mark the retained messages of data rule %s as stale: %w", rule, err)
	}
	return nil
}

// markStale writes the mark before the first change of what is retained in this run: a
// crash between the store and the queue would leave the CO with another message.
func (s *stream) markStale() error {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	if s.marked {
		return nil
	}
	if err := s.forwarder.mark(s.rule.Name); err != nil {
		return protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	s.marked = true
	return nil
}

// clearStale removes the mark. Where something was retained in this run it does so only
// when the stream is closing: nothing is retained any more.
func (s *stream) clearStale(closing bool) error {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	if s.marked && !closing {
		return nil
	}
	path := s.forwarder.markPath(s.rule.Name)
	if _, err := s.forwarder.o.Disk.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.marked = false
	return atomicfile.Remove(s.forwarder.o.Disk, path)
}

// settleMark leaves the mark, when the stream is closed, only where the next start must
// append a snapshot.
func (s *stream) settleMark() error {
	switch {
	case s.losses() != s.lost:
		return s.forwarder.mark(s.rule.Name)
	case s.foundMark || s.stale || s.awaits != nil || s.tooLarge.Load() != nil:
		return nil
	default:
		return s.clearStale(true)
	}
}

// losses counts the messages that were dropped, were lost with damaged records, have
// expired or were not queued: the CO does not get them, and some may have been retained.
func (s *stream) losses() uint64 {
	st := s.queue.Stats()
	return st.Dropped + st.Lost + s.uplink.Status().Backlog.Expired + s.unqueued.Load()
}

// repair takes the stream through the states of freshness.
func (s *stream) repair(ctx context.Context) error {
	now := time.Now()
	if err := s.noticeStale(); err != nil {
		return err
	}
	s.noticeSent(now)
	if !s.stale || s.snapshotEnd > 0 || !s.forwarder.up.Load() || now.Before(s.notBefore) {
		return nil
	}
	s.appendedAt, s.notBefore = now, now.Add(snapshotPause)
	last, err := s.appendSnapshot(ctx)
	if err != nil {
		return fmt.Errorf("append a snapshot of what is retained: %w", err)
	}
	s.snapshotEnd, s.stale = last, false
	if s.awaits != nil {
		return nil // it becomes stale once more
	}
	return s.clearStale(false)
}

// noticeStale makes the copy stale where a cause has come up since the last repair.
func (s *stream) noticeStale() error {
	if lost := s.losses(); lost != s.lost {
		if err := s.forwarder.mark(s.rule.Name); err != nil {
			return err
		}
		s.lost, s.stale = lost, true
	}
	if s.foundMark {
		s.foundMark, s.stale = false, true
		s.awaitOthers(s.forwarder.all()) // the mark may have been for topics of theirs
	}
	if s.awaits != nil && s.arrived() {
		s.awaits, s.stale = nil, true
	}
	return nil
}

// noticeSent ends the transfer of a snapshot that the CO has.
func (s *stream) noticeSent(now time.Time) {
	if s.snapshotEnd == 0 || s.queue.Trimmed() < s.snapshotEnd {
		return
	}
	s.snapshotEnd = 0
	if rested := now.Add(snapshotRest * now.Sub(s.appendedAt)); rested.After(s.notBefore) {
		s.notBefore = rested
	}
}

// awaitOthers makes the copy stale once the CO has what the other streams have queued
// now.
func (s *stream) awaitOthers(all []*stream) {
	s.awaits = map[string]uint64{}
	for _, o := range all {
		if o != s {
			s.awaits[o.rule.Name] = o.queue.Last()
		}
	}
}

// arrived reports whether the CO has all that is awaited. A stream that is there no
// more has delivered everything.
func (s *stream) arrived() bool {
	for _, o := range s.forwarder.all() {
		if o.queue.Trimmed() < s.awaits[o.rule.Name] {
			return false
		}
	}
	return true
}
