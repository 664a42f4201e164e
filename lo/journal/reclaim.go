package journal

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// The classes of a protocol.Loss: why the records were lost.
const (
	lossBytes   = "bytes"   // the journal had reached MaxBytes
	lossAge     = "age"     // they were older than MaxAge
	lossCorrupt = "corrupt" // the disk gave back something else
)

// room frees space until need more bytes stay under the bound.
func (w *writer) room(need int64, reserve bool) error {
	limit := w.j.opts.MaxBytes
	if reserve {
		limit += limit / 16
	}
	if ondisk.HeadSize+need > limit {
		return protocol.Errorf(protocol.Invalid, "journal: %d bytes at once: the bound of the whole journal is %d", need, limit)
	}
	unsalvaged := map[*ondisk.Segment]error{}
	for w.total+need > limit {
		if err := w.reclaim(unsalvaged); err != nil {
			return err
		}
	}
	return nil
}

// errNothing says that nothing may be dropped.
var errNothing = errors.New("nothing to reclaim")

// reclaim frees some bytes: superseded records of a segment that is at least a
// quarter of them, or else the Data records of the oldest segment that has any. A
// damaged segment is salvaged first, because the site must go on while no uplink reads
// the journal. unsalvaged collects those that cannot be: they are passed over.
func (w *writer) reclaim(unsalvaged map[*ondisk.Segment]error) error {
	w.scanSealed()
	st := &w.j.st
	best, data := -1, -1
	for i, s := range st.segments[:len(st.segments)-1] {
		if unsalvaged[s] != nil {
			continue
		}
		if s.Damaged {
			if _, err := w.salvageSegment(i, ondisk.ErrTorn); err != nil {
				unsalvaged[s] = err
			}
			return nil // the caller sees whether that was enough
		}
		if s.Dead*4 >= s.Size && (best < 0 || s.Dead > st.segments[best].Dead) {
			best = i
		}
		if s.Data > 0 && data < 0 {
			data = i
		}
	}
	active := st.segments[len(st.segments)-1]
	var err error
	switch {
	case best >= 0:
		err = w.compact(best)
	case data >= 0:
		err = w.drop(data, lossBytes)
	case active.Dead*4 >= active.Size || active.Data > 0:
		err = w.roll()
	default:
		err = errNothing
	}
	if errors.Is(err, errNothing) && len(unsalvaged) > 0 {
		return unavailable("make room", errors.Join(slices.Collect(maps.Values(unsalvaged))...))
	}
	if errors.Is(err, errNothing) {
		return protocol.Errorf(protocol.Unavailable,
			"journal: %d bytes are waiting for the CO, the bound is %d: wait until the link is back, or raise the bound", w.total, w.j.opts.MaxBytes)
	}
	if err != nil && !w.noteDamage(err) {
		return unavailable("make room", err)
	}
	return nil
}

// noteDamage marks the segment that a *CorruptError is about, and reports whether err
// is one.
func (w *writer) noteDamage(err error) bool {
	c, ok := errors.AsType[*CorruptError](err)
	if !ok {
		return false
	}
	i := w.j.st.find(c.Last)
	if i < 0 {
		return false
	}
	w.j.st.segments[i].Damaged = true
	return true
}

// tidy rewrites one segment that is mostly dead, so that state which changes during an
// outage needs disk space for its last values only.
func (w *writer) tidy() {
	st := &w.j.st
	for i, s := range st.segments[:len(st.segments)-1] {
		if s.Dead*2 < s.Size || s.Size < ondisk.IndexInterval || s == w.stuck {
			continue
		}
		if err := w.compact(i); err != nil {
			w.j.log.Warn("compact segment", "segment", s.Name(), "err", err)
			w.stuck = s // not again at each commit
		}
		return
	}
}

// scanSealed counts the records of the sealed segments that were there at Open.
func (w *writer) scanSealed() {
	st := &w.j.st
	for i := len(st.segments) - 2; i >= 0; i-- {
		s := st.segments[i]
		w.scan(s)
	}
}

