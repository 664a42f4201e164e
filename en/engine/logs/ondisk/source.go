package ondisk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/internal/disk"
)

// readSize is how much is read of a file at a time.
const readSize = 64 << 10

// A source reads the lines of one stream.
type source struct {
	log      *log
	stream   int
	file     *os.File
	from, to int64 // which offsets are asked for; to -1: all that will be written
	past     int64 // what is before this offset was written before the reading began
	final    bool  // what has no end of line yet is given as well
	written  time.Time
	crossed  int64 // where a gap was given because the file was emptied there

	buffer []byte // of readSize
	unread []byte // in buffer
	at     int64  // the offset of the first byte of unread
	lines  int64  // the ends of lines before at, with those that are missing

	// The line that is being read: where it begins, its first bytes, and which of its properties
	// are known.
	begin   int64
	text    []byte
	partial bool
	mid     bool // what comes after the gap begins within a line

	gap  *logs.Entry // to be given before what comes next
	head *logs.Entry // read, and not taken
}

// open opens a stream of a log. A nil source has nothing to give yet.
func (l *log) open(i int, from, to int64) (*source, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.extents[i].end == 0 {
		return nil, nil
	}
	f, err := disk.OpenFile(l.path(i), os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &source{log: l, stream: i, file: f, from: from, to: to, buffer: make([]byte, readSize)}, nil
}

// peek returns the next entry, nil where there is none (yet).
func (s *source) peek() (*logs.Entry, error) {
	for s.head == nil {
		e, err := s.next()
		if e == nil || err != nil {
			return nil, err
		}
		if end := e.Offset; e.Gap != nil && end+e.Gap.Bytes > s.from || e.Gap == nil && end >= s.from {
			s.head = e
		}
	}
	return s.head, nil
}

func (s *source) dropHead() { s.head = nil }

func (s *source) next() (*logs.Entry, error) {
	for {
		if s.gap != nil {
			e := s.gap
			s.gap = nil
			return e, nil
		}
		if at := bytes.IndexByte(s.unread, '\n'); at >= 0 {
			s.add(at)
			e := s.line(1)
			s.unread, s.at, s.lines = s.unread[1:], s.at+1, s.lines+1
			s.reset()
			return e, nil
		}
		s.add(len(s.unread))
		open := s.at > s.begin
		if open && s.runEnds() {
			return s.unended(), nil
		}
		more, err := s.refill()
		switch {
		case err != nil:
			return nil, err
		case s.gap != nil && open:
			return s.brokenOff(), nil
		case s.gap != nil:
			s.reset()
			s.partial = s.mid
		case !more && s.final && open:
			return s.unended(), nil
		case !more:
			return nil, nil
		}
	}
}

// unended returns the line that was read, which has no end.
func (s *source) unended() *logs.Entry {
	e := s.line(0)
	e.Partial = true
	s.reset()
	return e
}

// add takes the next n unread bytes into the line.
func (s *source) add(n int) {
	if room := 2*logs.MaxText - len(s.text); room > 0 {
		s.text = append(s.text, s.unread[:min(n, room)]...)
	}
	s.unread, s.at = s.unread[n:], s.at+int64(n)
}

// reset begins another line where the reading is.
func (s *source) reset() {
	s.begin, s.text, s.partial = s.at, s.text[:0], false
}

// line returns the line that was read, which ends before at, and before the n bytes that end it.
func (s *source) line(n int64) *logs.Entry {
	text, left := logs.Text(s.text)
	e := s.entry(s.begin, s.at+n)
	e.Line, e.Text, e.Partial = s.lines+1, text, s.partial
	e.Cut = s.at - s.begin - int64(len(s.text)) + int64(left)
	if s.log.timed != nil {
		if at, ok := s.log.timed(text); ok {
			e.NotBefore, e.Time = at, at
		}
	}
	return e
}

// entry returns an entry about the bytes from from to to.
func (s *source) entry(from, to int64) *logs.Entry {
	l := s.log
	l.mu.RLock()
	defer l.mu.RUnlock()
	e := &logs.Entry{Deployment: l.id.Deployment, Component: l.id.Component, Container: l.id.Name, Stream: streamNames[s.stream], Offset: from}
	w := l.when(s.stream, from, to, s.written)
	e.NotBefore, e.Time, e.Run, e.Began = w.notBefore, w.notAfter, w.run, w.began
	return e
}

// brokenOff returns the line whose rest was dropped while it was read. It is before the gap.
func (s *source) brokenOff() *logs.Entry {
	gap := s.gap
	text, left := logs.Text(s.text)
	e := s.entry(s.begin, gap.Offset)
	e.Line, e.Text, e.Partial = gap.Line, text, true
	e.Cut = gap.Offset - s.begin - int64(len(s.text)) + int64(left)
	if gap.Gap.Lines > 0 { // its end is the first that is missing
		gap.Line++
		gap.Gap.Lines--
	}
	s.reset()
	s.partial = s.mid
	return e
}

// runEnds reports whether one run of the container ends where the reading is, and another begins.
func (s *source) runEnds() bool {
	s.log.mu.RLock()
	defer s.log.mu.RUnlock()
	return s.log.runEnd(s.stream, s.at) == s.at
}

// missing returns a gap from where the reading is to an offset. The caller holds mu of the log to read.
func (s *source) missing(to int64, gap *logs.Gap) *logs.Entry {
	l := s.log
	w := l.when(s.stream, s.at, to, s.written)
	return &logs.Entry{
		Deployment: l.id.Deployment, Component: l.id.Component, Container: l.id.Name, Stream: streamNames[s.stream], Offset: s.at, Line: s.lines + 1,
		NotBefore: w.notBefore, Time: w.notAfter, Run: w.run, Began: w.began, Gap: gap,
	}
}

// refill reads on. Where bytes were dropped that were not read, gap is set. More is false at the end.
func (s *source) refill() (more bool, err error) {
	l := s.log
	l.mu.RLock()
	e := l.extents[s.stream]
	if s.at < e.start {
		gap := &logs.Gap{Bytes: e.start - s.at, Lines: max(e.lines-s.lines, 0), LinesUnknown: e.less && s.at == 0}
		s.gap = s.missing(e.start, gap)
		s.at, s.lines, s.mid = e.start, max(e.lines, s.lines), e.mid
		l.mu.RUnlock()
		return true, nil
	}
	defer l.mu.RUnlock()
	if e.old < e.base && s.at == e.base && s.crossed != e.base {
		// The file was emptied here; what was written in between is unknown.
		s.crossed = e.base
		s.gap = s.missing(s.at, &logs.Gap{LinesUnknown: true})
		return true, nil
	}
	size := min(readSize, l.runEnd(s.stream, s.at+1)-s.at)
	if s.to >= 0 {
		size = min(size, s.to-s.at)
	}
	if size <= 0 {
		return false, nil
	}
	if info, err := s.file.Stat(); err == nil {
		s.written = info.ModTime()
	}
	var n int
	if s.at < e.base {
		n, err = l.readOld(s.stream, s.buffer[:size], s.at)
	} else {
		n, err = s.file.ReadAt(s.buffer[:size], s.at-e.base)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	s.unread = s.buffer[:n]
	return n > 0, nil
}
