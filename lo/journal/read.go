package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A CorruptError says that a sealed segment cannot be read on at some place. The
// records from Seq to Last are unreadable; Salvage gives them up.
type CorruptError struct {
	Segment string // path
	Offset  int64
	Seq     uint64 // the first record that cannot be read
	Last    uint64 // the last record of the segment
	Err     error
}

// Error says what is broken and what to do.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal segment %s is corrupt at byte %d: records %d to %d cannot be read (%v); check the disk", e.Segment, e.Offset, e.Seq, e.Last, e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// Read returns up to maxRecords durable records in sequence, beginning with the
// first after max(after, Trimmed()), and as many as fit into maxBytes of bodies,
// but one at least if there is one. It returns none at the end of the journal.
// The bodies must not be changed. Reading on where the last Read ended costs no
// search. A *CorruptError, of kind Internal, says that a sealed segment is broken.
func (j *Journal) Read(after uint64, maxRecords, maxBytes int) ([]Record, error) {
	r := reading{j: j, maxRecords: maxRecords, maxBytes: maxBytes}
	for {
		j.mu.RLock()
		if len(r.records) == 0 {
			after = max(after, j.st.trimmed)
		}
		if after >= j.st.last || r.full {
			j.mu.RUnlock()
			return r.records, nil
		}
		s := j.st.segments[j.st.find(after+1)]
		from, end, last := s.seek(after+1), s.size, s.last
		// Opened under the lock, so that it is the file that the offsets belong to.
		f, err := j.fs.Open(s.name(), os.O_RDONLY)
		j.mu.RUnlock()
		if err == nil {
			err = r.segment(s, newScanner(f, s, from, end), after, last)
			f.Close()
		} else {
			err = j.corrupt(s, mark{after + 1, 0}, last, err)
		}
		if err != nil {
			if len(r.records) > 0 {
				return r.records, nil // what is whole first; the next Read meets the error
			}
			return nil, err
		}
		after = r.records[len(r.records)-1].Seq
	}
}

// Bodies is Read for a caller that needs the bodies only: bodies[i] is the event
// of sequence first+i.
func (j *Journal) Bodies(after uint64, maxRecords, maxBytes int) (first uint64, bodies [][]byte, err error) {
	records, err := j.Read(after, maxRecords, maxBytes)
	if err != nil || len(records) == 0 {
		return 0, nil, err
	}
	bodies = make([][]byte, len(records))
	for i := range records {
		bodies[i] = records[i].Body
	}
	return records[0].Seq, bodies, nil
}

// reading is the state of one Read.
type reading struct {
	j                    *Journal
	maxRecords, maxBytes int
	records              []Record
	bytes                int
	full                 bool
}

// segment adds the records of one segment after a sequence.
func (r *reading) segment(s *segment, sc *scanner, after, last uint64) error {
	var marks []mark
	begin := len(r.records)
	for !r.full {
		at := sc.at
		f, more, err := sc.next()
		if err == nil && !more && at.seq <= last {
			err = errTorn
		}
		if err != nil {
			return r.j.corrupt(s, at, last, err)
		}
		if !more {
			break
		}
		marks = append(marks, at)
		if f.last() <= after {
			continue
		}
		r.add(&f, after)
	}
	r.j.settle(s, marks, r.records[begin:], begin == 0)
	if len(r.records) == begin {
		return r.j.corrupt(s, sc.at, last, errTorn)
	}
	return nil
}

// add appends what f holds after a sequence, as far as the limits allow.
func (r *reading) add(f *frame, after uint64) {
	if f.class != classRun {
		if r.full = len(r.records) > 0 && (len(r.records) >= r.maxRecords || r.bytes+len(f.body) > r.maxBytes); r.full {
			return
		}
		r.bytes += len(f.body)
		r.records = append(r.records, Record{
			Entry: Entry{Class: f.class, Key: string(f.key), Body: f.body}, Seq: f.seq, UnixMillis: f.millis,
		})
		return
	}
	for seq := max(f.seq, after+1); seq <= f.last(); seq++ {
		if r.full = len(r.records) > 0 && (len(r.records) >= r.maxRecords || r.bytes+len(supersededBody) > r.maxBytes); r.full {
			return
		}
		r.bytes += len(supersededBody)
		r.records = append(r.records, superseded(seq))
	}
}

func superseded(seq uint64) Record {
	return Record{Entry: Entry{Body: supersededBody}, Seq: seq, Superseded: true}
}

