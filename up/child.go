package up

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/colonyfleet/colony/internal/childproc"
)

// A child is a process that this one started.
type child struct{ *childproc.Child }

// startChild starts a program with its output appended to log. It dies with this
// process, even if this process is killed, and has a process group of its own,
// so that a Ctrl-C in the terminal reaches only the supervisor, which stops the
// children in order.
func startChild(log *logFile, path string, args ...string) (*child, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c, err := childproc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	return &child{c}, nil
}

// Stop sends SIGTERM and waits; when ctx ends first it kills the process.
func (c *child) Stop(ctx context.Context) error {
	c.Signal(syscall.SIGTERM)
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		c.Signal(syscall.SIGKILL)
		<-c.Done()
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
