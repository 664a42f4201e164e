package sessionlog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Trim empties the segments that are not needed, and marks that in their names, as checkpoints may name them:
// it writes nothing, and so makes room on a full disk.
func (l *Log) Trim(used func(segment uint32) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for segment := range l.sizes {
		if l.spareLocked(segment, used) {
			errs = append(errs, l.trimLocked(segment))
		}
	}
	return errors.Join(errs...)
}

func (l *Log) trimLocked(segment uint32) error {
	path := l.trimmedPath(segment)
	if err := l.disk.Rename(l.segment(segment).Path, path); err != nil {
		return err
	}
	l.trimmed[segment] = l.number
	if err := errors.Join(l.forgetLocked(segment), l.disk.SyncDir(l.dir)); err != nil {
		return err // Open empties it, once its name says that it is not needed
	}
	return l.empty(path)
}

// empty takes the content of a file, which gives back the room that it takes.
func (l *Log) empty(path string) error {
	f, err := l.disk.Open(path, os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// trimmedBefore empties what Trim had not emptied before a crash, or not durably: else it takes its room for as long as the disk is full.
func (l *Log) trimmedBefore(entries []fs.DirEntry) {
	for _, e := range entries {
		n, ok := numberOf(e.Name(), trimmedPrefix)
		if !ok {
			continue
		}
		l.trimmed[n] = math.MaxUint32                                          // until the next checkpoint it may have been just now
		if info, err := e.Info(); err == nil && info.Size() > 0 && !l.Has(n) { // else one file has both names
			_ = l.empty(l.trimmedPath(n)) // where it fails the next start tries it
		}
	}
}

func (l *Log) trimmedPath(segment uint32) string {
	return filepath.Join(l.dir, fmt.Sprintf("%s%08d", trimmedPrefix, segment))
}

// spareLocked reports whether a segment is not needed.
func (l *Log) spareLocked(segment uint32, used func(uint32) bool) bool {
	return len(l.checkpoints) > 1 && segment < l.checkpoints[0] && !used(segment)
}

// Spare is how much of the disk two checkpoints free, in bytes, where the messages are moved before that live in few: segments
// that are nearly dead, but for unmovable ones. They take moved bytes elsewhere, and up to most.
func (l *Log) Spare(live *Live, most int64, unmovable map[uint32]bool) (bytes, moved int64, few map[uint32]bool) {
	type part struct {
		segment    uint32
		size, live int64
	}
	var parts []part
	sizes := l.Sizes()
	sizes[l.number] = l.Size()
	for n, size := range sizes {
		parts = append(parts, part{n, size, live.Of(n)})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.live, b.live) })
	few = make(map[uint32]bool)
	for _, p := range parts {
		cost := 2 * p.live // with what stands beside it
		if p.live > 0 && (cost > p.size/2 || moved+cost > most || unmovable[p.segment]) {
			continue
		}
		bytes += p.size - cost
		if moved += cost; p.live > 0 {
			few[p.segment] = true
		}
	}
	return bytes, moved, few
}

// reserveFile takes room of the disk for what makes room once the disk is full.
const reserveFile = "reserve"

// Reserve takes so many bytes of the disk, or what it still has, until Release. It returns false where it has fewer. It is
// called neither beside itself nor beside Release.
func (l *Log) Reserve(size int64) (whole bool) {
	f, err := l.disk.Open(filepath.Join(l.dir, reserveFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false // there is no room
	}
	defer func() { _ = f.Close() }()
	at, err := f.Size()
	zeros := make([]byte, 64<<10)
	for err == nil && at < size { // as a rule it has all
		var n int
		n, err = f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at)
		at += int64(n)
	}
	return err == nil
}

// Reserved is how many bytes Reserve has taken.
func (l *Log) Reserved() int64 {
	info, err := l.disk.Stat(filepath.Join(l.dir, reserveFile))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Free is how many bytes of the disk may still be written.
func (l *Log) Free() (int64, error) { return l.disk.Free(l.dir) }

// HasFree reports whether so many bytes of the disk may still be written, as far as that is known.
func (l *Log) HasFree(n int64) bool {
	free, err := l.Free()
	return err != nil || free >= n
}

// Room is how many bytes the disk has for the log: what is free, and what its segments and the reserve take.
func (l *Log) Room() (int64, error) {
	free, err := l.Free()
	if err != nil {
		return 0, fmt.Errorf("look at the room of the disk: %w", err)
	}
	room := min(free, math.MaxInt32) + l.Reserved() + l.Size() // as a disk without limit has more
	for _, size := range l.Sizes() {
		room += size
	}
	return room, nil
}

// Release gives back what Reserve took.
func (l *Log) Release() error {
	if err := l.disk.Remove(filepath.Join(l.dir, reserveFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("give back the room that is kept for a full disk: %w", err)
	}
	return nil
}

// forgetLocked closes what reads a segment.
func (l *Log) forgetLocked(segment uint32) error {
	var err error
	if r := l.readers[segment]; r != nil {
		err = r.Close()
		delete(l.readers, segment)
	}
	delete(l.sizes, segment)
	delete(l.unreadable, segment)
	return err
}

// Trimmed reports whether a segment was removed because it was not needed any more; the log need not
// have a record of that.
func (l *Log) Trimmed(segment uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.trimmed[segment]
	return ok
}
