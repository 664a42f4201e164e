// Package childproc starts programs that end with this process, however that ends.
package childproc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

// A Child is a program that was started. Its methods may be called concurrently.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a command, and waits for its end in the background. The kernel sends it the signal
// with when this process ends, also by SIGKILL; with 0 it goes on then.
func Start(cmd *exec.Cmd, with syscall.Signal) (*Child, error) {
	if with != 0 {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Pdeathsig = with
	}
	c, started := &Child{cmd: cmd, done: make(chan struct{})}, make(chan error, 1)
	go func() {
		defer close(c.done)
		// The kernel sends Pdeathsig when the thread that started the child ends, so
		// this goroutine keeps it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	return c, nil
}

// Run starts a command as Start does, and returns how it ended.
func Run(cmd *exec.Cmd, with syscall.Signal) error {
	c, err := Start(cmd, with)
	if err != nil {
		return err
	}
	<-c.done
	return c.err
}

// PID returns the process id. Once Done is closed it may be that of another process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the program has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err returns how the program ended, nil for the exit status 0. It is called once Done is closed.
func (c *Child) Err() error { return c.err }

// Signal sends the program a signal; one that has ended gets none.
func (c *Child) Signal(sig syscall.Signal) {
	_ = c.cmd.Process.Signal(sig) // it may end meanwhile, which is what is wanted
}

// End sends the program a signal, waits for its end, and kills one that has not ended in time:
// ended says that it did.
func (c *Child) End(sig syscall.Signal, within time.Duration) (ended bool) {
	c.Signal(sig)
	if ended, _ = retry.SleepOr(context.Background(), within, c.done); !ended { // this context never ends
		c.Signal(syscall.SIGKILL)
		<-c.done
	}
	return ended
}

// OpenLog opens a file that output is added to, and returns how long it is. One above limit, in
// bytes, is begun anew; limit 0: none is.
func OpenLog(path string, limit int64) (out *os.File, size int64, err error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && limit > 0 && info.Size() > limit {
		flags |= os.O_TRUNC
	}
	out, err = os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	if info, err := out.Stat(); err == nil {
		size = info.Size()
	}
	return out, size, nil
}
