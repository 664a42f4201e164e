// Package sessionlog is the log of all sessions of a broker: segments of records, and
// checkpoints of what the records before them come to. It knows of a record only where it is.
//
// A checkpoint belongs to a segment: it says what all segments before that one come to. Open reads
// the newest that is whole, and the segments from there on. The two newest are stored, with the
// segments from the older one on, so that a damaged checkpoint costs nothing but time. An
// older segment stays while something in it is still used.
package sessionlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
)

const (
	dirPerm          = 0o700
	segmentPrefix    = "segment-"
	checkpointPrefix = "checkpoint-"
	trimmedPrefix    = "trimmed-"
	// MaxRecord is the largest record, in bytes: Append refuses a larger one with all that
	// stand beside it.
	MaxRecord = 16 << 20
)

// A Log is an open log. Read may be called concurrently with everything else; the other
// methods are called one at a time, but for Checkpoint, which may run beside Append, Sync and Roll.
type Log struct {
	disk    disk.FS
	dir     string
	current *recordlog.Log // nil: the disk did not take one yet
	number  uint32         // of current; changed under mu
	durable int64          // bytes of current that are flushed
	marks   marker
	ends    ends
	// incomplete is what SetIncomplete noted last.
	incomplete bool

	mu sync.Mutex // protects what follows
	// sizes are the bytes of each segment, the current one without what was appended since.
	sizes       map[uint32]int64
	readers     map[uint32]*recordlog.Reader
	checkpoints []uint32 // by number
	unreadable  map[uint32]bool
	trimmed     map[uint32]uint32 // segments that Trim removed, and the current one then
}

// Found is what Open met besides the records.
type Found struct {
	Torn int64 // bytes of appends that were not flushed
	// Unsealed is the file whose end is not known to be whole, or "": nothing that is known to have been
	// flushed is missing there.
	Unsealed string
	// Incomplete says that the log may lack the last that became of the sessions, see SetIncomplete.
	Incomplete bool
	// Noted says that this is what SetIncomplete noted. Else nothing is noted, as in the log of an earlier release.
	Noted  bool
	Damage []*statefile.Damage // files that did not hold what was stored in them
	// Full is why nothing can be appended now, or nil. Append and Sync try again.
	Full error
}

// Open opens the log in a directory of a disk, which it creates. load receives the newest checkpoint
// that is whole, if there is one; what it refuses counts as damaged, and the one before it
// is tried. each receives the records behind it. A disk that takes nothing is no error.
func Open(d disk.FS, dir string, load func(checkpoint []byte) error, each func(record []byte, ref state.Ref) error) (*Log, Found, error) {
	if err := d.MkdirAll(dir, dirPerm); err != nil {
		return nil, Found{}, fmt.Errorf("create the directory of sessions: %w", err)
	}
	if err := atomicfile.Clean(d, dir); err != nil {
		return nil, Found{}, fmt.Errorf("clean the directory of sessions: %w", err)
	}
	entries, err := d.List(dir)
	if err != nil {
		return nil, Found{}, fmt.Errorf("read the directory of sessions: %w", err)
	}
	l := &Log{
		disk: d, dir: dir, sizes: make(map[uint32]int64), readers: make(map[uint32]*recordlog.Reader), unreadable: make(map[uint32]bool),
		trimmed: make(map[uint32]uint32), marks: markOf(d, dir),
	}
	for _, e := range entries {
		if n, ok := numberOf(e.Name(), checkpointPrefix); ok {
			l.checkpoints = append(l.checkpoints, n)
		}
		if n, ok := numberOf(e.Name(), segmentPrefix); ok {
			info, err := e.Info()
			if err != nil {
				return nil, Found{}, fmt.Errorf("look at %s: %w", e.Name(), err)
			}
			l.sizes[n] = info.Size()
		}
	}
	l.trimmedBefore(entries)
	slices.Sort(l.checkpoints)
	l.dropReplaced()
	var found Found
	from, err := l.loadCheckpoint(load, &found)
	var marked mark
	if err == nil {
		var damage *statefile.Damage
		if marked, damage, err = l.marks.load(); damage != nil {
			found.Damage = append(found.Damage, damage)
		}
	}
	if err == nil {
		found.Damage = append(found.Damage, l.irregular()...)
		found.Incomplete, found.Noted = l.openIncomplete(entries)
		found.Damage = append(found.Damage, l.missing(from, marked)...)
		err = l.replay(from, marked, each, &found)
	}
	if err != nil {
		return nil, found, errors.Join(err, l.Close())
	}
	return l, found, nil
}

