// Package ondisk keeps the logs of containers in files that others append to: the shim of a container, which lives without the agent
// and without containerd.
//
// Each stream is one file, and a byte of it is written once. What is too old is punched out of the front of the file (fallocate with
// FALLOC_FL_PUNCH_HOLE), while others append to its end: nothing is copied, no byte gets lost that is not counted before, and the
// offset of each line stays what it was. The number of lines that ended before the first byte left is recorded before that, in a file
// marks beside them, so that a kill between the two steps changes nothing. The same file has the lengths of the streams about once in
// a second, from which lines have their times.
//
// The directory of a container, below containers of the state directory, has its log in output. When a
// container is removed, its log is moved unchanged to the directory logs.
package ondisk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk/part"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Limits bound the logs of a node.
type Limits struct {
	// Stream bounds the size of one stream, in bytes. The store checks it four times in a second; between two checks a container
	// may exceed it.
	Stream int64
	// Node bounds all logs together. Where they are more, those of removed containers go first, the
	// oldest before the others, and then each stream has less.
	Node int64
	// Removed is how many logs of removed containers are retained, and Age for how long.
	Removed int
	Age     time.Duration
}

// DefaultLimits returns the limits of a gateway.
func DefaultLimits() Limits {
	return Limits{Stream: 1 << 20, Node: 128 << 20, Removed: 32, Age: 30 * 24 * time.Hour}
}

// Validate returns the faults of the limits.
func (l Limits) Validate() (faults []error) {
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, protocol.Errorf(protocol.Invalid, format, args...))
		}
	}
	need(l.Stream > 0, "limit of %d bytes for an output of a container (logBytes): want at least 1 byte", l.Stream)
	need(l.Node > 0, "limit of %d bytes for all logs (logNodeBytes): want at least 1 byte", l.Node)
	need(l.Removed >= 0, "%d logs of removed containers (logRemoved): want 0 or more", l.Removed)
	need(l.Age > 0, "age %s of logs of removed containers (logAge): want more than 0", l.Age)
	return faults
}

// minStream is what a stream has where there are too many for the limit of the node.
const minStream = 64 << 10

// Options say where the logs are.
type Options struct {
	// Dir is the state directory of the engine. It has the folders containers and logs.
	Dir string
	Limits
	// Damaged is called with what is found damaged, and counts as not held.
	Damaged func(*statefile.Damage)
	Logger  *slog.Logger
}

// A Store has the logs of a node. Its methods may be called concurrently.
type Store struct {
	o         Options
	cancel    context.CancelFunc
	stopped   chan struct{}
	changed   notify.Broadcast // something was written, or a log was begun or removed
	following atomic.Int32     // how many read on

	mu   sync.Mutex // protects live
	live map[string]*log
}

var _ logs.Reader = (*Store)(nil)

// Open takes up the logs that are there, and bounds them until Close.
func Open(o Options) (*Store, error) {
	s := &Store{o: o, stopped: make(chan struct{}), live: map[string]*log{}}
	for _, name := range []string{outputDir, "log"} {
		paths, err := filepath.Glob(filepath.Join(o.Dir, "containers", "*", name))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			key := filepath.Base(filepath.Dir(path))
			if _, err := s.ensure(key, engine.ID{}); err != nil {
				o.Logger.Warn("log of a container not taken up", "container", key, "err", err)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.tend(ctx)
	return s, nil
}

// outputDir is the directory of the log in that of a container.
const outputDir = "output"

// Close ends what Open began. Containers write on.
func (s *Store) Close() error {
	s.cancel()
	<-s.stopped
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, l := range s.live {
		l.work.Lock()
		errs = append(errs, l.release())
		l.work.Unlock()
	}
	return errors.Join(errs...)
}

// release closes the records of a log. The caller holds work.
func (l *log) release() error {
	if l.records == nil {
		return nil
	}
	records := l.records
	l.records = nil
	return records.Close()
}

func (s *Store) damage(d *statefile.Damage) {
	if d != nil && s.o.Damaged != nil {
		s.o.Damaged(d)
	}
}

// ensure returns the log of a container, which it opens, or makes.
func (s *Store) ensure(key string, id engine.ID) (*log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.live[key]; l != nil {
		return l, nil
	}
	l, damage, err := load(filepath.Join(s.o.Dir, "containers", key, outputDir), key, id, false)
	s.damage(damage)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", key, err)
	}
	s.live[key] = l
	return l, nil
}

// Name says whose a log is, where that is not known: it is of an older agent, or the notes were damaged.
func (s *Store) Name(key string, id engine.ID) {
	s.mu.Lock()
	l := s.live[key]
	s.mu.Unlock()
	if l != nil {
		l.name(id)
	}
}

func (l *log) name(id engine.ID) {
	l.mu.RLock()
	known := l.id == id
	l.mu.RUnlock()
	if known {
		return
	}
	l.work.Lock()
	defer l.work.Unlock()
	l.mu.Lock()
	l.id = id
	l.mu.Unlock()
	l.note(nameRecord(id))
}

// Begin makes a log ready for a start of a container, and returns the paths of the files that its streams are to be
// appended to. They exist.
func (s *Store) Begin(key string, id engine.ID) (out, errs string, err error) {
	l, err := s.ensure(key, id)
	if err == nil && l.lost() { // its directory was removed
		s.drop(l)
		l, err = s.ensure(key, id)
	}
	if err != nil {
		return "", "", err
	}
	l.name(id)
	l.work.Lock()
	defer l.work.Unlock()
	for _, i := range []int{stdout, stderr} {
		f, err := statefile.Open(disk.OS, l.path(i), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return "", "", fmt.Errorf("log of %s: %w", id, err)
		}
	}
	l.look()
	l.mark(time.Now(), true)
	s.changed.Notify()
	return l.path(stdout), l.path(stderr), nil
}

// lost reports whether the directory of a log was removed.
func (l *log) lost() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, err := os.Stat(filepath.Join(l.dir, marksFile))
	return errors.Is(err, os.ErrNotExist)
}

