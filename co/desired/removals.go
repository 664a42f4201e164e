package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/layout"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// A Removal is the commit that removed a file, with the trailers of its message as lines
// "Key: value", and the id of the content that the file had.
type Removal struct {
	Commit   string
	Trailers []string
	Blob     string
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
	// Line returns the commits of the head along its first parents, the newest first, and Ancestors those that a commit follows, itself included.
	Line(ctx context.Context) ([]string, error)
	Ancestors(ctx context.Context, commit string) ([]string, error)
	// Confirmations returns which proposals commits confirm.
	Confirmations(ctx context.Context) ([]Confirmation, error)
}

// A ProposalStore is the record of what is held. SaveDesired of the Store opens and ends
// what each Desired says.
type ProposalStore interface {
	// Standing returns what is held, or was confirmed and is not done.
	Standing(ctx context.Context) ([]fleet.Standing, error)
	// NextID returns the id of a new proposal of a commit.
	NextID(ctx context.Context, kind proposal.Kind, commit string) (string, error)
	// Confirm agrees to an open proposal.
	Confirm(ctx context.Context, id, by string) (proposal.Proposal, error)
}

// A deploymentKey names a deployment of the fleet.
type deploymentKey struct {
	site protocol.SiteID
	name protocol.DeploymentName
}

// A review says which removals of a snapshot wait until a person confirms them.
type review struct {
	loop     *Loop
	head     string
	standing map[deploymentKey]fleet.Standing
	// held has what waits of the deployments whose files are not there any more.
	held map[deploymentKey]fleet.Hold
	// removes has the sites of which something is removed, with the deployments whose volumes
	// go with them.
	removes map[protocol.SiteID][]protocol.DeploymentName
	// opens has the proposals that this look opens, by commit.
	opens map[string]string
	// nodes are those of the sites that were looked at.
	nodes map[protocol.SiteID][]placement.Node
}

