// Package probe executes the command that asks the containers of a deployment for their health now. What the agent itself has asked, and
// what it decides upon it, is left alone.
package probe

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/subject"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// usual is how long a probe may take where its container does not say it.
	usual = 30 * time.Second
	// together is how many containers are asked at a time.
	together = 8
)

// Options are what the command needs of the agent.
type Options struct {
	Records func() []plan.Record
	List    func(ctx context.Context) ([]engine.Status, error)
	Probe   func(ctx context.Context, t plan.Target) (ok bool, message string, err error)
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Probe, Run: func(ctx context.Context, r command.Request) (string, error) { return o.run(ctx, r.Command) }}
}

func (o Options) run(ctx context.Context, c *wire.Command) (string, error) {
	s, rec, err := command.About(c, o.Records())
	if err != nil {
		return "", err
	}
	list, err := o.List(ctx)
	if err != nil {
		return "", fmt.Errorf("the container engine does not answer: %w", err)
	}
	containers, err := subject.Find(rec, list, s)
	if err != nil {
		return "", command.Failf(wire.NoSuchSubject, "%v", err)
	}
	answers := make([]answer, len(containers))
	var asked sync.WaitGroup
	turns := make(chan struct{}, together)
	for i := range containers {
		turns <- struct{}{}
		asked.Go(func() {
			answers[i] = o.ask(ctx, &containers[i])
			<-turns
		})
	}
	asked.Wait()
	return report(answers)
}

// answer is what a container says.
type answer struct {
	name, words string
	bad         bool
}

// ask asks one container.
func (o Options) ask(ctx context.Context, c *subject.Container) answer {
	a := answer{name: c.Name()}
	switch {
	case c.Status.State == "":
		a.bad, a.words = true, "there is no container"
		return a
	case c.Status.State == engine.Exited && c.Status.ExitCode == 0 && c.Spec.Restart.Policy != protocol.RestartAlways && c.Spec.Restart.Policy != protocol.RestartUnlessStopped:
		a.words = "has ended with 0"
		return a
	case c.Status.State == engine.Exited:
		a.bad, a.words = true, fmt.Sprintf("has exited with %d", c.Status.ExitCode)
		return a
	case c.Status.State != engine.Running:
		a.bad, a.words = true, "does not run"
		return a
	case c.Spec.Health == nil:
		a.words = "runs; it has no health check"
		return a
	}
	timeout := usual
	if ms := c.Spec.Health.TimeoutMillis; ms > 0 && time.Duration(ms)*time.Millisecond < wire.LimitOf(wire.Probe) {
		timeout = time.Duration(ms) * time.Millisecond
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	ok, message, err := o.Probe(bounded, plan.Target{ID: c.ID, IP: c.Status.IP, Health: *c.Spec.Health, Timeout: timeout})
	took := time.Since(began).Milliseconds()
	switch {
	case err != nil:
		a.bad, a.words = true, fmt.Sprintf("could not be asked: %v", err)
	case !ok:
		a.bad, a.words = true, fmt.Sprintf("unhealthy, %d ms: %s", took, message)
	default:
		a.words = fmt.Sprintf("healthy, %d ms", took)
	}
	return a
}

// report says it to people: a line for each container.
func report(answers []answer) (string, error) {
	var b strings.Builder
	var bad []string
	for _, a := range answers {
		fmt.Fprintf(&b, "%s: %s\n", a.name, a.words)
		if a.bad {
			bad = append(bad, a.name)
		}
	}
	if len(bad) > 0 {
		return b.String(), fmt.Errorf("%d of %d containers are not healthy: %s", len(bad), len(answers), strings.Join(bad, ", "))
	}
	return b.String(), nil
}
