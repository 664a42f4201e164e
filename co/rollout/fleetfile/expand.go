package fleetfile

import (
	"crypto/sha1" //nolint:gosec // of UUIDs of version 5, which is no security
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// Plan returns how the file says that a revision spreads.
func (f *File) Plan() rollout.Plan {
	p := rollout.Plan{SitesPerMinute: f.Strategy.SitesPerMinute, AtOnce: f.Strategy.AtOnce}
	if f.Strategy.MaxFailed != "" {
		p.MaxFailed, p.MaxFailedPercent, _ = maxFailed(f.Strategy.MaxFailed)
	}
	p.Deadline, _ = time.ParseDuration(f.Strategy.Deadline) // as below
	for _, g := range f.Strategy.Gates {
		p.Gates = append(p.Gates, rollout.Gate(g))
	}
	for _, w := range f.Strategy.Waves {
		bake, _ := time.ParseDuration(w.Bake) // Parse has seen to it
		p.Waves = append(p.Waves, rollout.Wave{Percent: w.Percent, Group: w.Group, Bake: bake, Approval: w.Approval})
	}
	return p
}

// Sites returns those of all sites that the file names, with the groups that it names of each, in the sequence of the
// file. groups has the sites of each group by its name; the error is of type v1rc3.Problems and says which group does
// not exist, or that there are no targets.
func (f *File) Sites(all []protocol.SiteID, groups map[string]siteset.Set) ([]rollout.Site, error) {
	named := slices.Clone(f.Targets.Groups)
	for _, w := range f.Strategy.Waves {
		if w.Group != "" {
			named = append(named, w.Group)
		}
	}
	for _, g := range f.Groups {
		named = append(named, g.Group)
	}
	var problems v1rc3.Problems
	var known []string
	for _, g := range named {
		if _, ok := groups[g]; !ok {
			problems = append(problems, v1rc3.Problem{Path: "spec", Message: fmt.Sprintf("there is no group of sites %q: colony group list shows them", g)})
		}
		if !slices.Contains(known, g) {
			known = append(known, g)
		}
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	to, except := entries(f.Targets.Sites), entries(f.Targets.Except)
	var out []rollout.Site
	for _, id := range all {
		s := rollout.Site{ID: id}
		for _, g := range known {
			if groups[g].Has(id) {
				s.Groups = append(s.Groups, g)
			}
		}
		meant := to.has(id) || slices.ContainsFunc(f.Targets.Groups, func(g string) bool { return slices.Contains(s.Groups, g) })
		if meant && !except.has(id) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, v1rc3.Problems{{Path: "spec.targets", Message: "no site of the fleet is meant: colony site list shows their names"}}
	}
	return out, nil
}

// Notes say what of the targets means no site that there is: it may come, or its name is misspelt.
func (f *File) Notes(all []protocol.SiteID) (notes []string) {
	for _, part := range []struct {
		key  string
		list []string
	}{{"sites", f.Targets.Sites}, {"except", f.Targets.Except}} {
		for _, e := range part.list {
			if one := (entries{e}); !slices.ContainsFunc(all, one.has) {
				notes = append(notes, fmt.Sprintf("spec.targets.%s: no site is %s: colony site list shows their names", part.key, e))
			}
		}
	}
	return notes
}

// EmptyWaves returns which waves are those of groups that none of sites is in; nil: there are none. sites are those that Sites returned.
func (f *File) EmptyWaves(sites []rollout.Site) error {
	var problems v1rc3.Problems
	for i, w := range f.Strategy.Waves {
		if w.Group != "" && !slices.ContainsFunc(sites, func(s rollout.Site) bool { return slices.Contains(s.Groups, w.Group) }) {
			problems = append(problems, v1rc3.Problem{Path: fmt.Sprintf("spec.strategy.waves[%d].group", i), Message: fmt.Sprintf("none of the targets is in the group %q: no site would try the revision in this wave", w.Group)})
		}
	}
	return problems.Err()
}

// entries are names of sites as a file has them. Without any they are no site, where a siteset.Set is all.
type entries []string

func (e entries) has(site protocol.SiteID) bool {
	if len(e) == 0 {
		return false
	}
	set, err := siteset.Parse(e)
	return err == nil && set.Has(site)
}

// IDAt returns the id of the deployment of a site: a UUID of version 5 (RFC 9562, section 5.5) of the name of the site in
// the namespace that is the id of the fleet deployment.
func (f *File) IDAt(site protocol.SiteID) string {
	space, _ := hex.DecodeString(strings.ReplaceAll(f.ID, "-", "")) // Parse has seen to it
	sum := sha1.Sum(append(space, site...))                         //nolint:gosec // as above
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x50, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// NewID returns the id of a fleet deployment that is made on top of a commit of the deployments repo: a plan of it has the waves that it gets.
func NewID(commit string, name protocol.DeploymentName) string {
	nowhere := File{ID: "00000000-0000-0000-0000-000000000000"}
	return nowhere.IDAt(protocol.SiteID(commit + "/" + string(name)))
}

// An EffectiveValue is what a parameter has at a site, and where that comes from.
type EffectiveValue struct {
	Name  string `json:"name"`
	Value any    `json:"value"` // as the file has it
	From  string `json:"from" doc:"fleet, group NAME, or exception"`
}

// Effective returns the values of the parameters at a site by name: those of the fleet, over them those of its groups, and over
// them those of its exception, which may be nil.
func (f *File) Effective(site rollout.Site, e *Exception) []EffectiveValue {
	found := map[string]EffectiveValue{}
	add := func(values Values, from string) {
		for name, v := range values {
			found[name] = EffectiveValue{name, v, from}
		}
	}
	add(f.Parameters, "fleet")
	for _, g := range f.Groups {
		if slices.Contains(site.Groups, g.Group) {
			add(g.Parameters, "group "+g.Group)
		}
	}
	if e != nil {
		add(e.Parameters, "exception")
	}
	list := make([]EffectiveValue, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[name])
	}
	return list
}

// Values returns the effective values at a site by name.
func (f *File) Values(site rollout.Site, e *Exception) map[string]any {
	out := map[string]any{}
	for _, v := range f.Effective(site, e) {
		out[v.Name] = v.Value
	}
	return out
}

// Match returns which entries of the targets mean a site, and which leave it out, each as key: entry.
func (f *File) Match(site protocol.SiteID, groups map[string]siteset.Set) (by, except []string) {
	for _, e := range f.Targets.Sites {
		if (entries{e}).has(site) {
			by = append(by, "sites: "+e)
		}
	}
	for _, g := range f.Targets.Groups {
		if set, ok := groups[g]; ok && set.Has(site) {
			by = append(by, "groups: "+g)
		}
	}
	for _, e := range f.Targets.Except {
		if (entries{e}).has(site) {
			except = append(except, "except: "+e)
		}
	}
	return by, except
}

// Expand returns the deployment of a site. The error is of kind Invalid, or holds v1rc3.Problems, and names the site.
func (f *File) Expand(app *v1rc3.Application, site rollout.Site, e *Exception) (*v1rc3.Deployment, error) {
	req := intent.Request{Profile: f.Application.Profile, Selector: f.Nodes, Parameters: f.Values(site, e)}
	if f.Replicas > 0 {
		req.Replicas = &f.Replicas
	}
	if p := f.Policy; p != nil {
		backoff, _ := time.ParseDuration(p.Backoff) // Parse has seen to them
		healthy, _ := time.ParseDuration(p.MinHealthy)
		req.Policy = &v1rc3.Policy{Attempts: p.Attempts, Backoff: v1rc3.Duration(backoff), Rollback: p.Rollback, MinHealthy: v1rc3.Duration(healthy), AnyTime: p.AnyTime}
	}
	d, err := intent.Create(app, intent.Target{ID: f.IDAt(site.ID), Site: site.ID, Name: f.Name}, req)
	if err != nil {
		return nil, at(site.ID, err)
	}
	return d, nil
}

// at has each problem name the site.
func at(site protocol.SiteID, err error) error {
	problems, ok := errors.AsType[v1rc3.Problems](err)
	if !ok {
		return fmt.Errorf("site %s: %w", site, err)
	}
	named := make(v1rc3.Problems, len(problems))
	for i, p := range problems {
		p.Message = fmt.Sprintf("at site %s: %s", site, p.Message)
		named[i] = p
	}
	return named
}
