package filelock

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// patience is how long RW waits for other processes. They hold it for moments, unless one is stopped.
	patience = 30 * time.Second
	// look is the time between two tries.
	look = 2 * time.Millisecond
	// turn is how long the readers of a process keep writers of others waiting by following each other.
	turn = 50 * time.Millisecond
)

// Between is a lock between processes: one that shares it, or has it alone, for all its goroutines.
type Between interface {
	// Acquire waits for it. It fails with kind Unavailable where another process does not give it back in time.
	Acquire(shared bool) error
	// Release gives it back.
	Release()
	// Close ends its use; the lock must not be held.
	Close() error
}

// RW is a lock for many readers or one writer, between the goroutines of this process and those of others. Its methods may be called concurrently.
type RW struct {
	others Between
	mu     sync.RWMutex // of this process

	// readersMu guards what follows. It is held while the first reader waits for other processes: the next ones wait with it.
	readersMu sync.Mutex
	readers   int
	since     time.Time     // when the first of them got the lock
	none      chan struct{} // closed when there is none any more
}

// NewRW returns a lock that others is between processes. It is closed with Close, when it is not held.
func NewRW(others Between) *RW { return &RW{others: others} }

// OpenRW returns the lock of the file at path, which is created where it is missing. It may be on a network file system that has flock(2), such as NFS 4. The kernel gives the
// lock of a process back however it ends.
func OpenRW(path string) (*RW, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	return NewRW(&file{path, f}), nil
}

// Close ends the use of the lock between processes.
func (l *RW) Close() error { return l.others.Close() }

// RLock gets the lock together with other readers. It fails with kind Unavailable where another process does not give it back in time.
func (l *RW) RLock() error {
	l.mu.RLock()
	if err := l.enter(); err != nil {
		l.mu.RUnlock()
		return err
	}
	return nil
}

// enter adds a reader.
func (l *RW) enter() error {
	l.readersMu.Lock()
	defer l.readersMu.Unlock()
	for l.readers > 0 && time.Since(l.since) > turn {
		// Readers that follow each other without an end would keep writers of other processes waiting.
		none := l.none
		l.readersMu.Unlock()
		<-none
		l.readersMu.Lock()
	}
	if l.readers == 0 {
		if err := l.others.Acquire(true); err != nil {
			return err
		}
		l.since, l.none = time.Now(), make(chan struct{})
	}
	l.readers++
	return nil
}

// RUnlock gives back what RLock got.
func (l *RW) RUnlock() {
	defer l.mu.RUnlock()
	l.readersMu.Lock()
	defer l.readersMu.Unlock()
	if l.readers--; l.readers == 0 {
		l.others.Release()
		close(l.none)
	}
}

// Lock gets the lock alone. It fails with kind Unavailable where another process does not give it back in time.
func (l *RW) Lock() error {
	l.mu.Lock()
	if err := l.others.Acquire(false); err != nil {
		l.mu.Unlock()
		return err
	}
	return nil
}

// Unlock gives back what Lock got.
func (l *RW) Unlock() {
	l.others.Release()
	l.mu.Unlock()
}

// A file is the lock of flock(2).
type file struct {
	path string
	f    *os.File
}

// Acquire implements Between.
func (l *file) Acquire(shared bool) error {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	for began := time.Now(); ; <-time.After(look) {
		err := syscall.Flock(int(l.f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return protocol.Errorf(protocol.Unavailable, "lock %s: %w", l.path, err)
		case time.Since(began) > patience:
			return protocol.Errorf(protocol.Unavailable, "lock %s: another process has held it for %s: is one of those that share the directory stopped?", l.path, patience)
		}
	}
}

// Close implements Between.
func (l *file) Close() error { return l.f.Close() }

// Release implements Between: a child that is being forked may hold a copy of the file.
func (l *file) Release() { _ = syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) }
