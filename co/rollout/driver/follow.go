package driver

import (
	"cmp"
	"context"
	"errors"
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

// A source is a revision that can be expanded.
type source struct {
	fleetfile.Files
	commit     string
	file       *fleetfile.File
	exceptions map[protocol.SiteID]*fleetfile.Exception
	app        *v1rc3.Application
}

func parse(name protocol.DeploymentName, f fleetfile.Files) (s *source, err error) {
	s = &source{Files: f, exceptions: map[protocol.SiteID]*fleetfile.Exception{}}
	if s.file, err = fleetfile.Parse(name, []byte(f.File)); err != nil {
		return nil, within(fleetfile.Path(name), err)
	}
	for site, text := range f.Exceptions {
		if s.exceptions[site], err = fleetfile.ParseException(site, []byte(text)); err != nil {
			return nil, within(fleetfile.ExceptionPath(name, site), err)
		}
	}
	if f.App == "" {
		return s, nil
	}
	if s.app, err = v1rc3.ParseApplication([]byte(f.App)); err != nil {
		return nil, within("the application", err)
	}
	return s, nil
}

// within says in which file the problems of an error are.
func within(file string, err error) error { return fmt.Errorf("%s: %w", file, err) }

// A draft is what the files of a fleet deployment say now.
type draft struct {
	key    string // of the files
	files  fleetfile.Files
	src    *source
	err    error // why it is refused, whatever the sites are
	digest string
	source []byte
	// placed and refused are what spread returned for a world.
	world   *world
	placed  []rollout.Placed
	refused error
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
	v := rolloutdb.Revision{Fleet: name, Digest: draft.digest, Commit: cmp.Or(s.Commits[fleetfile.Path(name)], s.Commit), Head: s.Commit, Source: draft.source, Sites: placed}
	if draft.src != nil {
		file := draft.src.file
		v.App, v.Version, v.Waves = file.Application.ID, file.Application.Version, len(file.Strategy.Waves)
	}
	begins := last == nil || last.Digest != v.Digest || last.State == rollout.Refused || last.Reason == rollout.RemovedReason
	if refused == nil && begins {
		refused = draft.emptyWaves(placed)
		if other := d.sameID(name, draft); refused == nil && other != "" {
			refused = within(fleetfile.Path(name), v1rc3.Problems{{Path: "metadata.id", Message: fmt.Sprintf("fleet deployment %s has this id, too: their deployments at a site would have one id; give this one a UUID of its own", other)}})
		}
	}
	if refused != nil {
		v.Refused = strings.ReplaceAll(refused.Error(), "\n", "; ")
	}
	switch {
	case last == nil || last.Digest != v.Digest || last.Reason == rollout.RemovedReason:
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
		d.log.WarnContext(ctx, "the sites of a fleet deployment cannot be found anew", "fleet", name, "err", refused)
		if err := d.leave(ctx, name, f, w); err != nil {
			return err
		}
	default:
		if err := d.join(ctx, name, f, last, placed); err != nil {
			return err
		}
	}
	if err := d.readMembers(ctx, name, f); err != nil {
		return err
	}
	return d.conflicts(ctx, s, name, f)
}

// draft returns what the files of a fleet deployment say. The error is one of a part that is away.
func (d *Driver) draft(ctx context.Context, s *desired.Snapshot, name protocol.DeploymentName, exceptions []string) (*draft, error) {
	file := fleetfile.Path(name)
	key := s.Blobs[file] + s.Skipped[file]
	for _, p := range exceptions {
		key += "\n" + p + " " + s.Blobs[p] + s.Skipped[p]
	}
	if known := d.drafts[name]; known != nil && known.key == key && known.err == nil {
		return known, nil
	}
	next := &draft{key: key, files: fleetfile.Files{File: string(s.Files[file]), Exceptions: map[protocol.SiteID]string{}}}
	for _, p := range append([]string{file}, exceptions...) {
		if why := s.Skipped[p]; why != "" {
			next.err = cmp.Or(next.err, fmt.Errorf("%s: %s", p, why))
		}
	}
	for _, p := range exceptions {
		_, site, _ := fleetfile.Of(p)
		next.files.Exceptions[protocol.SiteID(site)] = string(s.Files[p])
	}
	if next.err == nil {
		var err error
		if next.err, err = d.read(ctx, name, next); err != nil {
			return nil, err
		}
	}
	var err error
	if next.source, next.digest, err = next.files.Encode(); err != nil {
		return nil, err
	}
	d.drafts[name] = next
	return next, nil
}

// read parses the files of a draft. It returns why they are refused, or the error of a part that is away.
func (d *Driver) read(ctx context.Context, name protocol.DeploymentName, next *draft) (refused, err error) {
	src, refused := parse(name, next.files)
	if refused != nil {
		return refused, nil
	}
	app := src.file.Application
	raw, err := d.o.App(ctx, app.ID, app.Version)
	switch {
	case protocol.KindOf(err) == protocol.NotFound:
		return within(fleetfile.Path(name), v1rc3.Problems{{Path: "spec.application", Message: fmt.Sprintf("the catalog has no version %s of application %s: import it", app.Version, app.ID)}}), nil
	case err != nil:
		return nil, err
	}
	if err := d.gateFaults(src.file); err != nil {
		return within(fleetfile.Path(name), err), nil
	}
	next.files.App = string(raw)
	if next.src, refused = parse(name, next.files); refused != nil {
		return refused, nil
	}
	return nil, nil
}

// shownProblems bounds the problems of sites that are named.
const shownProblems = 5

// spreadOver is spread, which is not done twice for the same sites and groups.
func (n *draft) spreadOver(w *world) ([]rollout.Placed, error) {
	if n.world == nil || !n.world.equal(*w) {
		n.placed, n.refused = n.spread(*w)
		n.world = w
	}
	return slices.Clone(n.placed), n.refused
}

// spread returns the sites of a draft with their waves, and why it is refused.
func (n *draft) spread(w world) ([]rollout.Placed, error) {
	if n.err != nil {
		return nil, n.err
	}
	file := n.src.file
	sites, err := file.Sites(w.sites, w.groups)
	if err != nil {
		return nil, within(fleetfile.Path(file.Name), err)
	}
	var bad []error
	failed := 0
	for _, s := range sites {
		if _, err := file.Expand(n.src.app, s, n.src.exceptions[s.ID]); err != nil {
			if failed++; failed <= shownProblems {
				bad = append(bad, err)
			}
		}
	}
	for _, site := range slices.Sorted(maps.Keys(n.src.exceptions)) { // also those of sites that may come
		if slices.ContainsFunc(sites, func(s rollout.Site) bool { return s.ID == site }) {
			continue
		}
		if _, err := file.Expand(n.src.app, rollout.Site{ID: site}, n.src.exceptions[site]); err != nil {
			if failed++; failed <= shownProblems {
				bad = append(bad, err)
			}
		}
	}
	if failed > shownProblems {
		bad = append(bad, fmt.Errorf("and at %d more sites", failed-shownProblems))
	}
	if failed > 0 {
		return nil, errors.Join(bad...)
	}
	waves := rollout.Assign(file.ID, file.Plan().Waves, sites)
	placed := make([]rollout.Placed, len(sites))
	for i, s := range sites {
		placed[i] = rollout.Placed{Site: s.ID, Groups: s.Groups, Wave: waves[s.ID], Rank: rollout.Rank(file.ID, s.ID)}
	}
	return placed, nil
}

// emptyWaves returns why a revision does not begin of which a wave has no site.
func (n *draft) emptyWaves(placed []rollout.Placed) error {
	sites := make([]rollout.Site, len(placed))
	for i, p := range placed {
		sites[i] = rollout.Site{ID: p.Site, Groups: p.Groups}
	}
	if err := n.src.file.EmptyWaves(sites); err != nil {
		return within(fleetfile.Path(n.src.file.Name), err)
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
	changed, err := d.o.Store.Join(ctx, name, placed, completed, open)
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
	changed, err := d.o.Store.Join(ctx, name, stay, 0, false)
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
