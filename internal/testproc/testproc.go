// Package testproc runs programs as parts of a test: one writes into a log file,
// does not outlive the test program, and is reported where it ends by itself.
package testproc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/childproc"
)

// stopTimeout bounds how long a program may take to end in order.
const stopTimeout = 30 * time.Second

// A Process is a program that a test starts and ends, more than once where it
// likes. The methods are for one goroutine at a time.
type Process struct {
	t    testing.TB
	name string
	log  string
	env  []string // beside that of the test

	child *childproc.Child // nil: it does not run
}

// New returns a process that does not run yet. The name is for messages; log is
// the file that its standard output and error are added to. The end of it is shown
// where the test fails.
func New(t testing.TB, name, log string) *Process {
	p := &Process{t: t, name: name, log: log}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, p.Tail())
		}
	})
	return p
}

// Name returns the name for messages.
func (p *Process) Name() string { return p.name }

// Log returns the path of the log file.
func (p *Process) Log() string { return p.log }

// SetEnv gives the program variables, as name=value, beside those of the test, from its
// next start on.
func (p *Process) SetEnv(env ...string) { p.env = env }

// PID returns the process id; 0 where the program does not run.
func (p *Process) PID() int {
	if p.child == nil {
		return 0
	}
	return p.child.PID()
}

// Start runs a program with its arguments. It fails the test where that cannot be.
func (p *Process) Start(args ...string) {
	p.t.Helper()
	out, _, err := childproc.OpenLog(p.log, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close() // the program has its own copy
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), p.env...)
	child, err := childproc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		p.t.Fatalf("start %s: %v", p.name, err)
	}
	p.child = child
}

// Running returns an error, with the end of the log, where the program does not run.
func (p *Process) Running() error {
	if p.child == nil {
		return fmt.Errorf("%s does not run", p.name)
	}
	select {
	case <-p.child.Done():
		return fmt.Errorf("%s ended by itself: %v\n%s", p.name, p.child.Err(), p.Tail())
	default:
		return nil
	}
}

// Kill ends the program as SIGKILL does, and waits until it has ended. The test
// fails if it had ended by itself; one that was never started is left alone.
func (p *Process) Kill() {
	p.t.Helper()
	if p.child == nil {
		return
	}
	if err := p.Running(); err != nil {
		p.t.Error(err)
	}
	p.end(syscall.SIGKILL)
}

// Stop ends the program in order, by SIGTERM. One that takes longer than 30 s is
// killed and fails the test.
func (p *Process) Stop() {
	p.t.Helper()
	if p.child == nil {
		return
	}
	p.end(syscall.SIGTERM)
}

func (p *Process) end(sig syscall.Signal) {
	p.t.Helper()
	if !p.child.End(sig, stopTimeout) {
		p.t.Errorf("%s did not end within %s of a %s", p.name, stopTimeout, sig)
	}
	p.child = nil
}

// Tail returns the last lines of the log.
func (p *Process) Tail() []byte {
	const most = 4000
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(b[max(0, len(b)-most):])
}

// Orphan runs this test program, with in as its standard input and variables, as name=value, beside
// those of the test, until it has written the id of a process that it started as its first line.
// Then it kills the test program, so that only the kernel ends that process, and returns the id.
func Orphan(t testing.TB, in *os.File, env ...string) (pid int) {
	t.Helper()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), env...)
	if in != nil {
		parent.Stdin = in
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = parent.Process.Kill()
	_ = parent.Wait() // it was killed
	if err != nil {
		t.Fatalf("the parent ended without a process id: %v", err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatalf("the parent wrote %q, want a process id", line)
	}
	return pid
}
