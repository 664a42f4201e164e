package driver

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// Plan says what the files of a fleet deployment would do at which sites, without doing it. The error says why they would be
// refused, or that a part is away.
func (d *Driver) Plan(ctx context.Context, name protocol.DeploymentName, f fleetfile.Files) (rollout.Outline, error) {
	out := rollout.Outline{Fleet: name, Effects: map[rollout.Effect]int{}, Waves: []rollout.OutlineWave{}, Sites: []rollout.OutlineSite{}}
	next := &draft{files: f}
	var err error
	if next.err, err = d.read(ctx, name, next); err != nil {
		return out, err
	}
	w, err := d.readWorld(ctx)
	if err != nil {
		return out, err
	}
	placed, err := next.spread(w)
	if err != nil {
		return out, protocol.Errorf(protocol.Invalid, "%w", err)
	}
	if err := next.emptyWaves(placed); err != nil {
		return out, protocol.Errorf(protocol.Invalid, "%w", err)
	}
	out.Notes = next.src.file.Notes(w.sites)
	members, err := d.o.Store.Members(ctx, name)
	if err != nil {
		return out, err
	}
	s, err := d.o.Read(ctx)
	if err != nil {
		return out, err
	}
	for _, wave := range next.src.file.Strategy.Waves {
		out.Waves = append(out.Waves, rollout.OutlineWave{Percent: wave.Percent, Group: wave.Group, Bake: wave.Bake, Approval: wave.Approval})
	}
	if len(out.Waves) == 0 {
		out.Waves = append(out.Waves, rollout.OutlineWave{Percent: 100})
	}
	slices.SortFunc(placed, func(a, b rollout.Placed) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Site, b.Site))
	})
	had := map[protocol.SiteID]*rollout.Member{}
	for i := range members {
		had[members[i].Site] = &members[i]
	}
	var sites []rollout.OutlineSite
	for _, p := range placed {
		effect := rollout.Conflict
		if _, own := s.Files[intent.Path(p.Site, name)]; !own {
			if effect, err = d.effect(ctx, name, next, p, had[p.Site]); err != nil {
				return out, err
			}
		}
		out.Waves[p.Wave].Sites++
		sites = append(sites, rollout.OutlineSite{Site: p.Site, Wave: p.Wave, Effect: effect})
		delete(had, p.Site)
	}
	for i := range members {
		if m := &members[i]; had[m.Site] != nil && m.Revision > 0 {
			sites = append(sites, rollout.OutlineSite{Site: m.Site, Wave: -1, Effect: rollout.Remove})
		}
	}
	for _, v := range sites {
		out.Effects[v.Effect]++
	}
	out.Sites = append(out.Sites, sites[:min(len(sites), rollout.MaxOutlineSites)]...)
	out.More = len(sites) - len(out.Sites)
	return out, nil
}

// effect compares what a site would have with what it may have now.
func (d *Driver) effect(ctx context.Context, name protocol.DeploymentName, next *draft, p rollout.Placed, now *rollout.Member) (rollout.Effect, error) {
	if now == nil || now.Revision == 0 {
		return rollout.Place, nil
	}
	src, err := d.sourceOf(ctx, revisionKey{name, now.Revision, now.Digest})
	if err != nil {
		return "", err
	}
	before := expansionOf(src, now)
	after := expansionOf(next.src, &rollout.Member{Site: p.Site, Groups: p.Groups})
	if before.problem == "" && bytes.Equal(before.content, after.content) {
		return rollout.Same, nil
	}
	return rollout.Update, nil
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