func numberOf(name, prefix string) (uint32, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(rest, 10, 32)
	return uint32(n), ok && err == nil
}

// loadCheckpoint returns the first segment behind the checkpoint that was read.
func (l *Log) loadCheckpoint(load func([]byte) error, found *Found) (from uint32, err error) {
	for len(l.checkpoints) > 0 {
		n := l.checkpoints[len(l.checkpoints)-1]
		ok, err := l.checkpoint(n).Load(load)
		if damage, is := errors.AsType[*statefile.Damage](err); is {
			found.Damage = append(found.Damage, damage)
		} else if err != nil {
			return 0, fmt.Errorf("read the checkpoint of sessions: %w", err)
		} else if ok {
			for _, damage := range found.Damage {
				damage.Kept = true // by this one, and the segments behind it
			}
			return n, nil
		}
		l.checkpoints = l.checkpoints[:len(l.checkpoints)-1]
	}
	return 0, nil
}

func (l *Log) checkpoint(n uint32) statefile.File {
	return statefile.File{
		Identity: statefile.Identity{Role: "broker/sessions checkpoint", Name: strconv.Itoa(int(n))},
		Path:     filepath.Join(l.dir, fmt.Sprintf("%s%08d", checkpointPrefix, n)),
		Sealed:   true,
		Disk:     l.disk,
	}
}

func (l *Log) segment(n uint32) recordlog.Options {
	return recordlog.Options{
		Identity:  statefile.Identity{Role: "broker/sessions segment", Name: strconv.Itoa(int(n))},
		Path:      filepath.Join(l.dir, fmt.Sprintf("%s%08d", segmentPrefix, n)),
		MaxRecord: MaxRecord,
		Disk:      l.disk,
	}
}

// replay reads the segments from a number on. The last becomes the current one if it can be
// appended to.
func (l *Log) replay(from uint32, marked mark, each func([]byte, state.Ref) error, found *Found) error {
	numbers := l.numbers()
	for i, n := range numbers {
		l.number = n // the current one, if it is the last
		if n < from {
			continue
		}
		end := whole
		if i+1 < len(numbers) {
			end = l.endOf(n, numbers[i+1])
		}
		o := l.segment(n)
		if n == marked.segment {
			o.Durable = marked.records
		}
		log, met, err := recordlog.OpenAt(o, func(body []byte, at int64, _ uint64) error {
			if at == recordlog.Start || at >= end { // its head, or what was never acknowledged
				return nil
			}
			return each(body, state.Ref{Segment: n, At: uint32(at), Size: uint32(len(body))})
		})
		if err != nil {
			return fmt.Errorf("read the log of sessions: %w", err)
		}
		found.Torn += met.Torn
		last := i+1 == len(numbers)
		if met.Damage == nil && !last && end != whole && log.Size() < end {
			met.Damage = &statefile.Damage{Identity: o.Identity, Path: o.Path, Lost: 1, Err: fmt.Errorf("it ends at %d of %d bytes", log.Size(), end)}
		}
		if met.Unsealed && last {
			found.Unsealed = o.Path
		}
		l.durable = log.Size()
		if met.Damage != nil {
			found.Damage = append(found.Damage, met.Damage)
			l.durable = l.sizes[n] // what was salvaged is read again
		}
		if last && !log.Broken() && log.Size() > recordlog.Start { // without a head it was not begun
			l.current = log
			if h, ok := l.head(n); ok && h.ends {
				l.ends = ends{first: n, head: h.bytes, current: true}
			}
			found.Full = l.Sync() // what the program before has left to the system
			return nil
		}
		_ = log.Close() // it was read only
	}
	if from > 0 { // a segment with a lower number would not be read again
		l.number = max(l.number, from-1)
	}
	l.number = max(l.number, marked.segment) // and what the mark says would not be of another segment
	found.Full = l.Roll()
	return nil
}

