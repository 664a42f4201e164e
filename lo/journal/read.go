package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// A CorruptError says that a sealed segment cannot be read from some record on. The
// records from Seq to Last are unreadable; Salvage gives them up.
type CorruptError struct {
	Segment string // path
	Offset  int64  // of the first record that cannot be read
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
		from, end, last := s.Seek(after+1), s.Size, s.Last
		// Opened under the lock, so that it is the file that the offsets belong to.
		f, err := j.fs.Open(s.Name(), os.O_RDONLY)
		j.mu.RUnlock()
		if err == nil {
			err = r.segment(s, ondisk.NewScanner(f, s, from, end), after, last)
			f.Close()
		} else {
			err = j.corrupt(s, ondisk.Mark{Seq: after + 1, Off: 0}, last, err)
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
func (r *reading) segment(s *ondisk.Segment, sc *ondisk.Scanner, after, last uint64) error {
	var marks []ondisk.Mark
	begin := len(r.records)
	for !r.full {
		at := sc.At
		f, more, err := sc.Next()
		if err == nil && !more && at.Seq <= last {
			err = ondisk.ErrTorn
		}
		if err != nil {
			return r.j.corrupt(s, at, last, err)
		}
		if !more {
			break
		}
		marks = append(marks, at)
		if f.Last() <= after {
			continue
		}
		r.add(&f, after)
	}
	r.j.settle(s, marks, r.records[begin:], begin == 0)
	if len(r.records) == begin {
		return r.j.corrupt(s, sc.At, last, ondisk.ErrTorn)
	}
	return nil
}

// add appends what f holds after a sequence, as far as the limits allow.
func (r *reading) add(f *ondisk.Frame, after uint64) {
	if f.Class != ondisk.Run {
		if r.full = len(r.records) > 0 && (len(r.records) >= r.maxRecords || r.bytes+len(f.Body) > r.maxBytes); r.full {
			return
		}
		r.bytes += len(f.Body)
		r.records = append(r.records, Record{
			Entry: Entry{Class: f.Class, Key: string(f.Key), Body: f.Body}, Seq: f.Seq, UnixMillis: f.Millis,
		})
		return
	}
	for seq := max(f.Seq, after+1); seq <= f.Last(); seq++ {
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

// settle adds the positions that were read to the index, and blanks the records that a
// later one superseded. first says that a Read begins with them.
func (j *Journal) settle(s *ondisk.Segment, marks []ondisk.Mark, records []Record, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range marks {
		if n := len(s.Marks); n == 0 || m.Off > s.Marks[n-1].Off {
			s.Note(m)
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

// corrupt distinguishes permanent damage from what a later attempt may read,
// such as a lack of file descriptors.
func (j *Journal) corrupt(s *ondisk.Segment, at ondisk.Mark, last uint64, err error) error {
	if !errors.Is(err, ondisk.ErrTorn) && !errors.Is(err, fs.ErrNotExist) && !disk.Unreadable(err) {
		return protocol.Errorf(protocol.Unavailable, "journal: read segment %s: %w", s.Name(), err)
	}
	c := &CorruptError{Segment: filepath.Join(j.dir, s.Name()), Offset: at.Off, Seq: at.Seq, Last: last, Err: err}
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
		st.Bytes += s.Size
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

// Backlog returns what the journal reports of itself to the tier above, and Now of
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
		from, end, last := s.Seek(after+1), s.Size, s.Last
		f, err := j.fs.Open(s.Name(), os.O_RDONLY)
		j.mu.RUnlock()
		if err != nil {
			return 0, 0
		}
		millis, seq, err = j.firstStamp(ondisk.NewScanner(f, s, from, end), after)
		if f.Close(); err != nil || millis > 0 {
			return millis, seq
		}
		after = last
	}
}

// firstStamp returns the first record after a sequence that nothing superseded.
func (j *Journal) firstStamp(sc *ondisk.Scanner, after uint64) (millis int64, seq uint64, err error) {
	for {
		f, more, err := sc.Next()
		if err != nil || !more {
			return 0, 0, err
		}
		if f.Seq <= after || f.Class == ondisk.Run {
			continue
		}
		j.mu.RLock()
		outdated := j.st.outdated(&f)
		j.mu.RUnlock()
		if !outdated {
			return f.Millis, f.Seq, nil
		}
	}
}
