package driver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	rolloutdb "github.com/colonyfleet/colony/co/db/fleet/rollouts"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A world is what the targets of fleet deployments depend on, beside their files.
type world struct {
	sites  []protocol.SiteID
	groups map[string]siteset.Set
}

func (w world) equal(o world) bool {
	return slices.Equal(w.sites, o.sites) && maps.EqualFunc(w.groups, o.groups, siteset.Set.Equal)
}

func (d *Driver) readWorld(ctx context.Context) (w world, err error) {
	if w.sites, err = d.o.Sites(ctx); err != nil {
		return w, err
	}
	slices.Sort(w.sites)
	w.groups, err = d.o.Groups(ctx)
	return w, err
}

// follow records the fleet deployments of a snapshot.
func (d *Driver) follow(ctx context.Context, s *desired.Snapshot) error {
	there := names(s)
	if len(there) == 0 && len(d.fleets) == 0 {
		latest, err := d.o.Store.Latest(ctx)
		if err != nil || len(latest) == 0 {
			return err
		}
	}
	world, err := d.readWorld(ctx)
	if err != nil {
		return err
	}
	latest, err := d.o.Store.Latest(ctx)
	if err != nil {
		return err
	}
	for i := range latest {
		if _, has := there[latest[i].Fleet]; !has {
			if err := d.removed(ctx, latest[i].Fleet); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		i := slices.IndexFunc(latest, func(r rollout.Rollout) bool { return r.Fleet == name })
		var last *rollout.Rollout
		if i >= 0 {
			last = &latest[i]
		}
		if err := d.followOne(ctx, s, last, found{name, there[name], world}); err != nil {
			return fmt.Errorf("fleet deployment %s: %w", name, err)
		}
	}
	if d.world = world; d.joins { // sites that came before may have to be looked at once more
		d.world, d.joins = worldUnknown, false
	}
	return nil
}

// worldUnknown is no world that there is.
var worldUnknown = world{sites: []protocol.SiteID{""}}

// names returns the fleet deployments of a snapshot, with the paths of their exceptions. One whose file is skipped is there.
func names(s *desired.Snapshot) map[protocol.DeploymentName][]string {
	out := map[protocol.DeploymentName][]string{}
	add := func(p string) {
		name, site, ok := fleetfile.Of(p)
		if !ok {
			return
		}
		parsed, err := protocol.ParseDeploymentName(name)
		if err != nil {
			return
		}
		if site == "" {
			out[parsed] = append(out[parsed], "")
		} else if _, err := protocol.ParseSiteID(site); err == nil {
			out[parsed] = append(out[parsed], p)
		}
	}
	for p := range s.Files {
		add(p)
	}
	for p := range s.Skipped {
		add(p)
	}
	for name, list := range out {
		if !slices.Contains(list, "") { // exceptions of nothing
			delete(out, name)
			continue
		}
		out[name] = slices.Sorted(slices.Values(slices.DeleteFunc(list, func(p string) bool { return p == "" })))
	}
	return out
}

func (d *Driver) removed(ctx context.Context, name protocol.DeploymentName) error {
	if err := d.o.Store.Removed(ctx, name); err != nil {
		return err
	}
	f := d.state(name)
	f.stale = true
	if err := d.readMembers(ctx, name, f); err != nil {
		return err
	}
	if len(f.members) == 0 {
		delete(d.fleets, name)
		delete(d.drafts, name)
		maps.DeleteFunc(d.sources, func(k revisionKey, _ *source) bool { return k.fleet == name })
	}
	return nil
}

func (d *Driver) state(name protocol.DeploymentName) *fleetState {
	f := d.fleets[name]
	if f == nil {
		f = &fleetState{stale: true, files: map[protocol.SiteID]expansion{}}
		d.fleets[name] = f
	}
	return f
}

func (d *Driver) readMembers(ctx context.Context, name protocol.DeploymentName, f *fleetState) (err error) {
	if !f.stale {
		return nil
	}
	if f.members, err = d.o.Store.Members(ctx, name); err == nil {
		f.stale = false
	}
	return err
}

// A found is a fleet deployment of a snapshot.
type found struct {
	name       protocol.DeploymentName
	exceptions []string // paths
	world      world
}

// followOne records what a fleet deployment says, and at which sites.
func (d *Driver) followOne(ctx context.Context, s *desired.Snapshot, last *rollout.Rollout, c found) error {
	name, w := c.name, c.world
	f := d.state(name)
	draft, err := d.draft(ctx, s, name, c.exceptions)
	if err != nil {
		return err
	}
	placed, refused := draft.spreadOver(&w)
	v := rolloutdb.Revision{Fleet: name, Digest: draft.digests.Content, Asks: draft.digests.Asks, Commit: cmp.Or(s.Commits[fleetfile.Path(name)], s.Commit), Head: s.Commit, Source: draft.source, Sites: placed}
	if draft.src != nil {
		file := draft.src.file
		v.App, v.Version, v.Waves = file.Application.ID, file.Application.Version, len(file.Strategy.Waves)
	}
	anew, err := d.anew(ctx, draft, name, last)
	if err != nil {
		return err
	}
	if refused == nil && (anew || last.State == rollout.Refused) {
		refused = draft.emptyWaves(placed)
		if other := d.sameID(name, draft); refused == nil && other != "" {
			refused = within(fleetfile.Path(name), v1rc3.Problems{{Path: "metadata.id", Message: fmt.Sprintf("fleet deployment %s has this id, too: their deployments at a site would have one id; give this one a UUID of its own", other)}})
		}
	}
	if refused != nil {
		v.Refused = strings.ReplaceAll(refused.Error(), "\n", "; ")
	}
	switch {
	case anew:
		d.joins = true
		if _, err := d.o.Store.Begin(ctx, v); err != nil {
			return err
		}
		f.stale = true
	case last.State == rollout.Refused && refused == nil:
		d.joins = true
		if err := d.o.Store.Accept(ctx, v, last.Revision); err != nil {
			return err
		}
		f.stale = true
	case last.State == rollout.Refused:
		if last.Reason != v.Refused {
			if err := d.o.Store.Refuse(ctx, name, last.Revision, v.Refused); err != nil {
				return err
			}
		}
		if err := d.leave(ctx, name, f, w); err != nil {
			return err
		}
	case refused != nil:
		// What was accepted stays so, for the sites that have it. Sites that no longer are, or groups that are gone, are no
		// reason to remove anything.
		if last.Problem != v.Refused {
			d.log.WarnContext(ctx, "the sites of a fleet deployment cannot be found anew", "fleet", name, "err", refused)
			if err := d.o.Store.SetProblem(ctx, name, last.Revision, v.Refused); err != nil {
				return err
			}
		}
		if err := d.leave(ctx, name, f, w); err != nil {
			return err
		}
	default:
		if err := d.restate(ctx, draft, v, last); err != nil {
			return err
		}
		if err := d.join(ctx, name, f, last, placed); err != nil {
			return err
		}
	}
	if err := d.readMembers(ctx, name, f); err != nil {
		return err
	}
	return d.conflicts(ctx, s, name, f)
}

// anew reports whether files make a revision: they ask for something else than the latest one, or say the same in other words after that
// was aborted, or its fleet deployment was removed.
func (d *Driver) anew(ctx context.Context, n *draft, name protocol.DeploymentName, last *rollout.Rollout) (bool, error) {
	if last == nil || last.Asks != n.digests.Asks || last.Reason == rollout.RemovedReason {
		return true, nil
	}
	if last.State != rollout.Aborted || n.recorded {
		return false, nil
	}
	had, _, err := d.o.Store.Source(ctx, name, last.Revision)
	if err != nil {
		return false, err
	}
	n.recorded = bytes.Equal(had, n.source)
	return !n.recorded, nil
}

// restate records how the latest revision spreads, where its files say that anew without asking for anything else.
func (d *Driver) restate(ctx context.Context, n *draft, v rolloutdb.Revision, last *rollout.Rollout) error {
	if last.Problem != "" {
		if err := d.o.Store.SetProblem(ctx, v.Fleet, last.Revision, ""); err != nil {
			return err
		}
	}
	if n.recorded {
		return nil
	}
	changed, err := d.o.Store.Restate(ctx, v, last.Revision)
	if err != nil {
		return err
	}
	if n.recorded = true; changed {
		d.joins = true
		d.fleets[v.Fleet].stale = true
		maps.DeleteFunc(d.sources, func(k revisionKey, _ *source) bool { return k.fleet == v.Fleet && k.revision == last.Revision })
	}
	return nil
}

// sameID returns another fleet deployment with the id of a draft; "": there is none.
func (d *Driver) sameID(name protocol.DeploymentName, n *draft) protocol.DeploymentName {
	for other, o := range d.drafts {
		if other != name && o.src != nil && n.src != nil && o.src.file.ID == n.src.file.ID && n.src.file.ID != "" && d.fleets[other] != nil && len(d.fleets[other].members) > 0 {
			return other
		}
	}
	return ""
}

// join takes over sites that are meant since, or no longer.
func (d *Driver) join(ctx context.Context, name protocol.DeploymentName, f *fleetState, last *rollout.Rollout, placed []rollout.Placed) error {
	if err := d.readMembers(ctx, name, f); err != nil {
		return err
	}
	known := map[protocol.SiteID]bool{}
	for _, m := range f.members {
		if m.State != rollout.SiteLeft {
			known[m.Site] = true
		}
	}
	if len(known) == len(placed) && !slices.ContainsFunc(placed, func(p rollout.Placed) bool { return !known[p.Site] }) {
		return nil
	}
	completed, err := d.o.Store.Completed(ctx, name)
	if err != nil {
		return err
	}
	lastWave := 0
	for _, p := range placed {
		lastWave = max(lastWave, p.Wave)
	}
	for i := range placed {
		if !known[placed[i].Site] {
			placed[i].Wave = lastWave
		}
	}
	open := last.State.Open()
	if completed > 0 && open {
		// They get what all others had before; the open rollout reaches them in its last wave.
		d.log.InfoContext(ctx, "sites join a fleet deployment while it spreads", "fleet", name, "revision", completed)
	}
	j := rolloutdb.Join{Sites: placed, Completed: completed}
	if open {
		j.Open, j.Digest = last.Revision, last.Digest
	}
	changed, err := d.o.Store.Join(ctx, name, j)
	f.stale = f.stale || changed
	return err
}

// leave takes out the sites whose removal was asked for, where nothing else is known.
func (d *Driver) leave(ctx context.Context, name protocol.DeploymentName, f *fleetState, w world) error {
	if err := d.readMembers(ctx, name, f); err != nil {
		return err
	}
	var stay []rollout.Placed
	left := false
	for _, m := range f.members {
		if _, there := slices.BinarySearch(w.sites, m.Site); there && m.State != rollout.SiteLeft {
			stay = append(stay, rollout.Placed{Site: m.Site})
		} else if m.State != rollout.SiteLeft {
			left = true
		}
	}
	if !left {
		return nil
	}
	changed, err := d.o.Store.Join(ctx, name, rolloutdb.Join{Sites: stay})
	f.stale = f.stale || changed
	return err
}

// conflicts records at which sites a deployment of their own has the name of a fleet deployment.
func (d *Driver) conflicts(ctx context.Context, s *desired.Snapshot, name protocol.DeploymentName, f *fleetState) error {
	own := []protocol.SiteID{}
	changed := false
	for _, m := range f.members {
		p := intent.Path(m.Site, name)
		_, there := s.Files[p]
		_, skipped := s.Skipped[p]
		there = (there || skipped) && m.State != rollout.SiteLeft
		if there {
			own = append(own, m.Site)
		}
		changed = changed || there != (m.State == rollout.SiteConflict)
	}
	if !changed {
		return nil
	}
	if err := d.o.Store.Conflicts(ctx, name, own); err != nil {
		return err
	}
	f.stale = true
	return d.readMembers(ctx, name, f)
}
