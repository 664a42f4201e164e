package desired

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// A Removal is the commit that removed a file, with the trailers of its message as lines
// "Key: value".
type Removal struct {
	Commit   string
	Trailers []string
}

// A Confirmation is a trailer of a commit that names a proposal.
type Confirmation struct {
	Proposal, Commit, Author string
}

// A History has the commits of the head of the deployments repo.
type History interface {
	// Removals returns the commits that removed files, by path: those after since where the
	// head follows it, else all.
	Removals(ctx context.Context, since string) (map[string]Removal, error)
	// Confirmations returns which proposals commits confirm.
	Confirmations(ctx context.Context) ([]Confirmation, error)
}

// A ProposalStore is the record of what is held. SaveDesired of the Store opens and ends
// what each Desired says.
type ProposalStore interface {
	// Standing returns what is held, or was confirmed and is not done.
	Standing(ctx context.Context) ([]fleet.Standing, error)
	// NextID returns the id of the open proposal of a commit, or that of a new one.
	NextID(ctx context.Context, kind proposal.Kind, commit string) (string, error)
	// Confirm agrees to an open proposal.
	Confirm(ctx context.Context, id, by string) (proposal.Proposal, error)
}

// A deploymentKey names a deployment of the fleet.
type deploymentKey struct {
	site protocol.SiteID
	name protocol.DeploymentName
}

// A review says which removals of a snapshot wait until somebody confirms them.
type review struct {
	loop     *Loop
	head     string
	standing map[deploymentKey]fleet.Standing
	// held has what waits of the deployments whose files are not there any more.
	held map[deploymentKey]fleet.Hold
	// removes has the sites of which something is removed, with the deployments whose volumes
	// go with them.
	removes map[protocol.SiteID][]protocol.DeploymentName
	// nodes are those of the sites that were looked at.
	nodes map[protocol.SiteID][]placement.Node
}

