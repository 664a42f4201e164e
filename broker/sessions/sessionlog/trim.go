package sessionlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Trim empties the segments that nobody needs now, and notes it in their names, as checkpoints may name them:
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
	err := l.forgetLocked(segment)
	f, failed := l.disk.Open(path, os.O_RDWR|os.O_TRUNC, 0)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, f.Close(), l.disk.SyncDir(l.dir))
}

func (l *Log) trimmedPath(segment uint32) string {
	return filepath.Join(l.dir, fmt.Sprintf("%s%08d", trimmedPrefix, segment))
}

// spareLocked reports whether nobody needs a segment.
func (l *Log) spareLocked(segment uint32, used func(uint32) bool) bool {
	return len(l.checkpoints) > 1 && segment < l.checkpoints[0] && !used(segment)
}

// Spare is how much the segments hold that nobody needs, the current one included, in bytes: two checkpoints later they can be removed.
func (l *Log) Spare(used func(segment uint32) bool) (bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for segment, size := range l.sizes {
		if segment != l.number && !used(segment) {
			bytes += size
		}
	}
	if l.current != nil && !used(l.number) {
		bytes += l.current.Size()
	}
	return bytes
}

// reserveFile takes room of the disk for checkpoints that are written once it is full.
const reserveFile = "reserve"

// Reserve takes so many bytes of the disk, or what it still has, until Release. It is called neither beside itself nor beside Release.
func (l *Log) Reserve(size int64) {
	f, err := l.disk.Open(filepath.Join(l.dir, reserveFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return // there is no room
	}
	defer func() { _ = f.Close() }() // what it could not take, it has not
	at, err := f.Size()
	if at >= size { // as a rule
		return
	}
	zeros := make([]byte, min(size, 64<<10))
	for err == nil && at < size {
		var n int
		n, err = f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at)
		at += int64(n)
	}
}

// reserveIrregular sets aside what is no file and stands in the place of the one that takes room.
func (l *Log) reserveIrregular() *statefile.Damage {
	path := filepath.Join(l.dir, reserveFile)
	aside, is, err := statefile.SetAsideIrregular(l.disk, path)
	if !is {
		return nil
	}
	return &statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions reserve"}, Path: path, Aside: aside, Kept: true, Err: errors.Join(disk.ErrIrregular, err)}
}

// Release gives back what Reserve took.
func (l *Log) Release() error {
	if err := l.disk.Remove(filepath.Join(l.dir, reserveFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("give back the room that is kept for checkpoints: %w", err)
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

// Trimmed reports whether a segment was removed because nobody needed it any more, although the log may not
// say so.
func (l *Log) Trimmed(segment uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.trimmed[segment]
	return ok
}
