package ondisk

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
)

// The streams of a log. The last two are of a container that agents before 0.3.0 started: the file that
// its shim appends both streams to, and what such an agent copied of it when it was too long.
const (
	stdout = iota
	stderr
	mixed
	earlier
	streams
)

var (
	streamNames = [streams]logs.Stream{logs.Stdout, logs.Stderr, logs.Mixed, logs.Mixed}
	fileNames   = [streams]string{"stdout", "stderr", "log", "log.1"}
)

const (
	marksName = "marks"
	role      = "en/log"
	// maxMarks bounds the marks of a log. Then every second one of the older half is dropped, so that the times
	// of old lines are known less well.
	maxMarks  = 2048
	maxRecord = 4096
)

// An extent is what is there of a stream. Its offsets are bytes since the creation of the
// container; the file has the byte at an offset at that less base. Where there are no holes in files, what is between
// old and base is in a file of its own, and base less old may be 0.
type extent struct {
	base  int64
	old   int64
	start int64 // of the first byte that is to be read
	lines int64 // the ends of lines before start
	end   int64 // up to which it was written when it was last looked at
	mid   bool  // start is within a line
	less  bool  // there were more lines before start than lines says
}

// A mark is a look at the streams: what is before ends was written by then, at the latest, and what comes
// after them later. Begins is set in that of a start of the container.
type mark struct {
	at     int64 // Unix nanoseconds
	run    uint32
	begins bool
	began  int64 // of the run, as at; 0: it is not known
	ends   [streams]int64
}

// A log is that of one container. A look, a start and a removal hold work; a reader of the files
// holds mu.
type log struct {
	key   string
	paths [streams]string                           // of the files, where they are not those of a container
	timed func(text string) (at time.Time, ok bool) // returns the time that a line says of itself; nil: none does

	work    sync.Mutex
	records *recordlog.Log // nil: nothing is noted any more
	written time.Time      // the last write that was seen
	// collapseAt is longest but in tests.
	collapseAt int64

	mu      sync.RWMutex // protects all below; held to write by what removes bytes from files
	id      engine.ID
	dir     string
	extents [streams]extent
	marks   []mark
	removed bool // its container was, and no more is written
	single  bool // there are files of an older agent
}

// load takes up the log in a directory, which it makes where it does not exist. The id is that of its
// container where that is known otherwise.
func load(dir, key string, id engine.ID, removed bool) (l *log, damage *statefile.Damage, err error) {
	l = &log{key: key, id: id, dir: dir, removed: removed, collapseAt: longest}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	var begun [streams]pending
	records, found, err := recordlog.Open(recordlog.Options{
		Identity: statefile.Identity{Role: role, Name: key}, Path: filepath.Join(dir, marksFile), MaxRecord: maxRecord,
	}, func(body []byte, _ uint64) error { return l.apply(body, &begun) })
	if err != nil {
		return nil, nil, err
	}
	l.records = records
	for i := range l.extents {
		err := l.survey(i, begun[i])
		if disk.Unreadable(err) { // it counts as removed
			aside, failed := statefile.SetAside(disk.OS, l.path(i))
			found.Damage = &statefile.Damage{Identity: statefile.Identity{Role: role, Name: key}, Path: l.path(i), Aside: aside, Err: errors.Join(err, failed)}
			err = l.survey(i, begun[i])
		}
		if err != nil {
			return nil, found.Damage, errors.Join(err, records.Close())
		}
	}
	if records.Broken() || found.New {
		l.rewrite()
	}
	if removed {
		l.records, err = nil, records.Close()
	}
	return l, found.Damage, err
}

// pending is what was about to be done to the file of a stream when the agent was killed.
type pending struct {
	collapse int64 // so many bytes were to be taken out of its front
	empty    int64 // it was to be emptied, when it had so many bytes
}

