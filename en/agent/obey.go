package agent

import (
	"bytes"
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
	// remembered is the encoded trust.State that was stored last; nil: none was since the start.
	remembered []byte

	firstLook // of the containers, before which nothing that is desired removes anything

	obeyed  *protocol.NodeDesired // desired without what is refused; nil where desired is
	failed  map[protocol.DeploymentName]plan.Failure
	refused []trust.Refused
	forged  error                  // why the message that came last is refused as a whole; nil: it is not
	counted map[sign.Reason]uint64 // refusals since the start
}

// Accept accepts a NodeDesired as it came from the LO. When it returns nil, the
// message is on disk, or was no news. An error of kind Invalid refuses the
// message for ever; with any other it should come again.
func (r *Runner) Accept(ctx context.Context, payload []byte) error {
	var d protocol.NodeDesired
	if err := protocol.Unmarshal(payload, &d); err != nil {
		return err
	}
	if d.Node != r.o.Node {
		return protocol.Errorf(protocol.Invalid, "desired state of node %q came to node %q", d.Node, r.o.Node)
	}
	if err := plan.Check(&d); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.sent(ctx, &d, payload); err != nil {
		return err
	}
	same := r.desired != nil && d.Held() == r.desired.Held()
	signed := len(d.Signature) == 0 || same && len(r.desired.Signature) > 0
	if bytes.Equal(r.raw, payload) || same && signed && len(r.refused) == 0 && bytes.Equal(d.KeySet, r.desired.KeySet) {
		return nil
	}
	if !same && !plan.Supersedes(r.desired, &d) { // the same may come with signatures that count
		r.log.WarnContext(ctx, "desired state ignored: a later one, or another one at its position, is in force",
			"position", d.Position.String(), "held", r.desired.Position.String())
		if r.ignored != d.Position {
			r.ignored, r.wholeDue = d.Position, true
			r.outbox.Notify()
		}
		return nil
	}
	raw := bytes.Clone(payload) // the caller may use its buffer again
	if err := protocol.Unmarshal(raw, &d); err != nil {
		return err
	}
	v := r.judge(&d)
	if same && len(v.Refused) > len(r.refused) {
		r.log.WarnContext(ctx, "desired state ignored: more of it is refused than of the same one that is in force", "position", d.Position.String(), "refused", len(v.Refused))
		return nil
	}
	if err := r.keep(raw, v); err != nil {
		return protocol.Errorf(protocol.Unavailable, "keep desired state: %w", err)
	}
	if r.desired == nil || r.incomplete {
		r.sweep.Notify()
	}
	r.desired, r.raw, r.incomplete = &d, raw, false
	r.obey(ctx, v)
	r.log.InfoContext(ctx, "desired state adopted", "position", d.Position.String(), "assignments", len(d.Assignments),
		"removals", len(d.Removals))
	r.newDesired.Notify()
	r.retain.Notify()
	return nil
}

// sent refuses a message that the LO of the site did not sign, where it is to. The caller holds r.mu.
func (r *Runner) sent(ctx context.Context, d *protocol.NodeDesired, payload []byte) error {
	err := r.o.Check.Sent(d, payload)
	changed := (err == nil) != (r.forged == nil)
	if r.forged = err; err != nil {
		r.count(err)
		r.log.ErrorContext(ctx, "desired state refused: what runs goes on", "position", d.Position.String(), "err", err)
	}
	if changed {
		r.o.Changed()
	}
	return err
}

// count counts a refusal. The caller holds r.mu.
func (r *Runner) count(err error) {
	if r.counted == nil {
		r.counted = map[sign.Reason]uint64{}
	}
	r.counted[sign.ReasonOf(err)]++
}

// judge says what of a desired state is obeyed. The caller holds r.mu.
func (r *Runner) judge(d *protocol.NodeDesired) trust.Verdict {
	return r.o.Check.Check(d, r.records)
}

// keep writes a desired state, and before it what the node must remember of it: where only that is
// written, the desired state comes again. The caller holds r.mu.
func (r *Runner) keep(raw []byte, v trust.Verdict) error {
	if state := protocol.Marshal(v.State); !bytes.Equal(state, r.remembered) {
		if err := r.o.Store.SaveTrust(v.State); err != nil {
			return err
		}
		r.o.Check.Adopt(v.State)
		r.remembered = state
	}
	return r.o.Store.SaveDesired(raw)
}

// obey takes over a verdict, and says what is refused. The caller holds r.mu.
func (r *Runner) obey(ctx context.Context, v trust.Verdict) {
	changed := len(v.Refused) > 0 || len(r.refused) > 0
	r.obeyed, r.failed, r.refused = v.Obeyed, v.Failed, v.Refused
	for _, f := range v.Refused {
		r.count(f.Err)
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

// volumesDesired returns the desired state as the rules of volumes read it: its removals are those
// that the node obeys; its assignments are all, also those that the node refuses. The caller holds
// r.mu.
func (r *Runner) volumesDesired() *protocol.NodeDesired {
	if r.obeyed == nil {
		return nil
	}
	d := *r.obeyed
	if !r.seen() {
		d.Removals, d.Purges = nil, nil
	}
	d.Assignments = r.desired.Assignments
	return &d
}

// Volumes returns the volumes that outlived their deployments, at most
// protocol.MaxVolumes of them, and how many there are.
func (r *Runner) Volumes() (list []protocol.Volume, count int) { return r.volumes.List() }

// Problem says what of the desired state is refused, for people; "": nothing is.
func (r *Runner) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first []string
	if r.forged != nil {
		return fmt.Sprintf("the desired state that came last is refused as a whole, and what runs goes on: %v", r.forged)
	}
	if len(r.refused) == 0 {
		return ""
	}
	for _, f := range r.refused[:min(len(r.refused), maxRefused)] {
		first = append(first, f.String())
	}
	return fmt.Sprintf("%d parts of the desired state that the site's local orchestrator sent are refused, and what runs goes on: %s", len(r.refused), strings.Join(first, "; "))
}

// Refused counts the desired states, and the parts of them, that were refused since the start, by reason.
func (r *Runner) Refused() map[sign.Reason]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counted)
}
