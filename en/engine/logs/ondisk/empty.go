package ondisk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
)

// tailName is added to the name of a file for the one with what was before.
const tailName = ".tail"

// empty does the work of drop on a file system without holes: it copies the end of a file and empties the file. Bytes that
// are appended between the two steps are lost, and their number is unknown. The caller holds work.
func (l *log) empty(f *os.File, i int, leave int64) error {
	e := l.extents[i]
	leave /= 2 // the file, and as much before it
	if e.end-e.base <= leave {
		return nil
	}
	from := max(e.base, e.end-leave)
	lines, err := l.countOld(i, e)
	if err != nil {
		return err
	}
	more, next, mid, err := part.CountLines(f, max(e.start, e.base)-e.base, from-e.base)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, next, 2*leave+part.LineWindow))
	if err != nil {
		return err
	}
	if err := atomicfile.Write(disk.Or(nil), l.path(i)+tailName, text, 0o600); err != nil {
		return fmt.Errorf("copy the end of %s: %w", l.path(i), err)
	}
	n := next + int64(len(text))
	e.old, e.start, e.lines, e.mid = e.base+next, e.base+next, e.lines+lines+more, mid
	e.base += n
	e.end = e.base
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(e.emptyRecord(i, n))
	l.extents[i] = e
	if err := f.Truncate(0); err != nil {
		return err
	}
	l.note(e.record(i))
	return nil
}

// countOld counts the ends of lines from the start of a stream on that are in the file before its own.
func (l *log) countOld(i int, e extent) (lines int64, err error) {
	if e.start >= e.base {
		return 0, nil
	}
	f, err := disk.OpenFile(l.path(i)+tailName, os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, e.base-e.start)
	n, err := f.ReadAt(b, e.start-e.old)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return part.Ends(b[:n]), nil
}

// readOld reads of the file before that of a stream, from an offset on. The caller holds mu to read.
func (l *log) readOld(i int, b []byte, at int64) (int, error) {
	e := l.extents[i]
	f, err := disk.OpenFile(l.path(i)+tailName, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b[:min(int64(len(b)), e.base-at)], at-e.old)
}
