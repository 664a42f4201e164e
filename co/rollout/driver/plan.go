package driver

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/co/rollout/preview"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// mostNodes bounds the nodes that a plan looks at, and sitesAtOnce the sites of one query.
	mostNodes   = 20_000
	sitesAtOnce = 100
)

// Plan says what the files of a fleet deployment would do at which sites, without doing it. The error says why they would be
// refused, or that a part is away.
func (d *Driver) Plan(ctx context.Context, name protocol.DeploymentName, f fleetfile.Files) (rollout.Outline, error) {
	next := &draft{files: f}
	var err error
	if next.err, err = d.read(ctx, name, next); err != nil {
		return rollout.Outline{}, err
	}
	w, err := d.readWorld(ctx)
	if err != nil {
		return rollout.Outline{}, err
	}
	placed, err := next.spread(w)
	if err == nil {
		err = next.emptyWaves(placed)
	}
	if err != nil {
		return rollout.Outline{}, protocol.Errorf(protocol.Invalid, "%w", err)
	}
	s, err := d.o.Read(ctx)
	if err != nil {
		return rollout.Outline{}, err
	}
	in := preview.Input{Fleet: name, Commit: s.Commit, Limits: d.o.Limits, Notes: next.src.file.Notes(w.sites)}
	if in.Source, err = next.files.Encode(); err != nil {
		return rollout.Outline{}, err
	}
	for _, wave := range next.src.file.Strategy.Waves {
		in.Waves = append(in.Waves, rollout.OutlineWave{Percent: wave.Percent, Group: wave.Group, Bake: wave.Bake, Approval: wave.Approval})
	}
	if len(in.Waves) == 0 {
		in.Waves = append(in.Waves, rollout.OutlineWave{Percent: 100})
	}
	if in.Sites, err = d.previewed(ctx, name, &s, next, placed); err != nil {
		return rollout.Outline{}, err
	}
	if err := d.facts(ctx, name, in.Sites); err != nil {
		return rollout.Outline{}, err
	}
	return preview.Of(in), nil
}

// previewed returns the sites that files concern, without facts: those that they do not mean any more first.
func (d *Driver) previewed(ctx context.Context, name protocol.DeploymentName, s *desired.Snapshot, next *draft, placed []rollout.Placed) ([]preview.Site, error) {
	members, err := d.o.Store.Members(ctx, name)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(placed, func(a, b rollout.Placed) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Site, b.Site))
	})
	had := map[protocol.SiteID]*preview.Version{}
	for i := range members {
		m := &members[i]
		if m.Revision == 0 {
			continue
		}
		src, err := d.sourceOf(ctx, revisionKey{name, m.Revision, m.Digest})
		if err != nil {
			return nil, err
		}
		had[m.Site] = versionOf(src, m)
	}
	var meant, left []preview.Site
	for _, p := range placed {
		_, own := s.Files[intent.Path(p.Site, name)]
		meant = append(meant, preview.Site{
			ID: p.Site, Wave: p.Wave, Own: own, Exception: next.src.exceptions[p.Site] != nil,
			Before: had[p.Site], After: versionOf(next.src, &rollout.Member{Site: p.Site, Groups: p.Groups}),
		})
		delete(had, p.Site)
	}
	for _, site := range slices.Sorted(maps.Keys(had)) {
		left = append(left, preview.Site{ID: site, Wave: -1, Before: had[site]})
	}
	return append(left, meant...), nil
}

// facts adds what is known of sites: the nodes of as many as are named.
func (d *Driver) facts(ctx context.Context, name protocol.DeploymentName, sites []preview.Site) error {
	nodes := 0
	for from := 0; from < len(sites); from += sitesAtOnce {
		chunk := sites[from:min(from+sitesAtOnce, len(sites))]
		named := nodes < mostNodes && from < rollout.MaxOutlineSites
		if !named && chunk[0].After != nil {
			return nil
		}
		ids := make([]protocol.SiteID, len(chunk))
		for i := range chunk {
			ids[i] = chunk[i].ID
		}
		known, err := d.o.Facts(ctx, name, ids, named)
		if err != nil {
			return err
		}
		for i := range chunk {
			chunk[i].Facts = known[chunk[i].ID]
			nodes += len(chunk[i].Facts.Nodes)
		}
	}
	return nil
}

// versionOf returns what a revision is at a site.
func versionOf(src *source, m *rollout.Member) *preview.Version {
	v := &preview.Version{App: src.file.Application.Version}
	doc, content, err := documentOf(src, m)
	if err == nil {
		v.Content = content
		v.Entry, err = compiler.Entry(doc)
	}
	if err != nil {
		v.Fault = err.Error()
	}
	return v
}

// Needs returns a deployment that names all archives of a revision, as the record has it.
func Needs(name protocol.DeploymentName, raw []byte) ([]byte, error) {
	files, err := fleetfile.Decode(raw)
	if err != nil {
		return nil, err
	}
	src, err := parse(name, files)
	if err != nil {
		return nil, err
	}
	d := &v1rc3.Deployment{
		ID: src.file.IDAt("fleet"), Metadata: v1rc3.DeploymentMetadata{Name: string(name), Namespace: "colony", DeviceID: "fleet/*"},
		Spec: v1rc3.DeploymentSpec{ApplicationID: src.app.ID},
	}
	profile := src.file.Application.Profile
	for i := range src.app.Profiles {
		if p := &src.app.Profiles[i]; profile == "" || p.ID == profile {
			d.Spec.Profile.Type = v1rc3.Compose
			d.Spec.Profile.Components = append(d.Spec.Profile.Components, p.Components...)
		}
	}
	return d.Marshal()
}
