package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
)

// askAtOnce bounds how many gates are asked at a time.
const askAtOnce = 16

// A question is a gate of a revision, about a wave.
type question struct {
	revisionKey
	gate string
	wave int
}

// An answer is what was said to it.
type answer struct {
	rollout.Answer
	said  bool      // there is one
	at    time.Time // when it was said
	asked bool      // it is asked for now
}

// gateFaults returns what is wrong with the gates of a file.
func (d *Driver) gateFaults(f *fleetfile.File) error {
	var problems v1rc3.Problems
	for i := range f.Strategy.Gates {
		g := rollout.Gate(f.Strategy.Gates[i])
		err := fmt.Errorf("this CO asks no gates")
		if d.o.Gates != nil {
			err = d.o.Gates.Check(&g)
		}
		if err != nil {
			problems = append(problems, v1rc3.Problem{Path: fmt.Sprintf("spec.strategy.gates[%d]", i), Message: err.Error()})
		}
	}
	return problems.Err()
}

// ask returns the answers of the gates of rollouts, each of which has a plan, about their waves. An answer is valid for a while; older ones are asked for
// again in the background: a slow source delays its own rollout alone.
func (d *Driver) ask(ctx context.Context, open []rollout.Rollout, plans []rollout.Plan) [][]rollout.Answer {
	d.asking.Lock()
	defer d.asking.Unlock()
	known := map[question]*answer{}
	out := make([][]rollout.Answer, len(open))
	for i := range open {
		r := &open[i]
		for j := range plans[i].Gates {
			g := &plans[i].Gates[j]
			q := question{revisionKey{r.Fleet, r.Revision, r.Digest}, g.Name, r.Wave}
			a := d.answers[q]
			if a == nil {
				a = &answer{}
			}
			known[q] = a
			if a.said {
				out[i] = append(out[i], a.Answer)
			}
			if r.State == rollout.Running && d.o.Gates != nil && !a.asked && (!a.said || time.Since(a.at) >= d.o.AskEvery) {
				a.asked = true
				d.asks.Go(func() { d.askOne(ctx, g, r.About(g.Name), a) })
			}
		}
	}
	d.answers = known
	return out
}

// askOne asks a gate.
func (d *Driver) askOne(ctx context.Context, g *rollout.Gate, about rollout.About, a *answer) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
	}
	said := d.o.Gates.Ask(ctx, g, about)
	said.Wave = about.Wave
	d.asking.Lock()
	defer d.asking.Unlock()
	if a.asked = false; ctx.Err() == nil {
		a.Answer, a.said, a.at = said, true, time.Now()
	}
}
