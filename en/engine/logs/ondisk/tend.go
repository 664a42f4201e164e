package ondisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/disk"
)

const (
	// marksFile is the file with the records of a log.
	marksFile = "marks"
	// markEvery is the shortest time between two marks.
	markEvery = time.Second
	// The time between two looks at the files: idle, while a reader follows, and while a file grows
	// fast.
	lookIdle      = 250 * time.Millisecond
	lookFollowing = 50 * time.Millisecond
	lookLeast     = 5 * time.Millisecond
	// trimEvery is the time between two looks at the logs of removed containers.
	trimEvery = time.Minute
)

// longest is the length of a file from which on its front is taken out: file systems have a largest one, 4 TiB on
// some. It is a multiple of any block.
const longest = 1 << 40

// tend looks after the files until ctx ends.
func (s *Store) tend(ctx context.Context) {
	defer close(s.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var trimmed, looked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		wait := s.lookAll(ctx, began, began.Sub(looked))
		looked = began
		if began.Sub(trimmed) >= trimEvery {
			trimmed = began
			if err := s.trim(); err != nil {
				s.o.Logger.WarnContext(ctx, "logs of removed containers not bounded", "err", err)
			}
		}
		if s.following.Load() > 0 {
			wait = min(wait, lookFollowing)
		}
		timer.Reset(wait)
	}
}

// lookAll looks at all files, and returns when to do so again: before the stream that grows fastest, by what came since the last
// look, is longer than its limit by a quarter.
func (s *Store) lookAll(ctx context.Context, now time.Time, since time.Duration) time.Duration {
	all := s.all()
	limit := s.o.Stream
	if n := int64(len(all)); n > 0 {
		limit = min(limit, max(s.o.Node/(2*n), minStream))
	}
	most := int64(0)
	for _, l := range all {
		grown, err := s.lookAt(l, now, limit)
		if err != nil {
			s.o.Logger.WarnContext(ctx, "log of a container not bounded", "container", l.key, "err", err)
		}
		most = max(most, grown)
	}
	if most == 0 {
		return lookIdle
	}
	s.changed.Notify()
	wait := float64(since) * float64(limit/4) / float64(most)
	return time.Duration(min(max(wait, float64(lookLeast)), float64(lookIdle)))
}

// lookAt looks at the files of a log, and returns by how much the one grew that grew most.
func (s *Store) lookAt(l *log, now time.Time, limit int64) (grown int64, err error) {
	l.work.Lock()
	defer l.work.Unlock()
	if l.records == nil { // removed meanwhile
		return 0, nil
	}
	grown = l.look()
	unmarked := len(l.marks) == 0
	if !unmarked {
		m := l.marks[len(l.marks)-1]
		for i, e := range l.extents {
			unmarked = unmarked || e.end > m.ends[i]
		}
		unmarked = unmarked && now.UnixNano()-m.at >= int64(markEvery)
	}
	if unmarked && !l.written.IsZero() {
		l.mark(l.written, false)
	}
	var errs []error
	for i := range l.extents {
		if e := l.extents[i]; e.end-e.start > limit {
			errs = append(errs, l.drop(i, limit-limit/4))
		}
	}
	return grown, errors.Join(errs...)
}

// look takes note of the lengths of the files. It returns by how much the one grew that grew most. The
// caller holds work.
func (l *log) look() (grown int64) {
	var ends [streams]int64
	for i, e := range l.extents {
		ends[i] = e.end
		if i >= mixed && !l.single {
			continue
		}
		info, err := os.Stat(l.path(i))
		if err != nil {
			continue
		}
		ends[i] = e.base + info.Size()
		if t := info.ModTime(); ends[i] > e.end && t.After(l.written) {
			l.written = t
		}
		grown = max(grown, ends[i]-e.end)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, end := range ends {
		l.reach(i, end)
	}
	return grown
}

// drop removes the oldest bytes of a stream, and leaves about so many. The caller holds work.
func (l *log) drop(i int, leave int64) error {
	f, err := disk.OpenFile(l.path(i), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	e := l.extents[i]
	if e.end-e.start <= leave {
		return nil
	}
	if e.old < e.base { // there are no holes, which was noticed before
		return l.empty(f, i, leave)
	}
	lines, next, mid, err := part.CountLines(f, e.start-e.base, e.end-leave-e.base)
	if err != nil {
		return fmt.Errorf("count what is dropped of %s: %w", l.path(i), err)
	}
	e.start, e.lines, e.mid = e.base+next, e.lines+lines, mid
	err = l.punch(f, i, e)
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		return l.empty(f, i, leave)
	case err != nil || next < l.collapseAt:
		return err
	}
	return l.collapse(f, i, next-next%l.collapseAt)
}

// punch frees the bytes before the new beginning of a stream. Readers, and a later agent, know of the new
// beginning before that.
func (l *log) punch(f *os.File, i int, e extent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extents[i] = e
	l.note(e.record(i))
	return part.Punch(f, e.start-e.base)
}

// collapse takes the first n bytes, which are punched out, out of a file. Where a kill comes between it and the note, it shows by the length:
// the file has lost more than it can have gained. The caller holds work.
func (l *log) collapse(f *os.File, i int, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(collapseRecord(i, n))
	if err := part.Collapse(f, n); err != nil {
		return err
	}
	l.extents[i].base += n
	l.extents[i].old = l.extents[i].base
	l.note(l.extents[i].record(i))
	return nil
}