// review looks for the deployments that run and whose files are not there any more, and
// decides which of them stay until a person confirms their removal. requested are sites of which something was asked for by name, see PositionStore.Requested.
func (l *Loop) review(ctx context.Context, s Snapshot, files []file, requested map[protocol.SiteID]bool) (*review, error) {
	r := &review{
		loop: l, head: s.Commit, standing: map[deploymentKey]fleet.Standing{}, opens: map[string]string{}, held: map[deploymentKey]fleet.Hold{},
		nodes: map[protocol.SiteID][]placement.Node{}, removes: map[protocol.SiteID][]protocol.DeploymentName{},
	}
	if err := r.readStanding(ctx); err != nil {
		return nil, err
	}
	missing, running := l.missing(files)
	var fresh []proposal.Removal
	since := l.head
	for _, k := range missing {
		switch standing, known := r.standing[k]; {
		case known && standing.Open && standing.Cause == string(proposal.Unheard) && !l.sites[k.site].awaited:
			fresh, since = append(fresh, proposal.Removal{Site: k.site, Deployment: k.name}), "" // an earlier commit removed it
		case !known || standing.Cause == string(proposal.NoNode):
			fresh = append(fresh, proposal.Removal{Site: k.site, Deployment: k.name})
		case !standing.Confirmed && standing.Cause == string(proposal.SiteRemoved) && requested[k.site]:
			r.remove(k.site) // it goes with the site after all
		case !standing.Confirmed:
			r.held[k] = standing.Hold
		default:
			r.remove(k.site)
		}
	}
	if len(fresh) == 0 {
		return r, nil
	}
	removed, err := l.removals(ctx, since)
	if err != nil {
		return nil, err
	}
	suspects := l.suspects(s, files, removed, fresh)
	for i := range fresh {
		if err := l.explain(ctx, &fresh[i], s, removed, suspects); err != nil {
			return nil, err
		}
		_, expanded := s.Origins[deploymentFile(fresh[i].Site, fresh[i].Deployment)]
		if requested[fresh[i].Site] && (expanded || fresh[i].Cause == proposal.SiteRemoved) {
			fresh[i].Confirmed = true // what the site had goes with the site
		}
		if !requested[fresh[i].Site] {
			if err := l.markStale(&fresh[i], s.Commit, removed); err != nil {
				return nil, err
			}
		}
	}
	held := l.opts.Limits.Hold(fresh, running)
	for i, f := range fresh {
		if _, waits := held[i]; waits {
			continue
		}
		r.remove(f.Site)
		have, _ := l.have(f.Site, f.Deployment)
		by, found, err := removed.of(deploymentFile(f.Site, f.Deployment), have.Commit)
		if err != nil {
			return nil, err
		}
		if found && proposal.RemovesVolumes(by.Trailers, f.Site, f.Deployment) {
			r.remove(f.Site, f.Deployment)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(held)) {
		f := fresh[i]
		if r.held[deploymentKey{f.Site, f.Deployment}], err = r.hold(ctx, deploymentKey{f.Site, f.Deployment}, f.Commit, held[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// A removals says which commits removed files.
type removals struct {
	byPath map[string]Removal
	// age has the commits of the head along its first parents, the newest with 0.
	age map[string]int
	// before has the ancestors of commits that were asked for, and ancestors asks.
	before    map[string]map[string]bool
	ancestors func(commit string) ([]string, error)
}

// markStale holds a removal at a site whose record was restored, where what runs may be of a later file than the one that a commit of the head removed: the
// branch may have been set back, too. An LO of an earlier release does not say of which commit its state is, and is not doubted.
func (l *Loop) markStale(r *proposal.Removal, head string, removed removals) error {
	s := l.sites[r.Site]
	var cause proposal.Cause
	switch held := s.unknown; {
	case s.awaited && l.head == "": // a later commit was made since the restore
		cause = proposal.Unheard
	case held == nil || held.Commit == "" && held.Digest != "":
		return nil
	case held.Digest == "": // nodes say how far the site was, or none does
		cause = proposal.Forgotten
	default:
		if known, err := removed.follows(head, held.Commit); err != nil || known {
			return err
		}
		cause = proposal.SetBack
	}
	if r.Cause == "" || r.Confirmed {
		r.Commit, r.Cause, r.Confirmed = head, cause, false
	}
	return nil
}

// removals reads which commits of the head removed files: those after since where the head follows it, else all.
func (l *Loop) removals(ctx context.Context, since string) (removals, error) {
	byPath, err := l.opts.History.Removals(ctx, since)
	if err != nil {
		return removals{}, fmt.Errorf("read which commits removed files: %w", err)
	}
	line, err := l.opts.History.Line(ctx)
	if err != nil {
		return removals{}, fmt.Errorf("read the commits of the head: %w", err)
	}
	age := make(map[string]int, len(line))
	for i, commit := range line {
		age[commit] = i
	}
	ancestors := func(commit string) ([]string, error) { return l.opts.History.Ancestors(ctx, commit) }
	return removals{byPath, age, map[string]map[string]bool{}, ancestors}, nil
}

// of returns the commit that removed a file whose last change that is known is of another commit. One that does not follow that explains nothing: it was
// there before, and the branch was set back to it; nor does one of a history that does not have that commit.
func (r removals) of(path, known string) (by Removal, found bool, err error) {
	if by, found = r.byPath[path]; !found || by.Commit == known {
		return Removal{}, false, nil
	}
	if follows, err := r.follows(by.Commit, known); !follows {
		return Removal{}, false, err
	}
	return by, true, nil
}

// follows reports whether a commit is the other one, or follows it.
func (r removals) follows(commit, other string) (bool, error) {
	at, ok := r.age[commit]
	if before, along := r.age[other]; ok && along {
		return at <= before, nil
	}
	// The other one came by a merge, or is of another history.
	if r.before[commit] == nil {
		list, err := r.ancestors(commit)
		if err != nil {
			return false, fmt.Errorf("read what commit %.12s follows: %w", commit, err)
		}
		r.before[commit] = make(map[string]bool, len(list))
		for _, a := range list {
			r.before[commit][a] = true
		}
	}
	return r.before[commit][other], nil
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

// suspects are signs that a removal was an accident.
type suspects struct {
	// commits left a file that looks as if it were meant for the CO, and that it does not read or refuses.
	commits map[string]bool
	// ids are those of deployments at sites whose LO never connected.
	ids map[string]bool
	// files may be those that are missing.
	files *layout.Leftovers
}

func (l *Loop) suspects(s Snapshot, files []file, removed removals, fresh []proposal.Removal) suspects {
	out := suspects{map[string]bool{}, map[string]bool{}, l.leftovers(s, removed, fresh)}
	for p, commit := range s.Commits {
		if l.refused(s, p) {
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
func (l *Loop) explain(ctx context.Context, r *proposal.Removal, s Snapshot, removed removals, left suspects) error {
	path := deploymentFile(r.Site, r.Deployment)
	have, _ := l.have(r.Site, r.Deployment)
	if origin, ok := s.Origins[path]; ok {
		err := l.explainOrigin(r, origin, have.Commit, s, removed)
		switch _, there := s.Commits[origin]; {
		case err != nil || r.Cause != "":
		case left.commits[r.Commit]:
			r.Cause = proposal.Unreadable
		case !there:
			return l.explainLeft(ctx, r, s, layout.Missing{Path: origin, Blob: removed.byPath[origin].Blob, ID: have.ID, Fleet: true}, left)
		}
		return err
	}
	by, found, err := removed.of(path, have.Commit)
	if !found {
		r.Commit, r.Cause = s.Commit, proposal.Rewritten
		return err
	}
	r.Commit, r.Confirmed = by.Commit, proposal.Confirms(by.Trailers, r.Site, r.Deployment)
	switch {
	case left.commits[by.Commit] || blocked(path, s.Skipped):
		r.Cause = proposal.Unreadable
	case proposal.RemovesSite(by.Trailers, r.Site):
		r.Cause = proposal.SiteRemoved
	case left.ids[have.ID]:
		r.Cause = proposal.Moved
	default:
		return l.explainLeft(ctx, r, s, layout.Missing{Path: path, Blob: by.Blob, ID: have.ID}, left)
	}
	return nil
}

// explainOrigin finds the commit that asks for a removal of what another file expanded to: the one that removed that file, or
// the last one that changed which sites it means. Where no commit did, the sites or their groups are others. known is the commit of what runs.
func (l *Loop) explainOrigin(r *proposal.Removal, origin, known string, s Snapshot, removed removals) error {
	if _, there := s.Commits[sitefile.Path(r.Site)]; !there {
		if by, found := removed.byPath[sitefile.Path(r.Site)]; found && proposal.RemovesSite(by.Trailers, r.Site) {
			r.Commit, r.Cause = by.Commit, proposal.SiteRemoved
			return nil
		}
	}
	if changed, there := s.Commits[origin]; there {
		r.Commit = changed
		follows, err := removed.follows(changed, known)
		if !follows {
			r.Commit, r.Cause = s.Commit, proposal.Rewritten
		}
		return err
	}
	by, found, err := removed.of(origin, known)
	switch {
	case blocked(origin, s.Skipped) || s.Skipped[origin] != "":
		r.Commit, r.Cause = s.Commit, proposal.Unreadable
	case !found:
		r.Commit, r.Cause = s.Commit, proposal.Rewritten
	default:
		r.Commit, r.Confirmed = by.Commit, proposal.Confirms(by.Trailers, r.Site, r.Deployment)
	}
	return err
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

// hold returns why a deployment is held. What is found at one look is one proposal of its commit: one that people may have seen before gets no
// further effects, as they would agree to what they have not seen.
func (r *review) hold(ctx context.Context, k deploymentKey, commit string, cause proposal.Cause) (fleet.Hold, error) {
	id := r.opens[commit]
	if standing := r.standing[k]; standing.Open && standing.Commit == commit {
		id = standing.Proposal
	}
	if id == "" {
		var err error
		if id, err = r.loop.opts.Proposals.NextID(ctx, proposal.Removals, commit); err != nil {
			return fleet.Hold{}, fmt.Errorf("name the proposal of commit %.12s: %w", commit, err)
		}
		r.opens[commit] = id
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
		if !known || have.Entry.Digest == "" || proposal.SameNodes(desired[i].Entry.Placement, have.Entry.Placement) {
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

// renamed reports whether a held deployment runs under another name from now on: its folder was
// renamed, and its file has the new name now. Both would run otherwise.
func renamed(have fleet.Desired, desired []fleet.Desired) bool {
	return have.ID != "" && slices.ContainsFunc(desired, func(d fleet.Desired) bool {
		return d.ID == have.ID && d.Name != have.Name && d.Problem == "" && d.Entry.Digest != ""
	})
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
		r.nodes[site] = nodes
	}
	if !proposal.Stranded(d.Name, d.Entry, nodes) {
		return fleet.Hold{}, nil
	}
	if known {
		return standing.Hold, nil
	}
	return r.hold(ctx, deploymentKey{site, d.Name}, d.Commit, proposal.NoNode)
}
