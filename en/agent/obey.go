package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// maxRefused is how many refusals Problem names.
const maxRefused = 3

// A desiredState is what the LO desires of the node, and what the Runner makes of it. The Runner's
// mutex protects it.
type desiredState struct {
	desired *protocol.NodeDesired
	raw     []byte // desired as it was received

	obeyed  *protocol.NodeDesired // desired without what is refused; nil where desired is
	failed  map[protocol.DeploymentName]plan.Failure
	refused []trust.Refused
	counted map[sign.Reason]uint64 // refusals since the start
}

// judge says what of a desired state is obeyed. The caller holds r.mu.
func (r *Runner) judge(d *protocol.NodeDesired) trust.Verdict {
	if r.o.Check == nil {
		return trust.Verdict{Obeyed: d}
	}
	return r.o.Check.Check(d, r.records)
}

// keep writes a desired state, and before it what the node must remember of it: where only that is
// written, the desired state comes again. The caller holds r.mu.
func (r *Runner) keep(raw []byte, v trust.Verdict) error {
	if r.o.Check != nil {
		if err := r.o.Store.SaveTrust(v.State); err != nil {
			return err
		}
		r.o.Check.Adopt(v.State)
	}
	return r.o.Store.SaveDesired(raw)
}

// obey takes over a verdict, and says what is refused. The caller holds r.mu.
func (r *Runner) obey(ctx context.Context, v trust.Verdict) {
	changed := len(v.Refused) > 0 || len(r.refused) > 0
	r.obeyed, r.failed, r.refused = v.Obeyed, v.Failed, v.Refused
	if r.counted == nil {
		r.counted = map[sign.Reason]uint64{}
	}
	for _, f := range v.Refused {
		r.counted[sign.ReasonOf(f.Err)]++
		r.log.ErrorContext(ctx, "part of the desired state refused: what runs goes on", "part", f.What, "deployment_id", f.Deployment, "err", f.Err)
	}
	if changed {
		r.o.Changed()
	}
}

// assignment returns what is obeyed about a deployment. The caller holds r.mu.
func (r *Runner) assignment(name protocol.DeploymentName) plan.Assignment {
	a := plan.AssignmentFor(r.obeyed, name)
	if f, ok := r.failed[name]; ok {
		a.Refusal = &f
	}
	return a
}

// volumesDesired is the desired state as it counts for volumes: removed is only what is obeyed,
// and kept is what is assigned, refused or not. The caller holds r.mu.
func (r *Runner) volumesDesired() *protocol.NodeDesired {
	if r.obeyed == nil {
		return nil
	}
	d := *r.obeyed
	d.Assignments = r.desired.Assignments
	return &d
}

// Problem says what of the desired state is refused, for people; "": nothing is.
func (r *Runner) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) == 0 {
		return ""
	}
	var first []string
	for _, f := range r.refused[:min(len(r.refused), maxRefused)] {
		first = append(first, f.String())
	}
	return fmt.Sprintf("%d parts of the desired state that the site's local orchestrator sent are refused, and what runs goes on: %s", len(r.refused), strings.Join(first, "; "))
}

// Refused counts the parts of desired states that were refused since the start, by reason.
func (r *Runner) Refused() map[sign.Reason]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counted)
}
