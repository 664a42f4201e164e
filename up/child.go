package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

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
// anew, so that the logs of a part occupy at most twice that. What cannot be written is
// left out and counted: a part whose output ended would end with it. Safe for concurrent use.
type logFile struct {
	path string

	mu      sync.Mutex // protects what follows
	f       *os.File   // nil: it could not be opened again
	size    int64
	dropped int64 // bytes that were left out since the last that was written
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

// Write appends p, or leaves it out where it cannot be written, as on a full disk.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.prepare()
	if err == nil {
		err = l.append(p)
	}
	if err != nil {
		l.dropped += int64(len(p))
	}
	return len(p), nil
}

// prepare has the file take what comes: it begins a new one where it is time, and says what was left out.
func (l *logFile) prepare() error {
	if l.f != nil && l.size > maxLog {
		_ = l.f.Close() // it is appended to no more
		l.f = nil
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return fmt.Errorf("rotate log: %w", err)
		}
	}
	if l.f == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	if l.dropped == 0 {
		return nil
	}
	note := fmt.Appendf(nil, `{"time":%q,"level":"WARN","msg":"a part of this log is missing: the disk did not take it","bytes":%d}`+"\n", time.Now().Format(time.RFC3339Nano), l.dropped)
	err := l.append(note)
	if err == nil {
		l.dropped = 0
	}
	return err
}

// append writes all of p or nothing.
func (l *logFile) append(p []byte) error {
	n, err := l.f.Write(p)
	if err != nil {
		return errors.Join(err, l.f.Truncate(l.size))
	}
	l.size += int64(n)
	return nil
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
