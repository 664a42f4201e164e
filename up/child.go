package up

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// A spawner starts child processes from one operating system thread that lives
// as long as the spawner. The kernel sends a child its parent-death signal when
// the *thread* that started it ends, so that the children of a pooled thread would die with that thread.
type spawner struct {
	work chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		for f := range s.work {
			f()
		}
		close(s.done)
	}()
	return s
}

// do calls f on the spawner's thread.
func (s *spawner) do(f func() error) error {
	err := make(chan error)
	s.work <- func() { err <- f() }
	return <-err
}

func (s *spawner) close() {
	close(s.work)
	<-s.done
}

// A child is a process that this one started.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid after done
}

// startChild starts a program with its output appended to log. It dies with this
// process, even if this process is killed, and has a process group of its own,
// so that a Ctrl-C in the terminal reaches only the supervisor, which stops the
// children in order.
func startChild(s *spawner, log *logFile, path string, args ...string) (*child, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// PID returns the process id.
func (c *child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the process ended.
func (c *child) Done() <-chan struct{} { return c.done }

// Err returns how the process ended; it is valid once Done is closed.
func (c *child) Err() error { return c.err }

// Stop sends SIGTERM and waits; when ctx ends first it kills the process.
func (c *child) Stop(ctx context.Context) error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("killed after it did not stop: %w", ctx.Err())
	}
}

// A logFile is a bounded log: at maxLog bytes it is moved to <path>.1 and begun
// anew, so that the logs of a part occupy at most twice that. Safe for concurrent use.
type logFile struct {
	path string

	mu   sync.Mutex
	f    *os.File
	size int64
}

const maxLog = 16 << 20

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.f, l.size = f, fi.Size()
	return nil
}

// Write appends p.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > maxLog {
		l.f.Close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, fmt.Errorf("rotate log: %w", err)
		}
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
