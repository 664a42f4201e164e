package journal

import (
	"errors"
	"os"

	"github.com/colonyfleet/colony/protocol"
)

// prepared is a segment that was written anew beside the ones that it replaces.
type prepared struct {
	at, n   int // it replaces segments[at : at+n]
	segment *segment

	// records and bytes count what it leaves out although nobody has it: Data
	// records, or unreadable ones.
	records, bytes uint64
	// earlier counts what the announcements told that it leaves out: the next one
	// tells it again, or they would pile up in a queue that overflows for days.
	earlier protocol.Loss
}

const rewriteChunk = 1 << 20

// rewriter writes the records that stay, and runs of tombstones for the others.
type rewriter struct {
	f    file
	s    *segment
	buf  []byte
	off  int64  // of buf in the file
	run  uint64 // first tombstone of the pending run
	next uint64 // the next sequence to write
	err  error
}

func (w *writer) newRewriter(first, last uint64) (*rewriter, error) {
	f, err := w.j.fs.Open(segmentName(first)+tmpExt, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	s := &segment{first: first, last: last, seed: w.j.seed, scanned: true}
	return &rewriter{f: f, s: s, buf: segmentHeader(first, last, s.seed), run: first, next: first}, nil
}

// skip leaves out everything before seq that was not kept.
func (r *rewriter) skip(seq uint64) { r.next = max(r.next, seq) }

func (r *rewriter) keep(f *frame) {
	r.flushRun()
	r.s.note(mark{f.seq, r.off + int64(len(r.buf))})
	r.buf = appendFrame(r.buf, f, r.s.seed)
	r.next = f.last() + 1
	r.run = r.next
	r.s.stamp(f.millis)
	if f.class == Data {
		r.s.data += int64(f.size)
	}
	if len(r.buf) >= rewriteChunk {
		r.flush()
	}
}

func (r *rewriter) flushRun() {
	if r.run < r.next {
		r.s.note(mark{r.run, r.off + int64(len(r.buf))})
		r.buf = appendRun(r.buf, r.run, r.next-r.run, r.s.seed)
		r.run = r.next
	}
}

func (r *rewriter) flush() {
	if r.err == nil {
		_, r.err = r.f.WriteAt(r.buf, r.off)
	}
	r.off += int64(len(r.buf))
	r.buf = r.buf[:0]
}

// finish makes the file durable under its temporary name.
func (r *rewriter) finish() error {
	r.skip(r.s.last + 1)
	r.flushRun()
	r.flush()
	r.s.size = r.off
	if r.err == nil {
		r.err = r.f.Sync()
	}
	return errors.Join(r.err, r.f.Close())
}

// prepare writes segments[at:at+n], which are sealed, anew as one segment without
// what is trimmed or superseded, and without Data where dropData is set.
func (w *writer) prepare(at, n int, dropData bool) (*prepared, error) {
	st := &w.j.st
	group := st.segments[at : at+n]
	if st.trimmed >= group[0].first {
		// What is left out because it is trimmed must never pass for there again.
		if err := w.syncTrim(); err != nil {
			return nil, err
		}
	}
	r, err := w.newRewriter(group[0].first, group[n-1].last)
	if err != nil {
		return nil, err
	}
	p := &prepared{at: at, n: n, segment: r.s}
	for _, s := range group {
		err := w.each(s, func(f *frame) {
			lost := dropData && (f.class == Data || f.flags&flagLoss != 0)
			if f.class == classRun || f.seq <= st.trimmed || lost || st.outdated(f) {
				r.skip(f.last() + 1)
			} else {
				r.keep(f)
			}
			switch {
			case !lost || f.seq <= st.trimmed:
			case f.class == Data:
				p.records++
				p.bytes += uint64(f.size)
			default:
				p.carry(f)
			}
		})
		if err != nil {
			return nil, errors.Join(err, r.f.Close(), w.abandon(p))
		}
	}
	if err := r.finish(); err != nil {
		return nil, errors.Join(err, w.abandon(p))
	}
	return p, nil
}

// carry takes over what an announcement tells.
func (p *prepared) carry(f *frame) {
	var e protocol.Event
	var l protocol.Loss
	if protocol.Unmarshal(f.body, &e) == nil && protocol.Unmarshal(e.Body, &l) == nil {
		p.earlier.Records += l.Records
		p.earlier.Bytes += l.Bytes
	}
}

// prepareBroken writes segment at anew with what can be read of it.
func (w *writer) prepareBroken(at int) (*prepared, error) {
	old := w.j.st.segments[at]
	r, err := w.newRewriter(old.first, old.last)
	if err != nil {
		return nil, err
	}
	p := &prepared{at: at, n: 1, segment: r.s}
	p.records, p.bytes, err = w.eachWhole(old, func(f *frame) {
		r.skip(f.seq) // what is lost before it
		if f.class == classRun {
			r.skip(f.last() + 1)
		} else {
			r.keep(f)
		}
	})
	if err != nil {
		return nil, errors.Join(err, r.f.Close(), w.abandon(p)) // it cannot be read now
	}
	if err := r.finish(); err != nil {
		return nil, errors.Join(err, w.abandon(p))
	}
	return p, nil
}

// outdated reports that a later record took the place of f. Only the writer
// changes the keys, so that it may read them without the lock.
func (st *state) outdated(f *frame) bool {
	if f.class != State || len(f.key) == 0 {
		return false
	}
	k, ok := st.keys[string(f.key)]
	return ok && k.seq > f.seq
}

// install puts p in the place of what it replaces. A crash in between leaves the
// old segments, or the new one and old ones that its head declares covered.
func (w *writer) install(p *prepared) error {
	j := w.j
	old := append([]*segment(nil), j.st.segments[p.at:p.at+p.n]...)
	j.mu.Lock()
	err := j.fs.Rename(p.segment.name()+tmpExt, p.segment.name())
	if err == nil {
		segments := append([]*segment(nil), j.st.segments[:p.at]...)
		segments = append(segments, p.segment)
		j.st.segments = append(segments, j.st.segments[p.at+p.n:]...)
		j.st.stats.Compactions++
		j.st.oldestOf, j.st.firsts = 0, nil // they may be gone
	}
	j.mu.Unlock()
	if err != nil {
		return errors.Join(err, w.abandon(p))
	}
	w.total += p.segment.size
	for _, s := range old {
		w.total -= s.size
	}
	if err := j.fs.SyncDir(); err != nil {
		return err
	}
	for _, s := range old[1:] {
		if err := j.fs.Remove(s.name()); err != nil {
			return err
		}
	}
	return nil
}

// abandon removes the file of p.
func (w *writer) abandon(p *prepared) error {
	return w.j.fs.Remove(p.segment.name() + tmpExt)
}