// survey compares what was noted about a stream with its file. The agent may have been killed, or the power have failed, between
// the two.
func (l *log) survey(i int, begun pending) error {
	e := &l.extents[i]
	f, err := disk.OpenFile(l.path(i), os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	l.single = l.single || i >= mixed
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if begun.collapse > 0 && size < begun.collapse {
		e.base, e.old = e.base+begun.collapse, e.base+begun.collapse
	}
	if begun.empty > 0 && size >= begun.empty {
		if err := os.Truncate(l.path(i), 0); err != nil {
			return err
		}
		size = 0
	}
	l.reach(i, e.base+size)
	if e.old < e.base && e.start < e.base {
		return nil
	}
	at := e.start - e.base
	data, err := part.SeekData(f, at, size)
	if err != nil || data <= at {
		return err
	}
	// Dropped, but not noted. The count of lines is lost.
	_, next, mid, err := part.CountLines(f, data, data)
	e.start, e.mid, e.less = e.base+next, mid, true
	return err
}

// reach notes how long a stream is. It may be shorter than it was before the power failed. The caller holds mu, or
// is alone.
func (l *log) reach(i int, end int64) {
	e := &l.extents[i]
	if end < e.end {
		for m := range l.marks {
			l.marks[m].ends[i] = min(l.marks[m].ends[i], end)
		}
		e.start = min(e.start, end)
	}
	e.end = end
}

// path returns the file of a stream. The caller holds mu, or work.
func (l *log) path(i int) string {
	if l.dir == "" {
		return l.paths[i]
	}
	if i >= mixed && !l.removed {
		return filepath.Join(filepath.Dir(l.dir), fileNames[i])
	}
	return filepath.Join(l.dir, fileNames[i])
}

// The kinds of records. A name says whose log it is. A mark and a begin are a mark. A drop says what is left of a stream. A
// collapse says how many bytes are about to be taken out of the front of its file. An empty says what will be left once its
// file is emptied.
const (
	recordName = iota + 1
	recordMark
	recordBegin
	recordDrop
	recordCollapse
	recordEmpty
)

// apply takes up a record.
func (l *log) apply(body []byte, begun *[streams]pending) error {
	if len(body) < 2 {
		return errors.New("it is too short")
	}
	kind, rest := body[0], body[1:]
	bad := false
	next := func() int64 {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > 1<<62 {
			bad = true
			return 0
		}
		rest = rest[n:]
		return int64(v)
	}
	stream := min(int(rest[0]), streams-1)
	switch kind {
	case recordName:
		return json.Unmarshal(rest, &l.id)
	case recordMark, recordBegin:
		at, n := binary.Varint(rest)
		if n <= 0 {
			return errors.New("it has no time")
		}
		rest = rest[n:]
		m := mark{at: at, begins: kind == recordBegin, run: uint32(next())}
		for i := range m.ends {
			m.ends[i] = next()
		}
		if !bad {
			for i, end := range m.ends {
				l.reach(i, end)
			}
			l.marks = append(l.marks, l.withBegin(m))
		}
	case recordDrop, recordEmpty:
		rest = rest[1:]
		e := extent{base: next(), old: next(), start: next(), lines: next(), end: l.extents[stream].end}
		flags := next()
		e.mid, e.less = flags&1 != 0, flags&2 != 0
		if !bad {
			e.end = max(e.end, e.start)
			l.extents[stream] = e
			begun[stream] = pending{}
			if kind == recordEmpty {
				begun[stream].empty = next()
			}
		}
	case recordCollapse:
		rest = rest[1:]
		begun[stream].collapse = next()
	default: // of a later release, which may add what this one can do without
	}
	if bad {
		return fmt.Errorf("its kind is %d, and its values are cut off", kind)
	}
	return nil
}

// note stores records. What cannot be stored now is stored with a later one: times are known less well until
// then, and the lines in a gap may not be. The caller holds work.
func (l *log) note(bodies ...[]byte) {
	if l.records == nil {
		return
	}
	if l.records.Broken() || l.records.Append(bodies...) != nil {
		l.rewrite()
	}
}

// rewrite replaces the records by those that are still needed. The caller holds work.
func (l *log) rewrite() {
	bodies := [][]byte{nameRecord(l.id)}
	for i, e := range l.extents {
		if e.start > 0 || e.base > 0 || e.less {
			bodies = append(bodies, e.record(i))
		}
	}
	for _, m := range l.marks {
		bodies = append(bodies, m.record())
	}
	_ = l.records.Replace(bodies) // broken until there is room, and tried again with the next record
}

// coarse is by how many nanoseconds the time of a write to a file may be too early.
const coarse = 50_000_000

// mark notes a look at the streams. The caller holds work.
func (l *log) mark(at time.Time, begins bool) {
	l.mu.Lock()
	m := mark{at: at.UnixNano(), begins: begins}
	for i, e := range l.extents {
		m.ends[i] = e.end
	}
	if n := len(l.marks); n > 0 {
		before := l.marks[n-1]
		if begins && before.begins && before.ends == m.ends { // a run that wrote nothing
			l.mu.Unlock()
			return
		}
		if late := before.at - m.at; late > 0 && late < coarse { // else the clock was set
			m.at = before.at
		}
		m.run = before.run
		if begins {
			m.run++
		}
	}
	l.marks = append(l.marks, l.withBegin(m))
	thinned := len(l.marks) >= maxMarks
	if thinned {
		l.thin()
	}
	l.mu.Unlock()
	if thinned {
		l.rewrite()
		return
	}
	l.note(m.record())
}

// withBegin returns the next mark with the begin of its run. The caller holds mu, or has the log for itself.
func (l *log) withBegin(m mark) mark {
	if n := len(l.marks); m.begins {
		m.began = m.at
	} else if n > 0 {
		m.began = l.marks[n-1].began
	}
	return m
}

// thin drops the marks before all that is there, and every second one of the older half where that is not
// enough. Those of the latest two starts stay. The caller holds mu.
func (l *log) thin() {
	starts := 0
	for n, m := range slices.Backward(l.marks) {
		if m.begins {
			starts++
		}
		if starts == 2 {
			starts = n
			break
		}
	}
	var out []mark
	for n, m := range l.marks {
		past := n+1 < len(l.marks)
		for i := 0; past && i < streams; i++ {
			past = l.marks[n+1].ends[i] <= l.extents[i].start
		}
		old := n < len(l.marks)/2 && n%2 == 1
		if !past && !old || m.begins && n >= starts {
			out = append(out, m)
		}
	}
	l.marks = out
}

// A writing is when bytes of a stream were written: between two times, by a run of the container, which has a begin where that is known.
type writing struct {
	notBefore, notAfter, began time.Time
	run                        uint32
}

// when returns when the bytes from from to to of a stream were written. Written is the time of the last write to the file. The caller
// holds mu to read.
func (l *log) when(i int, from, to int64, written time.Time) writing {
	w := writing{notAfter: written}
	after := sort.Search(len(l.marks), func(m int) bool { return l.marks[m].ends[i] >= to })
	if after < len(l.marks) {
		w.notAfter = time.Unix(0, l.marks[after].at)
	}
	before := sort.Search(len(l.marks), func(m int) bool { return l.marks[m].ends[i] > from }) - 1
	if before < 0 {
		return w
	}
	m := l.marks[before]
	w.notBefore, w.run = time.Unix(0, m.at), m.run
	if m.began != 0 {
		w.began = time.Unix(0, m.began)
	}
	if w.notAfter.Before(w.notBefore) { // the clock of files is some milliseconds coarse
		w.notAfter = w.notBefore
	}
	return w
}

// runEnd returns where the first start of the container at or after an offset of a stream was noted. The caller holds mu
// to read.
func (l *log) runEnd(i int, from int64) int64 {
	at := sort.Search(len(l.marks), func(m int) bool { return l.marks[m].ends[i] >= from })
	for _, m := range l.marks[at:] {
		if m.begins {
			return m.ends[i]
		}
	}
	return math.MaxInt64
}

// A window is the part of a log that one run of its container wrote.
type window struct {
	log      *log
	from, to [streams]int64
}

// windows returns the runs of a log, the oldest first.
func (l *log) windows() []window {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := window{log: l}
	for i, e := range l.extents {
		all.to[i] = e.end
	}
	var out []window
	now, first := all, true
	for _, m := range l.marks {
		if !m.begins {
			continue
		}
		now.to = m.ends
		if !first || m.ends != [streams]int64{} { // before the first start there may be what older agents wrote
			out = append(out, now)
		}
		now.from, now.to, first = m.ends, all.to, false
	}
	return append(out, now)
}

// describe returns what can be read of it.
func (l *log) describe() logs.Log {
	l.mu.RLock()
	defer l.mu.RUnlock()
	d := logs.Log{Deployment: l.id.Deployment, Component: l.id.Component, Container: l.id.Name, Removed: l.removed}
	for _, e := range l.extents {
		d.Bytes += e.end - e.start
	}
	for _, m := range l.marks {
		if m.begins {
			d.Runs++
		}
	}
	if n := len(l.marks); n > 0 {
		d.First, d.Last = time.Unix(0, l.marks[0].at), time.Unix(0, l.marks[n-1].at)
	}
	d.Runs = max(d.Runs, 1)
	return d
}
