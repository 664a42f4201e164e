package sessionlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// A mark says how far the log was flushed, at least: what is missing before it is damage, and no
// torn tail. It is in a file of its own, so that the end of a segment does not go with it.
type mark struct {
	segment uint32
	records uint64 // of the segment, its head among them
}

// The file has two places for a mark, in sectors of their own. After each flush of the log the mark is written to
// one of them, and not flushed: a crash of the program leaves it, and the system writes it by itself before
// long. At the end of a segment it is flushed, and the other place is next: so a power cut
// damages one of them at most.
const (
	markFile  = "durable"
	markPlace = 512
	markPerm  = 0o600
)

// A marker keeps the mark of a log. A disk that takes none is no error: then less is known at the next start.
type marker struct {
	disk disk.FS
	path string
	file disk.File // nil: there is none
	next int64     // the place of the next mark
}

func (m *marker) identity() statefile.Identity {
	return statefile.Identity{Role: "broker/sessions durable"}
}

// load returns the mark, which is empty where there is none. Without a valid one the file is damaged.
func (m *marker) load() (at mark, damage *statefile.Damage, err error) {
	b, err := disk.ReadFile(m.disk, m.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return mark{}, nil, nil
	case err != nil && !disk.Unreadable(err):
		return mark{}, nil, fmt.Errorf("read how far the log of sessions was flushed: %w", err)
	}
	valid := false
	for _, from := range []int{0, markPlace} {
		one, why := m.decode(b[min(from, len(b)):])
		if newer, ok := errors.AsType[*statefile.NewerError](why); ok {
			newer.Path = m.path
			return mark{}, nil, newer
		}
		if err = errors.Join(err, why); why == nil {
			valid = true
			at.raise(one)
		}
	}
	if valid {
		return at, nil, nil
	}
	aside, failed := statefile.SetAside(m.disk, m.path)
	return mark{}, &statefile.Damage{Identity: m.identity(), Path: m.path, Aside: aside, Kept: true, Err: errors.Join(err, failed)}, nil
}

func (m *marker) decode(b []byte) (mark, error) {
	content, _, err := m.identity().Unseal(b[:min(len(b), len(m.encode(mark{})))])
	if err != nil {
		return mark{}, err
	}
	return mark{segment: binary.LittleEndian.Uint32(content), records: binary.LittleEndian.Uint64(content[4:])}, nil
}

func (m *marker) encode(at mark) []byte {
	b := binary.LittleEndian.AppendUint32(nil, at.segment)
	return m.identity().Seal(binary.LittleEndian.AppendUint64(b, at.records))
}

// raise makes at the later of two marks.
func (at *mark) raise(other mark) {
	if other.segment > at.segment || other.segment == at.segment && other.records > at.records {
		*at = other
	}
}

// begin makes the file anew.
func (m *marker) begin(at mark) {
	m.close()
	b := make([]byte, markPlace)
	copy(b, m.encode(at))
	if atomicfile.Write(m.disk, m.path, append(b, m.encode(at)...), markPerm) != nil {
		return
	}
	if f, err := m.disk.Open(m.path, os.O_RDWR, markPerm); err == nil {
		m.file, m.next = f, 0
	}
}

// set notes how far the log is flushed.
func (m *marker) set(at mark) {
	if m.file == nil {
		m.begin(at)
		return
	}
	_, _ = m.file.WriteAt(m.encode(at), m.next) // where it fails, the one before counts
}

// flush makes durable what was set last.
func (m *marker) flush() {
	if m.file != nil && m.file.Sync() == nil {
		m.next = markPlace - m.next
	}
}

// close flushes and closes the file.
func (m *marker) close() {
	if m.file != nil {
		m.flush()
		_ = m.file.Close() // flushed above
		m.file = nil
	}
}

// missing returns the damage of segments that are not there, although something says that they were
// begun: the checkpoint that the log is read from, the mark, or the segment that came next.
func (l *Log) missing(from uint32, marked mark) (all []*statefile.Damage) {
	named := map[uint32]string{from: "its checkpoint", marked.segment: "the file " + markFile}
	for _, n := range l.numbers() {
		if h, ok := l.head(n); ok && n > from {
			named[h.previous] = fmt.Sprintf("segment %d", n)
		}
	}
	delete(named, 0)
	for _, n := range slices.Sorted(maps.Keys(named)) {
		if n < from || l.Has(n) || l.replaced(n) {
			continue
		}
		by := named[n]
		o := l.segment(n)
		damage := &statefile.Damage{Identity: o.Identity, Path: o.Path, Err: fmt.Errorf("%w, although %s says that it was begun", fs.ErrNotExist, by)}
		if n == marked.segment && marked.records > 0 {
			damage.Lost = marked.records - 1 // without the head
		}
		all = append(all, damage)
	}
	return all
}

func markOf(d disk.FS, dir string) marker { return marker{disk: d, path: filepath.Join(dir, markFile)} }
