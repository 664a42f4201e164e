package journal

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// maxGroup bounds the bytes of one group commit, and so how long the first
// Append of a group waits for the others.
const maxGroup = 4 << 20

// retainedBuffer bounds what a journal at rest keeps of its buffer, because a site may
// have many journals.
const retainedBuffer = 32 << 10

// gatherYields is how often the others may run before a commit.
const gatherYields = 3

// request is an Append, or a control that the writer runs between two commits.
type request struct {
	entries []Entry
	control func(*writer) error

	// done is closed when last and err are set.
	done chan struct{}
	last uint64
	err  error
}

func (r *request) finish(last uint64, err error) {
	r.last, r.err = last, err
	close(r.done)
}

// writer owns every change of the disk. It runs on one goroutine, so that
// appending, trimming and rewriting need no order among themselves but their own.
type writer struct {
	j      *Journal
	active disk.File // the last segment; nil: the disk had no room for its file
	trimf  disk.File // the trim mark, in one of two slots; nil: likewise
	total  int64     // bytes of all segments

	// broken says that the active file may hold bytes past its durable size that
	// could not be cut off. Nothing is appended before they are.
	broken bool

	// mustRoll says that a next segment was begun and failed: its name may be on
	// disk, and a record appended to the segment before it would be overlooked.
	mustRoll bool

	// unnamed says that the epoch is not on disk: nothing is appended before it is.
	unnamed bool

	announced string // key of the loss that was journalled and not yet carried out

	stuck *ondisk.Segment // could not be compacted
	buf   []byte          // of write, kept between calls

	// Of Open:
	durable uint64          // the highest sequence that is known to have been durable
	damaged *ondisk.Segment // to be salvaged

	trimSlot  int64 // where the next trim mark is written
	trimDirty bool  // the mark was written since it was synced
}

// run serves requests until Close.
func (w *writer) run() {
	j := w.j
	defer close(j.stopped)
	var group []*request
	aged := w.ages()
	for {
		group = group[:0]
		select {
		case <-j.closing:
			w.close()
			return
		case <-aged:
			if err := w.expire(); err != nil {
				j.log.Warn("drop data that is too old", "err", err)
			}
			continue
		case r := <-j.requests:
			group = w.gather(append(group, r))
		}
		w.serve(group)
		w.tidy()
	}
}

// gather adds the requests that wait already; it does not wait for more, so that a lone
// Append pays for its own fsync only. But it lets those run first whom the last
// commit has woken: else they would come just too late, and each fsync would
// carry half of them.
func (w *writer) gather(group []*request) []*request {
	for range gatherYields {
		runtime.Gosched()
	}
	size := 0
	for _, e := range group[0].entries {
		size += len(e.Body)
	}
	for size < maxGroup {
		select {
		case r := <-w.j.requests:
			group = append(group, r)
			for _, e := range r.entries {
				size += len(e.Body)
			}
		default:
			return group
		}
	}
	return group
}

// serve commits the Appends of a group together, and runs the controls after.
func (w *writer) serve(group []*request) {
	appends := make([]*request, 0, len(group))
	for _, r := range group {
		if r.control == nil {
			appends = append(appends, r)
		}
	}
	w.commit(appends)
	for _, r := range group {
		if r.control != nil {
			r.finish(0, r.control(w))
		}
	}
}

func (w *writer) commit(appends []*request) {
	accepted := appends[:0]
	need := int64(0)
	most := min(maxGroup, w.j.opts.SegmentBytes) // so that a small journal is not one segment
	for _, r := range appends {
		n := r.size()
		if need > 0 && need+n > most {
			w.land(accepted)
			accepted, need = accepted[:0], 0
		}
		if err := w.room(need+n, r.reserve()); err != nil {
			w.j.mu.Lock()
			w.j.st.stats.Refused++
			w.j.mu.Unlock()
			r.finish(0, err)
			continue
		}
		need += n
		accepted = append(accepted, r)
	}
	w.land(accepted)
}

// land writes Appends that there is room for.
func (w *writer) land(accepted []*request) {
	if len(accepted) == 0 {
		return
	}
	now := w.j.Now().UnixMilli()
	var frames []ondisk.Frame
	seq := w.j.st.last // only this goroutine changes it
	for _, r := range accepted {
		for _, e := range r.entries {
			seq++
			frames = append(frames, ondisk.Frame{Seq: seq, Count: 1, Millis: now, Class: e.Class, Key: []byte(e.Key), Body: e.Body})
		}
		r.last = seq
	}
	err := w.write(frames)
	if err != nil {
		w.j.mu.Lock()
		w.j.st.stats.Refused += uint64(len(accepted))
		w.j.mu.Unlock()
	}
	for _, r := range accepted {
		if err != nil {
			r.last = 0
		}
		r.finish(r.last, err)
	}
}

func (r *request) size() (n int64) {
	for i := range r.entries {
		n += ondisk.RecordHeadSize + int64(len(r.entries[i].Key)+len(r.entries[i].Body))
	}
	return n
}

func (r *request) reserve() bool {
	return !slices.ContainsFunc(r.entries, func(e Entry) bool { return !e.Reserve })
}

