// Package process runs the programs that are measured, and says what they used of the machine.
package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
)

// StopTimeout is how long a process has to end when it is asked.
const StopTimeout = 10 * time.Second

// A Process is a program that is started, killed and started again. What it used
// is summed up over its lives. It is used by one goroutine.
type Process struct {
	Name string   // in errors
	Args []string // the program first
	Log  string   // the file of its output
	// Ready returns nil once the process serves.
	Ready func(ctx context.Context) error

	Cmd   *exec.Cmd // nil while it does not run
	ended <-chan struct{}
	Used  Usage // in its former lives
}

// A Usage is what a process used of the machine.
type Usage struct {
	CPU     time.Duration // of all its threads
	RSS     int64         // bytes, at the most
	Written int64         // bytes that went to disks, of which a tmpfs is none
}

// Plus adds what another process used; their memory is held at the same time.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.CPU + v.CPU, u.RSS + v.RSS, u.Written + v.Written}
}

// Start runs the program and waits until it is ready.
func (p *Process) Start(ctx context.Context) error {
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer out.Close()
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	// A process group of its own, so that Ctrl-C reaches the bench alone; and an end
	// with it, however that comes.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child, err := childproc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.Cmd, p.ended = cmd, child.Done() // how it ended is in its state
	if err := p.awaitReady(ctx); err != nil {
		return fmt.Errorf("start %s: %w; its last words:\n%s", p.Name, err, Tail(p.Log))
	}
	return nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.Ready(ctx)
		select {
		case <-p.ended: // even if it seems ready: then another program answered
			return fmt.Errorf("it ended: %s", p.Cmd.ProcessState)
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// End stops the process by a signal and adds up what it used. One that does not
// run is left alone.
func (p *Process) End(sig syscall.Signal) {
	if p.Cmd == nil {
		return
	}
	pid := p.Cmd.Process.Pid
	p.Used.Written += procValue(pid, "io", "write_bytes:", 1)
	// Not the usage of wait: that counts this program before it became the other.
	p.Used.RSS = max(p.Used.RSS, procValue(pid, "status", "VmHWM:", 1<<10))
	_ = p.Cmd.Process.Signal(sig) // it may have ended by itself
	timer := time.NewTimer(StopTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		_ = p.Cmd.Process.Kill()
		<-p.ended
	}
	state := p.Cmd.ProcessState
	p.Used.CPU += state.UserTime() + state.SystemTime()
	p.Cmd = nil
}

// procValue reads a number from a file of a process in /proc; 0 where it has ended.
func procValue(pid int, file, name string, unit int64) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes numbers
			return n * unit
		}
	}
	return 0
}

// ServerCPU returns what a server and its children used so far. Those that have
// ended are in its own sum.
func ServerCPU(pid int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	sum := func(pid, fields int) (total int64) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		for i := 11; i < 11+fields && i < len(f); i++ { // utime, stime, cutime, cstime
			n, _ := strconv.ParseInt(f[i], 10, 64)
			total += n
		}
		return total
	}
	total := sum(pid, 4)
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(child); err == nil {
			total += sum(n, 2)
		}
	}
	return time.Duration(total) * tick
}

// Listens returns a check that something accepts connections at addr.
func Listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Tail returns the last lines of a file.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
		if len(lines) > 10 {
			lines = lines[1:]
		}
	}
	return strings.Join(lines, "\n")
}

// BytesIn is the size of all files below dir.
func BytesIn(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a file that went meanwhile
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			total += fi.Size()
		}
		return nil
	})
	return total
}
