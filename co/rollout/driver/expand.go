package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"

	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// expand adds to a snapshot the files of the sites that are admitted. The snapshot that it returns shares no map with s.
func (d *Driver) expand(ctx context.Context, s desired.Snapshot) (desired.Snapshot, error) {
	d.expanded = map[string]bool{}
	if len(d.fleets) == 0 {
		return s, nil
	}
	s.Files, s.Blobs, s.Commits, s.Skipped = maps.Clone(s.Files), maps.Clone(s.Blobs), maps.Clone(s.Commits), maps.Clone(s.Skipped)
	if s.Skipped == nil {
		s.Skipped = map[string]string{}
	}
	s.Origins = map[string]string{}
	for name, f := range d.fleets {
		used := map[revisionKey]bool{}
		for i := range f.members {
			m := &f.members[i]
			p := intent.Path(m.Site, name)
			_, own := s.Files[p]
			if _, skipped := s.Skipped[p]; (own || skipped || m.State == rollout.SiteConflict) && m.Revision == 0 {
				continue // what the site has of its own stays; where it came later, what it has of the fleet
			}
			s.Origins[p] = fleetfile.Path(name)
			if m.Revision == 0 {
				continue
			}
			k := revisionKey{name, m.Revision, m.Digest}
			used[k] = true
			if err := d.add(ctx, &s, k, f, m); err != nil {
				return s, err
			}
		}
		maps.DeleteFunc(d.sources, func(k revisionKey, _ *source) bool { return k.fleet == name && !used[k] })
	}
	return s, nil
}

// add adds the file of a member.
func (d *Driver) add(ctx context.Context, s *desired.Snapshot, k revisionKey, f *fleetState, m *rollout.Member) error {
	src, err := d.source(ctx, k)
	if err != nil {
		return err // nothing is known then, and nothing may be removed
	}
	groups := strings.Join(m.Groups, ",")
	e, ok := f.files[m.Site]
	if !ok || e.of != k || e.groups != groups {
		e = expansionOf(src, m)
		e.of, e.groups = k, groups
		f.files[m.Site] = e
	}
	p := intent.Path(m.Site, k.fleet)
	d.expanded[p] = true
	if e.problem != "" {
		delete(s.Files, p)
		s.Skipped[p] = e.problem
		return nil
	}
	delete(s.Skipped, p)
	s.Files[p], s.Blobs[p], s.Commits[p] = e.content, e.blob, src.commit
	return nil
}

func expansionOf(src *source, m *rollout.Member) (e expansion) {
	_, content, err := documentOf(src, m)
	if err != nil {
		e.problem = strings.ReplaceAll(err.Error(), "\n", "; ")
		return e
	}
	e.content = content
	sum := sha256.Sum256(e.content)
	e.blob = hex.EncodeToString(sum[:])
	return e
}

// documentOf returns the deployment of a site, and its file.
func documentOf(src *source, m *rollout.Member) (*v1rc3.Deployment, []byte, error) {
	doc, err := src.file.Expand(src.app, rollout.Site{ID: m.Site, Groups: m.Groups}, src.exceptions[m.Site])
	if err != nil {
		return nil, nil, err
	}
	content, err := doc.Marshal()
	return doc, content, err
}

// sourceOf is source for callers that do not hold the lock.
func (d *Driver) sourceOf(ctx context.Context, k revisionKey) (*source, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.source(ctx, k)
}

// source returns a revision that can be expanded.
func (d *Driver) source(ctx context.Context, k revisionKey) (*source, error) {
	if src := d.sources[k]; src != nil {
		return src, nil
	}
	raw, commit, err := d.o.Store.Source(ctx, k.fleet, k.revision)
	if err != nil {
		return nil, err
	}
	files, err := fleetfile.Decode(raw)
	if err != nil {
		return nil, err
	}
	src, err := parse(k.fleet, files)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "stored revision %d of fleet deployment %s: %w", k.revision, k.fleet, err)
	}
	src.commit = commit
	d.sources[k] = src
	return src, nil
}
