package removals

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
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

// target returns the path of the request that removes what is at path.
func (f *flags) target(path string) string {
	if f.force {
		path += "?force=true"
	}
	return path
}

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
		if done, err := removed(ctx); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errLate
		}
	}
}
