package up

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A stateDir is the directory of one fleet, held by one supervisor at a time.
type stateDir struct {
	path string
	lock *os.File
}

var errBusy = errors.New("it is in use")

// openStateDir creates what is missing and acquires the lock.
func openStateDir(path string) (*stateDir, error) {
	// The server of PostgreSQL runs as another user and must pass through.
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	for _, sub := range []string{"run", "logs", "config"} {
		if err := os.MkdirAll(filepath.Join(path, sub), 0o755); err != nil {
			return nil, fmt.Errorf("create state directory: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(path, "run", "up.pid"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		pid, _ := readPID(f.Name())
		return nil, fmt.Errorf("state directory %s: %w by another colony up (pid %d): stop that one with \"colony down --state-dir %s\", or choose another with --state-dir",
			path, errBusy, pid, path)
	}
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock: %w", err), f.Close())
	}
	return &stateDir{path: path, lock: f}, nil
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

func (s *stateDir) sub(elem ...string) string {
	return filepath.Join(append([]string{s.path}, elem...)...)
}

// close releases the lock. It clears the pid first, so that no other process that gets
// the same pid is signalled.
func (s *stateDir) close() error {
	// Closing is not enough: a child that is being forked just now has a copy.
	return errors.Join(s.lock.Truncate(0), syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN), s.lock.Close())
}

func readPID(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s holds no pid", path)
	}
	return pid, nil
}

// locked reports whether a supervisor holds the state directory.
func locked(path string) bool {
	f, err := os.Open(filepath.Join(path, "run", "up.pid"))
	if err != nil {
		return false
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return true
	}
	return false
}

// Down stops the supervisor of a state directory and waits until it has ended. It
// reports false where none runs.
func Down(stateDir string, timeout time.Duration) (was bool, err error) {
	if !locked(stateDir) {
		return false, nil
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	signaled := 0
	for locked(stateDir) {
		// The lock is held from before the pid is written until after it is cleared.
		if pid, err := readPID(filepath.Join(stateDir, "run", "up.pid")); err == nil && pid != signaled {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return true, fmt.Errorf("signal the supervisor (pid %d): %w", pid, err)
			}
			signaled = pid
		}
		select {
		case <-deadline.C:
			return true, fmt.Errorf("the supervisor (pid %d) did not stop within %s: see %s", signaled, timeout, filepath.Join(stateDir, "logs", "up.log"))
		case <-tick.C:
		}
	}
	return true, nil
}
