// Package filelock keeps two processes from using one directory. The kernel gives
// a lock back however its process ends, so there is no stale one.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrHeld says that another process, or this one, holds the lock already.
var ErrHeld = errors.New("the lock is held")

// A Lock is held from Acquire to Close. Nil is a lock that is not held.
type Lock struct {
	mu sync.Mutex
	f  *os.File // nil after Close
}

// grace is how long Acquire waits for the holder of the lock. A process that is killed while it
// starts a program leaves the lock with that child, until the child has become the other program.
const grace = time.Second

// Acquire locks the file at path, which is created where it is missing, or fails within about a
// second: with ErrHeld where another process has it. The file stays when the lock is released.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		if errors.Is(err, syscall.EROFS) {
			return nil, fmt.Errorf("open lock: %w: mount it writable; where the kernel made it read-only after an error (see dmesg), check it with fsck first", err)
		}
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for began := time.Now(); ; <-time.After(grace / 50) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(began) > grace {
			break
		}
	}
	if err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return &Lock{f: f}, nil
}

// Try locks a file that exists, at once, or fails: with ErrHeld where another process has it.
func Try(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return &Lock{f: f}, nil
}

// Close gives the lock back. It unlocks explicitly: closing the file alone is not enough, because a
// child that is being forked at this moment holds a copy of it until it becomes another program. A
// second Close does nothing; it may be called concurrently.
func (l *Lock) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
