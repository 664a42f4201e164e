// Package pull executes the command that pulls the images of a deployment now: those of the version that was assigned last.
package pull

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/subject"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// Options are what the command needs of the agent.
type Options struct {
	Records func() []plan.Record
	Pull    func(ctx context.Context, ref string, report func(engine.Progress)) error
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Pull, Run: func(ctx context.Context, r command.Request) (string, error) { return o.run(ctx, r.Command) }}
}

func (o Options) run(ctx context.Context, c *wire.Command) (string, error) {
	s, rec, err := command.About(c, o.Records())
	if err != nil {
		return "", err
	}
	images, err := imagesOf(rec, s)
	if err != nil {
		return "", command.Failf(wire.NoSuchSubject, "%v", err)
	}
	var b strings.Builder
	for _, ref := range images {
		var last engine.Progress
		began := time.Now()
		if err := o.Pull(ctx, ref, func(p engine.Progress) { last = p }); err != nil {
			return b.String(), fmt.Errorf("pull %s: %w", ref, err)
		}
		fmt.Fprintf(&b, "%s: %d bytes, %d ms\n", ref, last.Pulled, time.Since(began).Milliseconds())
	}
	return b.String(), nil
}

// imagesOf returns the images of the containers of the version that was assigned last, each once.
func imagesOf(rec plan.Record, s wire.Subject) ([]string, error) {
	if len(rec.Spec) == 0 {
		return nil, fmt.Errorf("the node has no version of deployment %s", s.Deployment)
	}
	assigned := rec
	assigned.Active = "" // which may still be the one before
	containers, err := subject.Find(assigned, nil, s)
	if err != nil {
		return nil, err
	}
	var images []string
	seen := map[string]bool{}
	for _, c := range containers {
		if !seen[c.Spec.Image] {
			seen[c.Spec.Image] = true
			images = append(images, c.Spec.Image)
		}
	}
	return images, nil
}