// write makes frames durable at the end of the journal, and then visible.
func (w *writer) write(frames []ondisk.Frame) error {
	if err := w.ready(); err != nil {
		return unavailable("open the next segment", err)
	}
	j := w.j
	s := j.st.segments[len(j.st.segments)-1]
	w.buf = w.buf[:0]
	for i := range frames {
		if i > 0 {
			frames[i].Flags |= ondisk.FlagContinues
		}
		at := len(w.buf)
		w.buf = ondisk.AppendFrame(w.buf, &frames[i], s.Seed)
		frames[i].Size = len(w.buf) - at
	}
	if _, err := w.active.WriteAt(w.buf, s.Size); err != nil {
		w.cut(s)
		return unavailable("write", err)
	}
	if err := w.active.Sync(); err != nil {
		w.cut(s)
		return unavailable("sync", err)
	}
	w.publish(s, frames)
	_ = w.mark() // without it less is known of damage; a trim reports the error
	if cap(w.buf) > retainedBuffer {
		w.buf = nil
	}
	return nil
}

// publish lets readers see frames, which are durable.
func (w *writer) publish(s *ondisk.Segment, frames []ondisk.Frame) {
	j := w.j
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range frames {
		f := &frames[i]
		s.Note(ondisk.Mark{Seq: f.Seq, Off: s.Size})
		s.Size += int64(f.Size)
		s.Last = f.Last()
		w.total += int64(f.Size)
		j.st.account(s, f)
	}
	j.st.last = s.Last
	j.st.stats.Appended += uint64(len(frames))
	j.st.stats.Syncs++
	j.st.changed.Notify()
}

// account enters a record into what decides whether a rewrite keeps it: the keys, and the
// counters of its segment. Records may come in any order.
func (st *state) account(s *ondisk.Segment, f *ondisk.Frame) {
	s.Stamp(f.Millis)
	switch f.Class {
	case Data:
		s.Data += int64(f.Size)
	case State:
		if len(f.Key) == 0 || f.Seq <= st.trimmed {
			return
		}
		old, ok := st.keys[string(f.Key)]
		switch {
		case !ok:
			st.keys[string(f.Key)] = keyed{f.Seq, int64(f.Size)}
		case old.seq < f.Seq:
			st.kill(old)
			st.keys[string(f.Key)] = keyed{f.Seq, int64(f.Size)}
		case old.seq > f.Seq:
			st.kill(keyed{f.Seq, int64(f.Size)})
		}
	case Event:
		if f.Flags&ondisk.FlagSalvage != 0 && f.Seq > st.trimmed {
			st.salvaged[string(f.Key)] = f.Seq
		}
	case ondisk.Run:
	}
}

// kill counts a superseded record as dead in its segment.
func (st *state) kill(k keyed) {
	st.stats.Superseded++
	if i := st.find(k.seq); i >= 0 {
		st.segments[i].Dead += k.size
	}
}

// find returns the index of the segment that holds seq, or -1.
func (st *state) find(seq uint64) int {
	i, found := slices.BinarySearchFunc(st.segments, seq, func(s *ondisk.Segment, seq uint64) int {
		switch {
		case s.First > seq:
			return 1
		case s.First < seq:
			return -1
		}
		return 0
	})
	if !found {
		i--
	}
	return i
}

// ready makes sure that there is an active segment with room.
func (w *writer) ready() error {
	if err := w.saveEpoch(); err != nil {
		return err
	}
	s := w.j.st.segments[len(w.j.st.segments)-1]
	if w.broken {
		if w.cut(s); w.broken {
			return errors.New("the end of the last segment cannot be cut back to what is durable")
		}
	}
	if w.active == nil || w.mustRoll || s.Last >= s.First && (s.Size >= w.j.opts.SegmentBytes || w.spread(s)) {
		return w.roll()
	}
	return nil
}

// roll seals the active segment and begins the next.
func (w *writer) roll() (err error) {
	if w.active == nil { // the last one is the next, and has no file yet
		s := w.j.st.segments[len(w.j.st.segments)-1]
		w.active, err = w.createSegment(s.First)
		return err
	}
	next := &ondisk.Segment{First: w.j.st.last + 1, Last: w.j.st.last, Size: ondisk.HeadSize, Seed: w.j.seed, Scanned: true}
	f, err := w.createSegment(next.First)
	if w.mustRoll = err != nil; err != nil {
		return err
	}
	if err := w.active.Close(); err != nil {
		w.j.log.Warn("close sealed segment", "next", next.Name(), "err", err)
	}
	w.active = f
	w.total += ondisk.HeadSize
	w.j.mu.Lock()
	w.j.st.segments = append(w.j.st.segments, next)
	w.j.mu.Unlock()
	return nil
}

// createSegment makes an empty segment whose name and header are durable.
func (w *writer) createSegment(first uint64) (disk.File, error) {
	fs := w.j.fs
	name := ondisk.SegmentName(first)
	f, err := fs.Open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(ondisk.SegmentHeader(first, 0, w.j.seed), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fs.SyncDir()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), fs.Remove(name))
	}
	return f, nil
}

// cut removes what a failed write or sync has left behind the durable end. After
// a failed sync nothing is known of those bytes, so they are never kept.
func (w *writer) cut(s *ondisk.Segment) {
	err := w.active.Truncate(s.Size)
	if err == nil {
		err = w.active.Sync()
	}
	w.broken = err != nil
	if err != nil {
		w.j.log.Error("cut back last segment", "segment", s.Name(), "err", err)
	}
}

// unavailable is the error of an Append that the disk refused.
func unavailable(doing string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return protocol.Errorf(protocol.Unavailable, "journal: %s: the disk is full, free some space: %w", doing, err)
	}
	return protocol.Errorf(protocol.Unavailable, "journal: %s: %w", doing, err)
}

func (w *writer) close() {
	var err error
	if w.active != nil {
		err = w.active.Sync()
	}
	if err = errors.Join(err, closeAll(w.active, w.trimf)); err != nil {
		w.j.log.Error("close journal", "err", fmt.Errorf("close files: %w", err))
	}
}
