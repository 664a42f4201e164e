package removals

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
)

// flags are those of the commands that remove a node or a site.
type flags struct {
	force, wait bool
	timeout     time.Duration
}

// add gives cmd the flags; force and wait are their help.
func (f *flags) add(cmd *cobra.Command, force, wait string, timeout time.Duration) *cobra.Command {
	cmd.Flags().BoolVar(&f.force, "force", false, force)
	cmd.Flags().BoolVar(&f.wait, "wait", false, wait)
	cmd.Flags().DurationVar(&f.timeout, "timeout", timeout, "how long to wait")
	return cmd
}

// remove asks the CO to remove what is at path, and reads its answer into out. With
// --wait it waits until removed returns. It reports whether the answer is printed
// already, for a program to read.
func (f *flags) remove(ctx context.Context, env *command.Env, path string, out any, removed wait) (printed bool, err error) {
	target := path
	if f.force {
		target += "?force=true"
	}
	if err := env.Call(ctx, http.MethodDelete, target, nil, out); err != nil {
		return false, err
	}
	if f.wait {
		if err := removed(ctx, env, path, f.timeout); err != nil {
			return false, err
		}
	}
	return env.Machine(out)
}

// A wait returns once what is at path is not there any more.
type wait func(ctx context.Context, env *command.Env, path string, timeout time.Duration) error

// errLate is the end of a wait whose time is over.
var errLate = errors.New("the time to wait is over")

// until asks every so often whether something is removed, at once for the first time. It
// returns errLate where that is not so after timeout, and else the error of removed.
func until(ctx context.Context, timeout, every time.Duration, removed func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if done, err := removed(ctx); done || err != nil && ctx.Err() == nil { // else the time was over while it was asked
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errLate
		}
	}
}
