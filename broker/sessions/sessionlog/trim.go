package sessionlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
