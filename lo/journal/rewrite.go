package journal

import (
	"errors"

	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// prepared is a segment that was written anew beside the ones that it replaces.
type prepared struct {
	at, n   int // it replaces segments[at : at+n]
	segment *ondisk.Segment

	// records and bytes count what it leaves out although the CO does not have it: Data records, or
	// unreadable ones.
	records, bytes uint64
	gaps           uint64 // a hash of the sequences of the unreadable ones
	// earlier sums the losses of the announcements that it leaves out. The next
	// announcement adds them to its own, so that a journal that drops Data for days
	// holds one announcement and not one for each segment.
	earlier protocol.Loss
}

// prepare writes segments[at:at+n], which are sealed, anew as one segment without
// what is trimmed or superseded, and without Data where dropData is set.
func (w *writer) prepare(at, n int, dropData bool) (*prepared, error) {
	st := &w.j.st
	group := st.segments[at : at+n]
	if st.trimmed >= group[0].First {
		// What is left out because it is trimmed must not be read again after a crash.
		if err := w.syncTrim(); err != nil {
			return nil, err
		}
	}
	r, err := ondisk.NewRewriter(w.j.fs, group[0].First, group[n-1].Last, w.j.seed)
	if err != nil {
		return nil, err
	}
	p := &prepared{at: at, n: n, segment: r.Result()}
	for _, s := range group {
		err := w.each(s, func(f *ondisk.Frame) {
			lost := dropData && (f.Class == Data || f.Flags&ondisk.FlagLoss != 0)
			if f.Class == ondisk.Run || f.Seq <= st.trimmed || lost || st.outdated(f) {
				r.Skip(f.Last() + 1)
			} else {
				r.Keep(f)
			}
			switch {
			case !lost || f.Seq <= st.trimmed:
			case f.Class == Data:
				p.records++
				p.bytes += uint64(f.Size)
			default:
				p.carry(f)
			}
		})
		if err != nil {
			return nil, errors.Join(err, r.Abort(), w.abandon(p))
		}
	}
	if err := r.Finish(); err != nil {
		return nil, errors.Join(err, w.abandon(p))
	}
	return p, nil
}

// carry adds the loss of an announcement that is left out to p.
func (p *prepared) carry(f *ondisk.Frame) {
	var e protocol.Event
	var l protocol.Loss
	if protocol.Unmarshal(f.Body, &e) == nil && protocol.Unmarshal(e.Body, &l) == nil {
		p.earlier.Records += l.Records
		p.earlier.Bytes += l.Bytes
	}
}

// prepareBroken writes segment at anew with what can be read of it.
func (w *writer) prepareBroken(at int) (*prepared, error) {
	old := w.j.st.segments[at]
	r, err := ondisk.NewRewriter(w.j.fs, old.First, old.Last, w.j.seed)
	if err != nil {
		return nil, err
	}
	p := &prepared{at: at, n: 1, segment: r.Result()}
	m, err := w.eachWhole(old, func(f *ondisk.Frame) {
		r.Skip(f.Seq) // what is lost before it
		if f.Class == ondisk.Run {
			r.Skip(f.Last() + 1)
		} else {
			r.Keep(f)
		}
	})
	if err != nil {
		return nil, errors.Join(err, r.Abort(), w.abandon(p)) // it cannot be read now
	}
	p.records, p.bytes, p.gaps = m.records, m.bytes, m.gaps
	if err := r.Finish(); err != nil {
		return nil, errors.Join(err, w.abandon(p))
	}
	return p, nil
}

// outdated reports that a later record supersedes f. Only the writer
// changes the keys, so that it may read them without the lock.
func (st *state) outdated(f *ondisk.Frame) bool {
	if f.Class != State || len(f.Key) == 0 {
		return false
	}
	k, ok := st.keys[string(f.Key)]
	return ok && k.seq > f.Seq
}

// install renames p over the first segment that it replaces and removes the others. A crash in between leaves the
// old segments, or the new one and old ones that its head declares covered.
func (w *writer) install(p *prepared) error {
	j := w.j
	old := append([]*ondisk.Segment(nil), j.st.segments[p.at:p.at+p.n]...)
	j.mu.Lock()
	err := j.fs.Rename(p.segment.Name()+ondisk.TempExt, p.segment.Name())
	if err == nil {
		segments := append([]*ondisk.Segment(nil), j.st.segments[:p.at]...)
		segments = append(segments, p.segment)
		j.st.segments = append(segments, j.st.segments[p.at+p.n:]...)
		j.st.stats.Compactions++
		j.st.oldestOf, j.st.firsts = 0, nil // they may be left out
	}
	j.mu.Unlock()
	if err != nil {
		return errors.Join(err, w.abandon(p))
	}
	w.total += p.segment.Size
	for _, s := range old {
		w.total -= s.Size
	}
	if err := j.fs.SyncDir(); err != nil {
		return err
	}
	for _, s := range old[1:] {
		if err := j.fs.Remove(s.Name()); err != nil {
			return err
		}
	}
	return nil
}

// abandon removes the file of p.
func (w *writer) abandon(p *prepared) error {
	return w.j.fs.Remove(p.segment.Name() + ondisk.TempExt)
}