// numbers returns the numbers of the segments, sorted.
func (l *Log) numbers() []uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]uint32, 0, len(l.sizes))
	for n := range l.sizes {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// whole is the end of a segment of which no other says it.
const whole = int64(1<<63 - 1)

// endOf returns where segment n ended when the next was begun: what stands behind it was refused.
func (l *Log) endOf(n, next uint32) int64 {
	if h, ok := l.head(next); ok && h.previous == n {
		return h.end
	}
	return whole
}

// A segmentHead is the first record of a segment.
type segmentHead struct {
	bytes    []byte
	previous uint32 // which segment came before it
	end      int64  // where that ended
	ends     bool   // it is one of ends
}

// head reads the head of a segment.
func (l *Log) head(n uint32) (h segmentHead, ok bool) {
	r, err := recordlog.OpenReader(l.segment(n))
	if err != nil {
		return h, false
	}
	defer func() { _ = r.Close() }()
	b, err := r.ReadAt(recordlog.Start, 0)
	if err != nil || len(b) != 12 && (len(b) != 13 || b[12] != headOfEnds) {
		return h, false
	}
	return segmentHead{bytes: b, previous: binary.LittleEndian.Uint32(b), end: int64(binary.LittleEndian.Uint64(b[4:])), ends: len(b) > 12}, true
}

// Roll begins a new segment. The current one is flushed; where that is not possible, what
// was not flushed before is given up.
func (l *Log) Roll() error { return l.begin(l.endCurrent(), nil) }

// endCurrent flushes the current segment, and returns the head of the next one.
func (l *Log) endCurrent() []byte {
	if l.current != nil {
		_ = l.Sync() // where it fails, durable says what the disk has
	}
	head := binary.LittleEndian.AppendUint32(nil, l.number)
	return binary.LittleEndian.AppendUint64(head, uint64(l.durable))
}

// begin begins a segment with a head and records.
func (l *Log) begin(head []byte, bodies [][]byte) error {
	n := l.number + 1
	next, _, err := recordlog.OpenAt(l.segment(n), func([]byte, int64, uint64) error { return nil })
	if err != nil {
		return fmt.Errorf("begin a segment of the log of sessions: %w", err)
	}
	if err := next.Replace(append([][]byte{head}, bodies...)); err != nil { // also over what an earlier attempt has left
		return errors.Join(fmt.Errorf("begin a segment of the log of sessions: %w", err), next.Close(), atomicfile.Remove(l.disk, l.segment(n).Path))
	}
	l.mu.Lock()
	if l.current != nil {
		l.sizes[l.number] = l.current.Size()
	}
	l.sizes[n] = next.Size()
	l.number = n
	l.mu.Unlock()
	if l.current != nil {
		_ = l.current.Close() // flushed above, or given up
	}
	l.current, l.durable, l.ends.current = next, next.Size(), false
	l.marks.flush()
	l.marks.set(mark{l.number, next.Records()})
	return nil
}

// Append appends records, and returns where each stands. They are durable after a Sync.
func (l *Log) Append(bodies [][]byte) ([]state.Ref, error) {
	if err := l.writable(); err != nil {
		return nil, err
	}
	at := l.current.Size()
	if err := l.current.Append(bodies...); err != nil {
		return nil, err
	}
	l.KeepEnds()
	refs := make([]state.Ref, len(bodies))
	for i, b := range bodies {
		refs[i] = state.Ref{Segment: l.number, At: uint32(at), Size: uint32(len(b))}
		at += recordlog.RecordHead + int64(len(b))
	}
	return refs, nil
}

// writable begins a segment where the current one takes nothing more.
func (l *Log) writable() error {
	if l.current == nil || l.current.Broken() || l.ends.current {
		return l.Roll()
	}
	return nil
}

// Sync makes durable what was appended before.
func (l *Log) Sync() error {
	if l.current == nil { // nothing was
		return l.Roll()
	}
	if err := l.current.Sync(); err != nil {
		return err
	}
	l.durable = l.current.Size()
	l.marks.set(mark{l.number, l.current.Records()})
	return nil
}

// Size is the length of the current segment, in bytes.
func (l *Log) Size() int64 {
	if l.current == nil {
		return 0
	}
	return l.current.Size()
}

// Number is the number of the current segment.
func (l *Log) Number() uint32 { return l.number }

// Read returns the record at ref.
func (l *Log) Read(ref state.Ref) ([]byte, error) {
	r, err := l.reader(ref.Segment)
	if err != nil {
		return nil, err
	}
	return r.ReadAt(int64(ref.At), int(ref.Size))
}

func (l *Log) reader(n uint32) (*recordlog.Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.readers[n]; r != nil {
		return r, nil
	}
	r, err := recordlog.OpenReader(l.segment(n))
	if err == nil {
		l.readers[n] = r
	}
	return r, err
}

// Unreadable returns the damage of a segment that err has kept from being read, once for each: nil from then on.
func (l *Log) Unreadable(segment uint32, err error) *statefile.Damage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreadable[segment] {
		return nil
	}
	l.unreadable[segment] = true
	o := l.segment(segment)
	return &statefile.Damage{Identity: o.Identity, Path: o.Path, Lost: 1, Err: err}
}

