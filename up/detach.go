package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// detachedEnv marks the process that Detach starts.
const detachedEnv = "COLONY_DETACHED"

// Detach starts this program again as `colony up` in a session of its own, shows
// its progress, and returns once the fleet is up, or with an error where it does
// not come up.
func Detach(ctx context.Context, o Options) error {
	if os.Getenv(detachedEnv) != "" {
		// The pipe has no reader once the fleet is up; writing to it must not kill this process.
		signal.Ignore(syscall.SIGPIPE)
		return Run(ctx, o)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), detachedEnv+"=1")
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	up := make(chan bool, 1)
	go func() { up <- relay(r, o.Out) }()
	select {
	case ok := <-up:
		if ok {
			return cmd.Process.Release()
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("it did not come up (%w): the reason is above", err)
		}
		return errors.New("it ended before it was up")
	case <-ctx.Done():
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it prints that it was stopped
		<-up           // and relay has copied that
		return errors.Join(ctx.Err(), err)
	}
}

// relay copies the output of the supervisor up to the last line of the guide, and
// reports whether that line came.
func relay(r io.Reader, out io.Writer) bool {
	up := false
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(out, lines.Text())
		up = up || strings.HasPrefix(lines.Text(), Ready)
		if up && strings.HasSuffix(lines.Text(), lastSuggestion) {
			return true
		}
	}
	return false
}