// scan counts the records of a segment that was there at Open.
func (w *writer) scan(s *ondisk.Segment) {
	if s.Scanned {
		return
	}
	// The lock is held for the accounting only; no other goroutine touches s.scanned.
	err := w.each(s, func(f *ondisk.Frame) {
		w.j.mu.Lock()
		w.j.st.account(s, f)
		w.j.mu.Unlock()
	})
	if err != nil {
		w.j.log.Error("scan sealed segment", "segment", s.Name(), "err", err)
	}
	_, s.Damaged = errors.AsType[*CorruptError](err)
	s.Scanned = true
}

// each calls do for every record of a segment.
func (w *writer) each(s *ondisk.Segment, do func(*ondisk.Frame)) error {
	f, err := w.j.fs.Open(s.Name(), os.O_RDONLY)
	if err != nil {
		return w.j.corrupt(s, ondisk.Mark{Seq: s.First, Off: ondisk.HeadSize}, s.Last, err)
	}
	defer f.Close()
	sc := ondisk.NewScanner(f, s, ondisk.Mark{Seq: s.First, Off: ondisk.HeadSize}, s.Size)
	for {
		at := sc.At
		fr, more, err := sc.Next()
		if err == nil && !more && at.Seq <= s.Last {
			err = ondisk.ErrTorn
		}
		if err != nil {
			return w.j.corrupt(s, at, s.Last, err)
		}
		if !more {
			return nil
		}
		do(&fr)
	}
}

// lossKey is the key of an announcement: the first and last sequence of the
// segments that Data is dropped from.
const lossKey = "%d-%d"

// withSmall returns the segments to rewrite together with segment i, which loses removed
// bytes: with a small one before it, so that a long outage does not leave many tiny files.
func (w *writer) withSmall(i int, removed int64) (at, n int) {
	if i > 0 {
		before, s := w.j.st.segments[i-1], w.j.st.segments[i]
		if before.Scanned && !before.Damaged && before.Size <= w.j.opts.SegmentBytes/4 && before.Size+s.Size-removed <= w.j.opts.SegmentBytes/2 {
			return i - 1, 2
		}
	}
	return i, 1
}

// compact rewrites segment i without what is superseded.
func (w *writer) compact(i int) error {
	at, n := w.withSmall(i, w.j.st.segments[i].Dead)
	p, err := w.prepare(at, n, false)
	if err != nil {
		return err
	}
	return w.install(p)
}

// drop removes the Data records of segment i. The loss is durable before the
// records go, and recovery repeats the removal, so that each is counted once.
// class is the bound that was reached.
func (w *writer) drop(i int, class string) error {
	at, n := w.withSmall(i, w.j.st.segments[i].Data)
	p, err := w.prepare(at, n, true)
	if err != nil {
		return err
	}
	key := fmt.Sprintf(lossKey, p.segment.First, p.segment.Last)
	if p.records+p.earlier.Records > 0 && key != w.announced {
		if err := w.announce(announcement{class: class, key: key, flags: ondisk.FlagLoss, records: p.earlier.Records + p.records, bytes: p.earlier.Bytes + p.bytes}); err != nil {
			return errors.Join(err, w.abandon(p))
		}
		w.announced = key
		w.j.mu.Lock()
		w.j.st.stats.Dropped += p.records
		w.j.st.stats.DroppedBytes += p.bytes
		w.j.mu.Unlock()
		w.j.log.Warn("data dropped under its bound", "bound", class, "records", p.records, "bytes", p.bytes)
	}
	if err := w.install(p); err != nil {
		return err
	}
	w.announced = ""
	return nil
}

// An announcement is a DataLost event of the journal itself.
type announcement struct {
	class          string
	key            string // of the record
	flags          byte   // of the record
	records, bytes uint64 // that are lost
}

// announce journals a loss.
func (w *writer) announce(a announcement) error {
	now := w.j.Now().UnixMilli()
	return w.write([]ondisk.Frame{{
		Seq: w.j.st.last + 1, Count: 1, Millis: now, Class: Event, Flags: a.flags, Key: []byte(a.key),
		Body: protocol.Marshal(protocol.Event{
			UnixMillis: now, Kind: protocol.DataLost,
			Body: protocol.Marshal(protocol.Loss{V: protocol.Version, Class: a.class, Records: a.records, Bytes: a.bytes}),
		}),
	}})
}
