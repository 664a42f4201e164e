// Package testproc runs programs as parts of a test: one writes into a log file,
// does not outlive the test program, and is reported where it ends by itself.
package testproc

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
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

	cmd   *exec.Cmd
	ended chan struct{} // closed when the program has ended
	err   error         // how it ended, once that is closed
}

// New returns a process that does not run yet. The name is for messages; log is
// the file that its standard output and error are added to.
func New(t testing.TB, name, log string) *Process { return &Process{t: t, name: name, log: log} }

// Name returns the name for messages.
func (p *Process) Name() string { return p.name }

// Log returns the path of the log file.
func (p *Process) Log() string { return p.log }

// SetEnv gives the program variables, as name=value, beside those of the test, from its
// next start on.
func (p *Process) SetEnv(env ...string) { p.env = env }

// PID returns the process id; 0 where the program does not run.
func (p *Process) PID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Start runs a program with its arguments. It fails the test where that cannot be.
func (p *Process) Start(args ...string) {
	p.t.Helper()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close() // the program has its own copy
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		// The kernel sends Pdeathsig when the thread that started the child ends, so
		// this goroutine keeps it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		p.t.Fatalf("start %s: %v", p.name, err)
	}
	p.cmd, p.ended = cmd, ended
}

// Running returns an error, with the end of the log, where the program does not run.
func (p *Process) Running() error {
	if p.cmd == nil {
		return fmt.Errorf("%s does not run", p.name)
	}
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %v\n%s", p.name, p.err, p.Tail())
	default:
		return nil
	}
}

// Kill ends the program as SIGKILL does, and waits until it has ended. The test
// fails if it had ended by itself; one that was never started is left alone.
func (p *Process) Kill() {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	if err := p.Running(); err != nil {
		p.t.Error(err)
	}
	p.end(syscall.SIGKILL)
}

// Stop ends the program in order, by SIGTERM, and shows the end of its log where
// the test has failed. One that takes longer than 30 s is killed and fails the test.
func (p *Process) Stop() {
	p.t.Helper()
	if p.t.Failed() {
		p.t.Logf("%s wrote:\n%s", p.name, p.Tail())
	}
	if p.cmd == nil {
		return
	}
	p.end(syscall.SIGTERM)
}

func (p *Process) end(sig syscall.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig) // it may have ended
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.t.Errorf("%s did not end within %s of a %s", p.name, stopTimeout, sig)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	p.cmd = nil
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