// drop forgets a log whose directory was removed.
func (s *Store) drop(l *log) {
	s.mu.Lock()
	delete(s.live, l.key)
	s.mu.Unlock()
	defer s.changed.Notify()
	l.work.Lock()
	defer l.work.Unlock()
	l.mu.Lock()
	l.removed = true
	l.mu.Unlock()
	_ = l.release() // a file that is removed
}

// Reason returns the line in which the present or last run of a container says why it ended: the last line of stderr, or, where
// that is a stack trace, the line that names the error; without stderr, that of stdout; "" where it wrote none. It has at most
// limit bytes.
func (s *Store) Reason(key string, limit int) string {
	s.mu.Lock()
	l := s.live[key]
	s.mu.Unlock()
	if l == nil {
		return ""
	}
	l.work.Lock()
	l.look()
	l.work.Unlock()
	runs := l.windows()
	w := runs[len(runs)-1]
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, i := range []int{stderr, stdout, mixed} {
		e := l.extents[i]
		if text := part.Reason(l.path(i), max(w.from[i]-e.base, e.start-e.base, 0), w.to[i]-e.base); text != "" {
			return text[:min(len(text), limit)]
		}
	}
	return ""
}

// Keep moves the log of a removed container, which has no writer any more, to the retained ones. An empty one is
// removed.
func (s *Store) Keep(key string) error {
	s.mu.Lock()
	l := s.live[key]
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if l.lost() {
		s.drop(l)
		return nil
	}
	s.mu.Lock()
	delete(s.live, key)
	s.mu.Unlock()
	defer s.changed.Notify()
	l.work.Lock()
	defer l.work.Unlock()
	l.look()
	l.mark(time.Now(), false)
	err := l.release()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.extents[:], func(e extent) bool { return e.end > 0 }) {
		l.removed = true
		return errors.Join(err, os.RemoveAll(l.dir))
	}
	dir := filepath.Join(s.o.Dir, removedDir)
	if err := errors.Join(err, os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	for i := mixed; i < streams; i++ {
		for _, added := range []string{tailName, ""} {
			if err := os.Rename(l.path(i)+added, filepath.Join(l.dir, fileNames[i]+added)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	to := filepath.Join(dir, fmt.Sprintf("%s-%d", key, time.Now().UnixMilli()))
	if err := os.Rename(l.dir, to); err != nil {
		return err
	}
	l.dir, l.removed = to, true
	return s.trim()
}

// List returns the logs that can be read.
func (s *Store) List(context.Context) ([]logs.Log, error) {
	removed, err := s.removed()
	if err != nil {
		return nil, err
	}
	var out []logs.Log
	for _, l := range append(s.all(), removed...) {
		out = append(out, l.describe())
	}
	slices.SortFunc(out, logs.Log.Compare)
	return out, nil
}

// all returns the logs of containers that exist.
func (s *Store) all() []*log {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*log, 0, len(s.live))
	for _, l := range s.live {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *log) int { return strings.Compare(a.key, b.key) })
	return out
}
