package rollouts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/colonyfleet/colony/cli/command"
	api "github.com/colonyfleet/colony/co/api/rollouts"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// lookEvery is how often a rollout is looked at.
	lookEvery = time.Second
	// beginsWithin is how long a rollout has to begin for a file that was just changed. A change of the strategy alone begins none.
	beginsWithin = 15 * time.Second
)

func wait(env *command.Env) *cobra.Command {
	var timeout time.Duration
	var revision int64
	cmd := &cobra.Command{
		Use: "wait FLEET", Short: "Wait until the rollout of a fleet deployment is done", Args: cobra.ExactArgs(1),
		Long: `Wait until the rollout of a fleet deployment is done, and say meanwhile what it waits
for. It is an error where the rollout is paused, aborted or refused, or where a later
revision takes its place.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("the rollout of %s is not done after %s", args[0], timeout))
			defer cancel()
			return (&waiter{env: env, fleet: args[0], revision: revision}).run(ctx)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "how long to wait")
	cmd.Flags().Int64Var(&revision, "revision", 0, "only for the rollout of this revision; default the latest when the command begins")
	return cmd
}

// A waiter follows a rollout.
type waiter struct {
	env      *command.Env
	fleet    string
	revision int64
	said     string
}

func (w *waiter) run(ctx context.Context) error {
	for begun := time.Now(); ; {
		young := time.Since(begun) < beginsWithin
		var r rollout.Rollout
		err := w.env.Call(ctx, http.MethodGet, fleetPath(w.fleet)+"/rollout", nil, &r)
		var ended bool
		switch {
		case context.Cause(ctx) != nil:
			return errors.Join(context.Cause(ctx), w.last())
		case err == nil && (w.revision > 0 || !young || w.begun(ctx, &r)):
			ended, err = w.look(&r)
		case young && client.IsNotFound(err) && w.begun(ctx, &r), away(err): // it is about to begin; the CO may come back
			err = nil
		}
		if err != nil || ended {
			return err
		}
		if retry.Sleep(ctx, lookEvery) != nil {
			return errors.Join(context.Cause(ctx), w.last())
		}
	}
}

// away reports whether the API may answer later.
func away(err error) bool {
	if p, ok := errors.AsType[*client.Problem](err); ok {
		return p.Status >= http.StatusInternalServerError
	}
	_, unreachable := errors.AsType[*client.Unreachable](err)
	return unreachable
}

// begun reports whether a rollout is that of the file as it is now; of none, whether there is the file.
func (w *waiter) begun(ctx context.Context, r *rollout.Rollout) bool {
	var f api.FleetDeployment
	return w.env.Call(ctx, http.MethodGet, fleetPath(w.fleet), nil, &f) == nil && (r.Commit == "" || f.Commit == r.Commit)
}

// look says what has changed, and reports whether the rollout has ended as it should. The error is that it has not.
func (w *waiter) look(r *rollout.Rollout) (done bool, err error) {
	if w.revision == 0 {
		w.revision = r.Revision
	}
	if w.revision != r.Revision {
		return false, fmt.Errorf("the rollout of %s is that of revision %d, and not of %d any more", w.fleet, r.Revision, w.revision)
	}
	line := fmt.Sprintf("%s is %s", r.Name(), r.State)
	if r.Reason != "" {
		line += ": " + r.Reason
	}
	if line != w.said && w.env.Format == "table" {
		w.env.Printf("%s", line)
		w.said = line
	}
	switch r.State {
	case rollout.Done:
		_, err := w.env.Machine(r)
		return true, err
	case rollout.Running:
		return false, nil
	}
	return false, errors.New(line)
}

// last is what was said last; nil: nothing.
func (w *waiter) last() error {
	if w.said == "" {
		return nil
	}
	return errors.New(w.said)
}
