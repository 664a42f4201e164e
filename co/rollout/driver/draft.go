package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

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
	key     string // of the files
	files   fleetfile.Files
	src     *source
	err     error // why it is refused, independently of the sites
	digests fleetfile.Digests
	source  []byte
	// recorded says that the record has the source.
	recorded bool
	// placed and refused are what spread returned for a world.
	world   *world
	placed  []rollout.Placed
	refused error
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
	if next.source, err = next.files.Encode(); err != nil {
		return nil, err
	}
	said := next.src
	if said == nil {
		said = &source{} // they cannot be read
	}
	if next.digests, err = next.files.Digests(said.file, said.exceptions); err != nil {
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
