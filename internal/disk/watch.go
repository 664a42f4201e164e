package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
)

const (
	// leastRoom is how many bytes can be written to a disk that is not full.
	leastRoom = 1 << 20
	// lookEvery is the time between two looks at the free space, and between two trials
	// whether a full disk has room again.
	lookEvery = 10 * time.Second
	// trialFile is the name of the file of a trial. It begins as those do that atomicfile
	// removes after a crash.
	trialFile = ".tmp-room"
)

// A Watched is an FS that knows whether its disk is full. It looks when little is free, or an
// operation has failed for want of room. The disk is full if a file of 1 MiB cannot be written
// then: the free space may be for other users, and the error of the operation may have another
// cause.
type Watched struct {
	FS
	dir     string
	problem atomic.Value  // string
	suspect atomic.Bool   // an operation has failed for want of room since the last Look
	failed  notify.Signal // wakes Run then
}

// Watch returns the disk of a directory, which must exist before Look or Run is called.
func Watch(d FS, dir string) *Watched {
	w := &Watched{FS: Or(d), dir: dir, failed: notify.New()}
	w.problem.Store("")
	return w
}

// Problem says, for people, that the disk is full and what to do; "": it is not.
func (w *Watched) Problem() string { return w.problem.Load().(string) } //nolint:forcetypeassert // nothing else is stored

// Look finds out whether the disk is full. Run does so by itself. It is for one goroutine.
func (w *Watched) Look() {
	free, err := w.Free(w.dir)
	if suspect := w.suspect.Swap(false); !suspect && err == nil && free >= leastRoom && w.Problem() == "" {
		return
	}
	switch err := w.try(); {
	case IsFull(err):
		w.problem.Store(fmt.Sprintf("the disk of %s is full: what changes cannot be stored and is not accepted; free some space, then it goes on by itself", w.dir))
	case err == nil:
		w.problem.Store("")
	}
}

// try writes a file of leastRoom bytes, and removes it.
func (w *Watched) try() error {
	path := filepath.Join(w.dir, trialFile)
	f, err := w.FS.Open(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteAt(make([]byte, leastRoom), 0)
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
	}
	if failed := w.Remove(path); !errors.Is(failed, fs.ErrNotExist) {
		err = errors.Join(err, failed)
	}
	return err
}

// Run looks after the disk until ctx ends, and calls changed with the Problem when that is
// another, at first if there is one. Where changed fails it is called again with the next look.
func (w *Watched) Run(ctx context.Context, changed func(ctx context.Context, problem string) error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for reported := ""; ; {
		w.Look()
		if problem := w.Problem(); problem != reported && changed(ctx, problem) == nil {
			reported = problem
		}
		failed := w.failed.C()
		if w.Problem() != "" {
			failed = nil // operations fail for as long as the disk is full
		}
		select {
		case <-ctx.Done():
			return
		case <-failed:
		case <-tick.C:
		}
	}
}

// note has the next Look try where err says that there is no room, and returns err.
func (w *Watched) note(err error) error {
	if IsFull(err) {
		w.suspect.Store(true)
		w.failed.Notify()
	}
	return err
}

// Open implements FS.
func (w *Watched) Open(path string, flag int, perm fs.FileMode) (File, error) {
	f, err := w.FS.Open(path, flag, perm)
	if err != nil {
		return nil, w.note(err)
	}
	return watchedFile{f, w}, nil
}

// Rename implements FS.
func (w *Watched) Rename(from, to string) error { return w.note(w.FS.Rename(from, to)) }

// Link implements FS.
func (w *Watched) Link(from, to string) error { return w.note(w.FS.Link(from, to)) }

// MkdirAll implements FS.
func (w *Watched) MkdirAll(path string, perm fs.FileMode) error {
	return w.note(w.FS.MkdirAll(path, perm))
}

// SyncDir implements FS.
func (w *Watched) SyncDir(dir string) error { return w.note(w.FS.SyncDir(dir)) }

// A watchedFile is a file of a Watched.
type watchedFile struct {
	File
	of *Watched
}

func (f watchedFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	return n, f.of.note(err)
}

func (f watchedFile) Truncate(size int64) error { return f.of.note(f.File.Truncate(size)) }

func (f watchedFile) Sync() error { return f.of.note(f.File.Sync()) }
