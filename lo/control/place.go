package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// unlisted is the problem of a deployment that the site runs and the desired state names
// neither to run nor to remove.
const unlisted = "it is in neither list of the site's desired state, and stays as it is: delete it to remove it, or deploy it to go on with it"

// work is a desired state of the site by name.
type work struct {
	position protocol.Position
	entries  map[protocol.DeploymentName]protocol.SiteEntry
	removals map[protocol.DeploymentName]protocol.Removal
	purges   map[protocol.NodeID][]protocol.NodePurge
	keySet   []byte
}

func workOf(m protocol.SiteDesired) *work {
	w := &work{
		position: m.Position, keySet: m.KeySet, entries: make(map[protocol.DeploymentName]protocol.SiteEntry, len(m.Deployments)),
		removals: make(map[protocol.DeploymentName]protocol.Removal, len(m.Removals)), purges: map[protocol.NodeID][]protocol.NodePurge{},
	}
	for _, e := range m.Deployments {
		w.entries[e.Deployment] = e
	}
	for _, r := range m.Removals {
		w.removals[r.Deployment] = r
	}
	for _, p := range m.Purges {
		w.purges[p.Node] = append(w.purges[p.Node], protocol.NodePurge{
			Deployment: p.Deployment, Volume: p.Volume, Site: p.Position, Signature: p.Signature,
		})
	}
	return w
}

// here returns the entries of the deployments that are placed on a node.
func (l *Loop) here(id protocol.NodeID, w *work) map[protocol.DeploymentName]protocol.SiteEntry {
	here := map[protocol.DeploymentName]protocol.SiteEntry{}
	for name := range l.placement.On(id) {
		if e, ok := w.entries[name]; ok {
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

// withLost adds the records of nodes whose file was damaged: the node is known, and
// nothing of it.
func withLost(records []*nodes.Record, damaged []*statefile.Damage) []*nodes.Record {
	for _, id := range damagedNodes(damaged) {
		records = append(records, nodes.New(id))
	}
	return records
}

// damagedNodes are the nodes whose records were damaged.
func damagedNodes(damaged []*statefile.Damage) (ids []protocol.NodeID) {
	for _, d := range damaged {
		if id, err := protocol.ParseNodeID(d.Name); err == nil && d.Role == nodes.StateRole {
			ids = append(ids, id)
		}
	}
	return ids
}

// expected returns what a node is expected to run until it has reported that itself.
func expected(r *nodes.Record, state nodes.Site) []protocol.DeploymentName {
	if r.Complete {
		return r.Expected
	}
	out := slices.Clone(r.Expected)
	for name, on := range state.Placed {
		if slices.Contains(on, r.Node) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
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
	view := l.view()
	l.placement = placement.Place(placement.Input{Desired: desired.Deployments, Nodes: view, Unsettled: unsettled, Demand: l.site.opts.Desired.Demand})
	l.known = placement.KnownOf(l.placement, view, unsettled)
	l.noteLeaving()
	if unsettled && !l.allReported() {
		return nil
	}
	reports := l.placementReports(desired, view)
	reported := make(map[protocol.DeploymentName]protocol.Digest, len(reports))
	placed := make(map[protocol.DeploymentName][]protocol.NodeID, len(reports))
	var facts []nodes.Fact
	for _, report := range reports {
		name := report.Deployment
		digest := protocol.DigestOf(protocol.Marshal(&report))
		reported[name], placed[name] = digest, report.Nodes
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
	if maps.Equal(reported, l.state.Reported) && maps.EqualFunc(placed, l.state.Placed, slices.Equal) {
		return nil
	}
	l.state.Reported, l.state.Placed = reported, placed
	return l.site.store.SaveSite(l.state)
}

// placementReports returns the reports of all that is placed, and of what nodes run that
// the desired state does not name, sorted by name.
func (l *Loop) placementReports(desired protocol.SiteDesired, view []placement.Node) []protocol.PlacementReport {
	var out []protocol.PlacementReport
	named := map[protocol.DeploymentName]bool{}
	for name, result := range l.placement {
		named[name] = true
		out = append(out, result.Report(name, maxRejected))
	}
	for _, r := range desired.Removals {
		named[r.Deployment] = true
	}
	rest := map[protocol.DeploymentName][]protocol.NodeID{}
	for _, n := range view {
		for _, name := range n.Runs {
			if !named[name] {
				rest[name] = append(rest[name], n.ID)
			}
		}
	}
	for name, on := range rest {
		out = append(out, protocol.PlacementReport{V: protocol.Version, Deployment: name, Nodes: on, Problem: unlisted})
	}
	slices.SortFunc(out, func(a, b protocol.PlacementReport) int { return cmp.Compare(a.Deployment, b.Deployment) })
	return out
}

// view returns the nodes as the scheduler sees them.
func (l *Loop) view() []placement.Node {
	var view []placement.Node
	for _, n := range l.site.sorted() {
		rec, reported := n.state()
		v := placement.Node{ID: rec.Node, Online: rec.Online(), Inventory: rec.Inventory, Unreported: !reported, Restricted: restricted(rec), Versions: map[protocol.DeploymentName]protocol.Digest{}}
		for _, name := range rec.Names() {
			if !rec.Runs(name) {
				continue
			}
			v.Runs = append(v.Runs, name)
			v.Versions[name] = rec.Deployments[name].Assigned.Digest
			if met := rec.Deployments[name].Met; met != "" {
				if v.Met == nil {
					v.Met = map[protocol.DeploymentName]protocol.Digest{}
				}
				v.Met[name] = met
			}
		}
		for _, name := range rec.Expected {
			if !slices.Contains(v.Runs, name) {
				v.Runs = append(v.Runs, name)
			}
		}
		view = append(view, v)
	}
	return view
}
