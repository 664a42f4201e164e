// Package view computes what the control loop looks at: the desired state by name, a node as the
// scheduler sees it, and the reports of a placement. It is pure: no clock and no I/O.
package view

import (
	"cmp"
	"slices"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// Unlisted is the problem of a deployment that the site runs and the desired state names
// neither to run nor to remove.
const Unlisted = "it is in neither list of the site's desired state, and stays as it is: delete it to remove it, or deploy it to go on with it"

// Work is a desired state of the site by name.
type Work struct {
	Position protocol.Position
	Entries  map[protocol.DeploymentName]protocol.SiteEntry
	Removals map[protocol.DeploymentName]protocol.Removal
	Purges   map[protocol.NodeID][]protocol.NodePurge
	KeySet   []byte
	Windows  bool // the site has maintenance windows
}

// WorkOf returns a desired state by name.
func WorkOf(m protocol.SiteDesired) *Work {
	w := &Work{
		Position: m.Position, KeySet: m.KeySet, Windows: m.Maintenance != nil, Entries: make(map[protocol.DeploymentName]protocol.SiteEntry, len(m.Deployments)),
		Removals: make(map[protocol.DeploymentName]protocol.Removal, len(m.Removals)), Purges: map[protocol.NodeID][]protocol.NodePurge{},
	}
	for _, e := range m.Deployments {
		w.Entries[e.Deployment] = e
	}
	for _, r := range m.Removals {
		w.Removals[r.Deployment] = r
	}
	for _, p := range m.Purges {
		w.Purges[p.Node] = append(w.Purges[p.Node], protocol.NodePurge{
			Deployment: p.Deployment, Volume: p.Volume, Site: p.Position, Signature: p.Signature,
		})
	}
	return w
}

// WithLost adds the records of nodes whose file was damaged: the node is known, and
// nothing of it.
func WithLost(records []*nodes.Record, damaged []*statefile.Damage) []*nodes.Record {
	for _, id := range DamagedNodes(damaged) {
		records = append(records, nodes.New(id))
	}
	return records
}

// DamagedNodes are the nodes whose records were damaged.
func DamagedNodes(damaged []*statefile.Damage) (ids []protocol.NodeID) {
	for _, d := range damaged {
		if id, err := protocol.ParseNodeID(d.Name); err == nil && d.Role == nodes.StateRole {
			ids = append(ids, id)
		}
	}
	return ids
}

// Expected returns what a node is expected to run until it has reported that itself.
func Expected(r *nodes.Record, state nodes.Site) []protocol.DeploymentName {
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

// Node returns a node as the scheduler sees it, by its record; reported says that it has reported
// everything since the start of the LO.
func Node(rec *nodes.Record, reported bool) placement.Node {
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
	return v
}

// restricted says to the scheduler what restricts a node.
func restricted(rec *nodes.Record) (r placement.Restricted) {
	if len(rec.Restrictions) == 0 {
		return r
	}
	return placement.RestrictedBy(rec.RestrictionReport().Restrictions...)
}

// Reports returns the reports of all that is placed, and of what nodes run that
// the desired state does not name, sorted by name.
func Reports(placed placement.Placement, desired protocol.SiteDesired, view []placement.Node, rejected int) []protocol.PlacementReport {
	var out []protocol.PlacementReport
	named := map[protocol.DeploymentName]bool{}
	for name, result := range placed {
		named[name] = true
		out = append(out, result.Report(name, rejected))
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
		out = append(out, protocol.PlacementReport{V: protocol.Version, Deployment: name, Nodes: on, Problem: Unlisted})
	}
	slices.SortFunc(out, func(a, b protocol.PlacementReport) int { return cmp.Compare(a.Deployment, b.Deployment) })
	return out
}

// Statements is the digest of what the CO signed of m, of the key set and the signatures, and of the
// certificates by which the LO signs.
func Statements(m *protocol.NodeDesired) protocol.Digest {
	all := [][]byte{m.KeySet}
	for _, a := range m.Assignments {
		all = append(all, a.Signature)
	}
	for _, r := range m.Removals {
		all = append(all, r.Signature)
	}
	for _, p := range m.Purges {
		all = append(all, p.Signature)
	}
	return protocol.DigestOf(protocol.Marshal(append(all, m.Certificates...)))
}
