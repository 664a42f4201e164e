package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/rollout/explain"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/internal/misspelt"
	"github.com/colonyfleet/colony/protocol"
)

type explainInput struct {
	Site string `path:"site" doc:"the site"`
	Name string `path:"name" doc:"the deployment, by its name at the site, or the fleet deployment"`
}

func (r *routes) explain(ctx context.Context, in *explainInput) (*form.Reply[explain.Explanation], error) {
	input, err := r.explained(ctx, in)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[explain.Explanation]{Body: explain.Of(input)}, nil
}

// explained reads what an explanation is made of.
func (r *routes) explained(ctx context.Context, asked *explainInput) (in explain.Input, err error) {
	if in.Site, err = protocol.ParseSiteID(asked.Site); err != nil {
		return in, problem.At("path.site", err)
	}
	if in.Name, err = protocol.ParseDeploymentName(asked.Name); err != nil {
		return in, problem.At("path.name", err)
	}
	in.Partial = !access.SitesOf(ctx).All()
	site, err := r.o.Sites.Site(ctx, in.Site)
	if protocol.KindOf(err) == protocol.NotFound {
		err = r.noSite(ctx, in.Site)
	}
	if err != nil {
		return in, err
	}
	in.SiteOnline = site.Online
	head, err := r.o.Read(ctx)
	if err != nil {
		return in, err
	}
	if own := intent.Path(in.Site, in.Name); head.Files[own] != nil {
		in.Own = head.Commits[own]
	}
	if in.Fleet, err = r.fleetOf(ctx, &head, in.Site, in.Name); err != nil {
		return in, err
	}
	d, err := r.o.Sites.Deployment(ctx, in.Site, in.Name)
	switch {
	case err == nil:
		in.Deployment = &d
	case protocol.KindOf(err) != protocol.NotFound:
		return in, err
	case in.Own == "" && in.Fleet == nil:
		return in, r.noDeployment(ctx, &head, in.Site, in.Name)
	}
	in.Nodes, err = r.nodesOf(ctx, in.Site)
	return in, err
}

// fleetOf returns the fleet deployment of a name, and where a site stands in it; nil: there is none.
func (r *routes) fleetOf(ctx context.Context, head *Head, site protocol.SiteID, name protocol.DeploymentName) (*explain.Fleet, error) {
	member, err := r.o.Store.Member(ctx, name, site)
	if err != nil {
		return nil, err
	}
	file := fleetfile.Path(name)
	raw, there := head.Files[file]
	if !there {
		return nil, nil // what is left of one that was removed is in the record of the deployment
	}
	f := &explain.Fleet{Commit: head.Commits[file], Member: member}
	if f.File, err = fleetfile.Parse(name, raw); err != nil {
		f.File, f.Fault = nil, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	path := fleetfile.ExceptionPath(name, site)
	if raw, there := head.Files[path]; there {
		f.ExceptionCommit = head.Commits[path]
		if f.Exception, err = fleetfile.ParseException(site, raw); err != nil {
			f.Exception, f.Fault = nil, cmp.Or(f.Fault, path+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	latest, err := r.o.Store.Rollout(ctx, name)
	if err == nil {
		f.Rollout = &latest
	} else if protocol.KindOf(err) != protocol.NotFound {
		return nil, err
	}
	f.Groups, err = r.o.Groups(ctx)
	return f, err
}

// nodesOf returns all nodes of a site.
func (r *routes) nodesOf(ctx context.Context, site protocol.SiteID) (all []fleet.Node, err error) {
	page := fleet.Page{Limit: fleet.MaxLimit}
	for {
		list, next, err := r.o.Sites.Nodes(ctx, fleet.NodeFilter{Site: site}, page)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
		if page.Cursor = next; next == "" {
			return all, nil
		}
	}
}

// noSite is the error of a site that does not exist, with the one that was likely meant, of those that the request may be about.
func (r *routes) noSite(ctx context.Context, id protocol.SiteID) error {
	list, _, err := r.o.Sites.SitesLike(ctx, fleet.SiteFilter{Within: access.SitesOf(ctx)}, fleet.Page{Limit: fleet.MaxLimit})
	if err != nil {
		return err
	}
	var names []string
	for i := range list {
		names = append(names, string(list[i].ID))
	}
	if meant := misspelt.Nearest(string(id), names); meant != "" {
		return protocol.Errorf(protocol.NotFound, "no site %q: did you mean %s?", id, meant)
	}
	return within.Missing(ctx, id, r.o.Sites.SitesLike)
}

// noDeployment is the error of a deployment that neither the site nor the fleet has.
func (r *routes) noDeployment(ctx context.Context, head *Head, site protocol.SiteID, name protocol.DeploymentName) error {
	list, _, err := r.o.Sites.Deployments(ctx, fleet.DeploymentFilter{Site: site}, fleet.Page{Limit: fleet.MaxLimit})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range list {
		known[string(list[i].Name)] = true
	}
	if access.SitesOf(ctx).All() {
		for p := range head.Files {
			if f, of, ok := fleetfile.Of(p); ok && of == "" {
				known[f] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(known))
	if meant := misspelt.Nearest(string(name), names); meant != "" {
		return protocol.Errorf(protocol.NotFound, "no deployment %q at site %s, and no fleet deployment of that name: did you mean %s?", name, site, meant)
	}
	there := "nothing"
	if len(names) > 0 {
		there = strings.Join(names[:min(len(names), 10)], ", ")
	}
	if len(names) > 10 {
		there += fmt.Sprintf(" and %d more", len(names)-10)
	}
	return protocol.Errorf(protocol.NotFound, "no deployment %q at site %s, and no fleet deployment of that name; there is %s", name, site, there)
}