// settle keeps the places that were passed for later seeks, and blanks the
// records whose place a later one took. first says that a Read begins with them.
func (j *Journal) settle(s *segment, marks []mark, records []Record, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range marks {
		if n := len(s.marks); n == 0 || m.off > s.marks[n-1].off {
			s.note(m)
		}
	}
	for i := range records {
		r := &records[i]
		if r.Class != State || r.Key == "" {
			continue
		}
		if k, ok := j.st.keys[r.Key]; ok && k.seq > r.Seq {
			*r = superseded(r.Seq)
		}
	}
	if first && len(records) > 0 && !records[0].Superseded {
		j.st.begins(&records[0])
	}
}

// corrupt tells what is broken for good from what may go better the next time,
// such as a lack of file descriptors.
func (j *Journal) corrupt(s *segment, at mark, last uint64, err error) error {
	if !errors.Is(err, errTorn) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EIO) {
		return protocol.Errorf(protocol.Unavailable, "journal: read segment %s: %w", s.name(), err)
	}
	c := &CorruptError{Segment: filepath.Join(j.dir, s.name()), Offset: at.off, Seq: at.seq, Last: last, Err: err}
	return protocol.Errorf(protocol.Internal, "%w", c)
}

// Stats returns a picture of the journal.
func (j *Journal) Stats() Stats {
	j.mu.RLock()
	st := j.st.stats
	st.Depth = j.st.last - j.st.trimmed
	st.Segments = len(j.st.segments)
	st.MaxBytes = j.opts.MaxBytes
	for _, s := range j.st.segments {
		st.Bytes += s.size
	}
	trimmed := j.st.trimmed
	oldest, of := j.st.known()
	j.mu.RUnlock()
	if st.Depth == 0 {
		return st
	}
	if of <= trimmed {
		// The stamp is kept until its record is trimmed, so that a scrape of the
		// metrics does not read the disk each time.
		oldest, of = j.findOldest(trimmed)
		j.mu.Lock()
		j.st.oldest, j.st.oldestOf = oldest, of
		j.mu.Unlock()
	}
	st.OldestUnixMillis = oldest
	return st
}

// maxFirsts is how many Reads are remembered, see state.firsts.
const maxFirsts = 16

// begins notes the first record of a Read. The lock is held.
func (st *state) begins(r *Record) {
	if st.firsts = append(st.firsts, stamped{r.Seq, r.UnixMillis}); len(st.firsts) > maxFirsts {
		st.firsts = st.firsts[1:]
	}
}

// known returns the oldest record's stamp if it is at hand. The lock is held.
func (st *state) known() (oldest int64, of uint64) {
	if st.oldestOf > st.trimmed {
		return st.oldest, st.oldestOf
	}
	for _, f := range st.firsts {
		if f.seq == st.trimmed+1 {
			return f.millis, f.seq
		}
	}
	return 0, 0
}

// Backlog returns what the journal tells of itself to the tier above, and Now of
// the same moment. Counting begins with Open.
func (j *Journal) Backlog() (protocol.Backlog, time.Time) {
	st, now := j.Stats(), j.Now()
	b := protocol.Backlog{Last: j.Last(), Bytes: uint64(st.Bytes), Dropped: st.Dropped + st.Lost}
	if st.OldestUnixMillis > 0 {
		b.OldestMillis = uint64(max(0, now.UnixMilli()-st.OldestUnixMillis))
	}
	return b, now
}

// findOldest looks for the first record after trimmed that has its stamp still.
func (j *Journal) findOldest(trimmed uint64) (millis int64, seq uint64) {
	for after := trimmed; ; {
		j.mu.RLock()
		if after >= j.st.last {
			j.mu.RUnlock()
			return 0, 0
		}
		s := j.st.segments[j.st.find(after+1)]
		from, end, last := s.seek(after+1), s.size, s.last
		f, err := j.fs.Open(s.name(), os.O_RDONLY)
		j.mu.RUnlock()
		if err != nil {
			return 0, 0
		}
		millis, seq, err = j.firstStamp(newScanner(f, s, from, end), after)
		if f.Close(); err != nil || millis > 0 {
			return millis, seq
		}
		after = last
	}
}

// firstStamp returns the first record after a sequence that nothing superseded.
func (j *Journal) firstStamp(sc *scanner, after uint64) (millis int64, seq uint64, err error) {
	for {
		f, more, err := sc.next()
		if err != nil || !more {
			return 0, 0, err
		}
		if f.seq <= after || f.class == classRun {
			continue
		}
		j.mu.RLock()
		outdated := j.st.outdated(&f)
		j.mu.RUnlock()
		if !outdated {
			return f.millis, f.seq, nil
		}
	}
}