// Has reports whether a segment is there.
func (l *Log) Has(segment uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.sizes[segment]
	return ok
}

// Sizes returns the bytes of each segment but the current one.
func (l *Log) Sizes() map[uint32]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[uint32]int64, len(l.sizes))
	for n, size := range l.sizes {
		if n != l.number {
			out[n] = size
		}
	}
	return out
}

// Checkpoint stores the state that the segments before n result in, and removes what is not needed
// any more: all older checkpoints but one, and the segments before that one that neither the
// content nor later records use.
func (l *Log) Checkpoint(n uint32, content []byte, used func(segment uint32) bool) error {
	if err := l.checkpoint(n).Save(content); err != nil {
		return fmt.Errorf("write a checkpoint of sessions: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkpoints = append(l.checkpoints, n)
	var errs []error
	for ; len(l.checkpoints) > 2; l.checkpoints = l.checkpoints[1:] {
		errs = append(errs, l.checkpoint(l.checkpoints[0]).Remove())
	}
	for segment := range l.sizes {
		if l.spareLocked(segment, used) {
			errs = append(errs, l.forgetLocked(segment), atomicfile.Remove(l.disk, l.segment(segment).Path))
		}
	}
	for segment, since := range l.trimmed {
		if since = min(since, n); len(l.checkpoints) > 1 && since < l.checkpoints[0] { // none of the two names it
			errs = append(errs, atomicfile.Remove(l.disk, l.trimmedPath(segment)))
			delete(l.trimmed, segment)
			continue
		}
		l.trimmed[segment] = since
	}
	return errors.Join(errs...)
}

// Close flushes and closes the log.
func (l *Log) Close() error {
	var errs []error
	if l.current != nil {
		if !l.current.Broken() {
			errs = append(errs, l.Sync())
		}
		errs = append(errs, l.current.Close())
	}
	l.marks.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, r := range l.readers {
		errs = append(errs, r.Close())
		delete(l.readers, n)
	}
	return errors.Join(errs...)
}

// Durable is how many bytes of the current segment a power cut cannot take.
func (l *Log) Durable() int64 { return l.durable }
