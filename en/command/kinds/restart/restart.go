// Package restart executes the command that restarts the containers of a deployment. The goroutine of the agent that follows these
// containers does it, so that the restart counts as no crash.
package restart

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/subject"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// Options are what the command needs of the agent.
type Options struct {
	Records func() []plan.Record
	// Restart restarts the containers that are wanted, see agent.Runner.
	Restart func(ctx context.Context, name protocol.DeploymentName, want func(component, container string) bool, exact bool) ([]engine.ID, error)
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Restart, Run: func(ctx context.Context, r command.Request) (string, error) { return o.run(ctx, r.Command) }}
}

func (o Options) run(ctx context.Context, c *wire.Command) (string, error) {
	s, rec, err := command.About(c, o.Records())
	if err != nil {
		return "", err
	}
	if _, err := subject.Find(rec, nil, s); err != nil {
		return "", command.Failf(wire.NoSuchSubject, "%v", err)
	}
	done, err := o.Restart(ctx, s.Deployment, s.Has, s.Container != "")
	var b strings.Builder
	for _, id := range done {
		b.WriteString(id.Component + "/" + id.Name + ": restarted\n")
	}
	if err == nil && len(done) == 0 {
		err = errors.New("there was nothing to restart: its containers have done their work; name one to start it again")
	}
	if len(done) > 0 && rec.Recovers() {
		fmt.Fprintf(&b, "the deployment has FAILED (%s), and is INSTALLED again once all its containers have run for a minute without a break\n", rec.Code)
	}
	return b.String(), err
}