// review looks for the deployments that run and whose files are not there any more, and
// decides which of them stay until somebody confirms their removal. requested are sites of which something was asked for by name.
func (l *Loop) review(ctx context.Context, s Snapshot, files []file, requested []protocol.SiteID) (*review, error) {
	r := &review{
		loop: l, head: s.Commit, standing: map[deploymentKey]fleet.Standing{}, held: map[deploymentKey]fleet.Hold{},
		nodes: map[protocol.SiteID][]placement.Node{}, removes: map[protocol.SiteID][]protocol.DeploymentName{},
	}
	if err := r.readStanding(ctx); err != nil {
		return nil, err
	}
	missing, running := l.missing(files)
	var fresh []proposal.Removal
	for _, k := range missing {
		switch standing, known := r.standing[k]; {
		case !known || standing.Cause == string(proposal.NoNode):
			fresh = append(fresh, proposal.Removal{Site: k.site, Deployment: k.name})
		case !standing.Confirmed:
			r.held[k] = standing.Hold
		default:
			r.remove(k.site)
		}
	}
	if len(fresh) == 0 {
		return r, nil
	}
	removed, err := l.opts.History.Removals(ctx, l.head)
	if err != nil {
		return nil, fmt.Errorf("read which commits removed files: %w", err)
	}
	suspects := l.suspects(s, files)
	for i := range fresh {
		l.explain(&fresh[i], s, removed, suspects)
		if _, expanded := s.Origins[deploymentFile(fresh[i].Site, fresh[i].Deployment)]; expanded && slices.Contains(requested, fresh[i].Site) {
			fresh[i].Confirmed = true // what the site had of the fleet goes with the site
		}
	}
	held := l.opts.Limits.Hold(fresh, running)
	for i, f := range fresh {
		if _, waits := held[i]; waits {
			continue
		}
		r.remove(f.Site)
		if proposal.RemovesVolumes(removed[deploymentFile(f.Site, f.Deployment)].Trailers, f.Site, f.Deployment) {
			r.remove(f.Site, f.Deployment)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(held)) {
		f := fresh[i]
		if r.held[deploymentKey{f.Site, f.Deployment}], err = r.hold(ctx, f.Commit, held[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// remove notes that something of a site is removed, and whose volumes go with it.
func (r *review) remove(site protocol.SiteID, volumes ...protocol.DeploymentName) {
	r.removes[site] = append(r.removes[site], volumes...)
}

// readStanding reads what is held, after it has obeyed the confirmations that commits make.
func (r *review) readStanding(ctx context.Context) error {
	list, err := r.loop.opts.Proposals.Standing(ctx)
	if err != nil {
		return fmt.Errorf("read what proposals hold: %w", err)
	}
	waiting := map[string]bool{}
	for _, v := range list {
		if v.Open {
			waiting[v.Proposal] = true
		}
	}
	if len(waiting) > 0 {
		confirmations, err := r.loop.opts.History.Confirmations(ctx)
		if err != nil {
			return fmt.Errorf("read which proposals commits confirm: %w", err)
		}
		confirmed := false
		for _, c := range confirmations {
			if !waiting[c.Proposal] {
				continue
			}
			delete(waiting, c.Proposal)
			confirmed = true
			if _, err := r.loop.opts.Proposals.Confirm(ctx, c.Proposal, fmt.Sprintf("%s in commit %.12s", c.Author, c.Commit)); err != nil {
				return fmt.Errorf("confirm proposal %s: %w", c.Proposal, err)
			}
		}
		if confirmed {
			if list, err = r.loop.opts.Proposals.Standing(ctx); err != nil {
				return fmt.Errorf("read what proposals hold: %w", err)
			}
		}
	}
	for _, v := range list {
		r.standing[deploymentKey{v.Site, v.Deployment}] = v
	}
	return nil
}

// missing returns the deployments that run and whose files are not there, by site and name,
// and how many run at each site.
func (l *Loop) missing(files []file) (missing []deploymentKey, running map[protocol.SiteID]int) {
	there := map[deploymentKey]bool{}
	for _, f := range files {
		there[deploymentKey{f.site, f.name}] = true
	}
	running = map[protocol.SiteID]int{}
	for _, site := range slices.Sorted(maps.Keys(l.sites)) {
		for _, d := range l.sites[site].desired {
			if d.Entry.Digest == "" {
				continue
			}
			running[site]++
			if k := (deploymentKey{site, d.Name}); !there[k] {
				missing = append(missing, k)
			}
		}
	}
	return missing, running
}

// suspects are what a removal that nobody meant leaves behind.
type suspects struct {
	// commits left a file below deployments/ that the CO does not read, or that it refuses.
	commits map[string]bool
	// ids are those of deployments at sites whose LO never connected.
	ids map[string]bool
}

func (l *Loop) suspects(s Snapshot, files []file) suspects {
	out := suspects{map[string]bool{}, map[string]bool{}}
	for p, commit := range s.Commits {
		if f := l.parsed[p]; strings.HasPrefix(p, "deployments/") && (stray(p) != "" || f.err != nil) {
			out.commits[commit] = true
		}
	}
	for _, f := range files {
		if known := l.sites[f.site]; f.id != "" && (known == nil || !known.connected) {
			out.ids[f.id] = true
		}
	}
	return out
}

// explain finds the commit that asks for a removal, whether it names the removal itself, and
// why it is doubtful.
func (l *Loop) explain(r *proposal.Removal, s Snapshot, removed map[string]Removal, left suspects) {
	path := deploymentFile(r.Site, r.Deployment)
	if origin, ok := s.Origins[path]; ok {
		l.explainOrigin(r, origin, s, removed)
		return
	}
	by, found := removed[path]
	if !found {
		r.Commit, r.Cause = s.Commit, proposal.Rewritten
		return
	}
	r.Commit, r.Confirmed = by.Commit, proposal.Confirms(by.Trailers, r.Site, r.Deployment)
	have, _ := l.have(r.Site, r.Deployment)
	switch {
	case left.commits[by.Commit] || blocked(path, s.Skipped):
		r.Cause = proposal.Unreadable
	case left.ids[have.ID]:
		r.Cause = proposal.Moved
	}
}

// explainOrigin finds the commit that asks for a removal of what another file expanded to: the one that removed that file, or
// the last one that changed which sites it means. Where no commit did, the sites or their groups are others.
func (l *Loop) explainOrigin(r *proposal.Removal, origin string, s Snapshot, removed map[string]Removal) {
	if changed, there := s.Commits[origin]; there {
		r.Commit = changed
		return
	}
	by, found := removed[origin]
	switch {
	case blocked(origin, s.Skipped) || s.Skipped[origin] != "":
		r.Commit, r.Cause = s.Commit, proposal.Unreadable
	case !found:
		r.Commit, r.Cause = s.Commit, proposal.Rewritten
	default:
		r.Commit, r.Confirmed = by.Commit, proposal.Confirms(by.Trailers, r.Site, r.Deployment)
	}
}

// blocked reports whether a folder of a path is something else in a snapshot, as a symbolic
// link or a submodule.
func blocked(path string, skipped map[string]string) bool {
	for i := range len(path) {
		if _, ok := skipped[path[:i]]; ok && path[i] == '/' {
			return true
		}
	}
	return false
}

func deploymentFile(site protocol.SiteID, name protocol.DeploymentName) string {
	return fmt.Sprintf("deployments/%s/%s/deployment.yaml", site, name)
}

func (r *review) hold(ctx context.Context, commit string, cause proposal.Cause) (fleet.Hold, error) {
	id, err := r.loop.opts.Proposals.NextID(ctx, proposal.Removals, commit)
	if err != nil {
		return fleet.Hold{}, fmt.Errorf("name the proposal of commit %.12s: %w", commit, err)
	}
	return fleet.Hold{Proposal: id, Commit: commit, Cause: string(cause)}, nil
}

// retain adds to what is desired at a site what is held of it, sorted by name.
func (r *review) retain(ctx context.Context, site protocol.SiteID, desired []fleet.Desired) ([]fleet.Desired, error) {
	for i := range desired {
		if desired[i].Problem == "" || desired[i].Hold.Cause != string(proposal.NoNode) {
			desired[i].Hold = fleet.Hold{}
		}
		have, known := r.loop.have(site, desired[i].Name)
		if !known || have.Entry.Digest == "" || sameNodes(desired[i].Entry.Placement, have.Entry.Placement) {
			continue
		}
		hold, err := r.nowhere(ctx, site, desired[i])
		if err != nil {
			return nil, err
		}
		if hold != (fleet.Hold{}) {
			desired[i] = have
			desired[i].Hold = hold
		}
	}
	for _, have := range r.loop.sites[site].desired {
		if hold, ok := r.held[deploymentKey{site, have.Name}]; ok {
			if hold.Cause == string(proposal.Unreadable) && renamed(have, desired) {
				r.remove(site)
				continue
			}
			have.Hold = hold
			desired = append(desired, have)
		}
	}
	slices.SortFunc(desired, byName)
	return desired, nil
}

// renamed reports whether a deployment that is held runs under another name from now on: its
// folder was renamed, and by now its file says so, too. Both would run otherwise.
func renamed(have fleet.Desired, desired []fleet.Desired) bool {
	return have.ID != "" && slices.ContainsFunc(desired, func(d fleet.Desired) bool {
		return d.ID == have.ID && d.Name != have.Name && d.Problem == "" && d.Entry.Digest != ""
	})
}

// sameNodes reports whether two placements match the same nodes, whatever number of them they
// want.
func sameNodes(a, b protocol.Placement) bool {
	return a.Node == b.Node && maps.Equal(a.Selector, b.Selector) && bytes.Equal(a.Constraints, b.Constraints)
}

// nowhere returns why the change of a deployment's placement is held: it runs, and would be
// removed from all its nodes, because none of the site's nodes matches.
func (r *review) nowhere(ctx context.Context, site protocol.SiteID, d fleet.Desired) (fleet.Hold, error) {
	standing, known := r.standing[deploymentKey{site, d.Name}]
	known = known && standing.Commit == d.Commit && standing.Cause == string(proposal.NoNode)
	if known && standing.Confirmed {
		return fleet.Hold{}, nil
	}
	nodes, looked := r.nodes[site]
	if !looked {
		var err error
		if nodes, err = r.loop.opts.Nodes(ctx, site); err != nil {
			return fleet.Hold{}, fmt.Errorf("read the nodes of site %s: %w", site, err)
		}
		for i := range nodes {
			nodes[i].Online = true // a node that is away comes back
		}
		r.nodes[site] = nodes
	}
	runs := slices.ContainsFunc(nodes, func(n placement.Node) bool { return slices.Contains(n.Runs, d.Name) })
	entry := d.Entry
	entry.Deployment = d.Name
	if !runs || len(placement.Place(placement.Input{Desired: []protocol.SiteEntry{entry}, Nodes: nodes})[d.Name].Nodes) > 0 {
		return fleet.Hold{}, nil
	}
	if known {
		return standing.Hold, nil
	}
	return r.hold(ctx, d.Commit, proposal.NoNode)
}
