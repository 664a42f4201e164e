package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/control/view"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// here returns the entries of the deployments that are placed on a node.
func (l *Loop) here(id protocol.NodeID, w *view.Work) map[protocol.DeploymentName]protocol.SiteEntry {
	here := map[protocol.DeploymentName]protocol.SiteEntry{}
	for name := range l.placement.On(id) {
		if e, ok := w.Entries[name]; ok {
			here[name] = e
		}
	}
	return here
}

// moved returns the deployments of the site that are for certain not placed on a node any
// more. Of a node that had not reported when the placement was decided, nothing is: the
// placement was decided without what it runs.
func (l *Loop) moved(id protocol.NodeID) map[protocol.DeploymentName]bool {
	moved := map[protocol.DeploymentName]bool{}
	if !l.known.Reported[id] {
		return moved
	}
	for name := range l.known.Certain {
		if _, here := slices.BinarySearch(l.placement[name].Nodes, id); !here && l.replacing(id, name) == "" {
			moved[name] = true
		}
	}
	return moved
}

// settle takes up what the CO knows of the nodes, and returns when the LO no longer waits
// for those that have not reported; zero: it does not wait.
func (l *Loop) settle(ctx context.Context, desired protocol.SiteDesired, now time.Time) time.Time {
	if l.site.lost.Swap(false) {
		l.fresh, l.settles = true, now.Add(l.site.opts.PresenceGrace)
	}
	if l.adopted != desired.Position {
		l.adopted = desired.Position
		if !l.allReported() {
			l.settles = now.Add(l.site.opts.PresenceGrace)
		}
	}
	for _, r := range desired.Running {
		if err := l.site.expect(ctx, r); err != nil {
			l.site.log.ErrorContext(ctx, "what a node ran could not be recorded", "node_id", r.Node, "err", err)
		}
	}
	l.fresh = l.fresh && desired.Running == nil
	waited := l.waits
	if l.waits = l.unsettled(now); l.waits {
		return l.settles
	}
	l.unreported = l.unreported || waited // place what was held back
	return time.Time{}
}

// unsettled reports whether there may be replicas that the LO does not know of, and it
// waits for the nodes to report them.
func (l *Loop) unsettled(now time.Time) bool {
	return now.Before(l.settles) && (l.fresh || !l.allReported())
}

// allReported reports whether every node that is known has reported what it runs since
// the start of this LO.
func (l *Loop) allReported() bool {
	for _, n := range l.site.sorted() {
		if _, reported := n.state(); !reported {
			return false
		}
	}
	return true
}

// expect notes what a node ran as far as the CO knows, unless the node has reported.
func (s *Site) expect(ctx context.Context, r protocol.NodeRunning) error {
	n := s.lock(r.Node)
	defer n.mu.Unlock()
	if n.reported || slices.Equal(n.rec.Expected, r.Deployments) {
		return nil
	}
	rec := n.rec.Clone()
	rec.Expected = slices.Clone(r.Deployments)
	return s.commit(ctx, n, rec, nil, true)
}

// place decides where everything runs, and reports what changed in that, but while the
// LO waits for nodes to report: what it would say is about to change.
func (l *Loop) place(ctx context.Context, desired protocol.SiteDesired, now time.Time) error {
	l.unreported = true
	unsettled := l.unsettled(now)
	all := l.view()
	l.placement = placement.Place(placement.Input{Desired: desired.Deployments, Nodes: all, Unsettled: unsettled, Demand: l.site.opts.Desired.Demand})
	l.known = placement.KnownOf(l.placement, all, unsettled)
	l.noteLeaving()
	if unsettled && !l.allReported() {
		return nil
	}
	if l.site.replaced.Swap(false) {
		l.state.Reported = nil
	}
	reports := view.Reports(l.placement, desired, all, maxRejected)
	digests := make(map[protocol.DeploymentName]protocol.Digest, len(reports))
	placed := make(map[protocol.DeploymentName][]protocol.NodeID, len(reports))
	var facts []nodes.Fact
	for _, report := range reports {
		name := report.Deployment
		digest := protocol.DigestOf(protocol.Marshal(&report))
		digests[name], placed[name] = digest, report.Nodes
		if l.state.Reported[name] == digest {
			continue
		}
		facts = append(facts, siteFact(protocol.PlacementEvent, "placement/"+string(name), &report, now))
		if report.Problem != "" {
			l.site.log.WarnContext(ctx, "deployment not placed as desired", "deployment_id", name, "problem", report.Problem)
		}
	}
	if len(facts) > 0 {
		if _, err := l.site.append(ctx, facts); err != nil {
			return err
		}
	}
	l.unreported = false
	if maps.Equal(digests, l.state.Reported) && maps.EqualFunc(placed, l.state.Placed, slices.Equal) {
		return nil
	}
	l.state.Reported, l.state.Placed = digests, placed
	return l.site.store.SaveSite(l.state)
}

// view returns the nodes as the scheduler sees them.
func (l *Loop) view() []placement.Node {
	var all []placement.Node
	for _, n := range l.site.sorted() {
		rec, reported := n.state()
		all = append(all, view.Node(rec, reported))
	}
	return all
}
