package sitedata

import (
	"context"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

// Exec says whether programs may be run in containers of a site.
type Exec struct {
	Allowed bool   `json:"allowed" doc:"principals with sessions:open may run programs in its containers"`
	Problem string `json:"problem,omitempty" doc:"why the site's file is not followed: then what it said last is in force"`
}

type putExecInput struct {
	form.SitePath
	Body struct {
		Allowed bool `json:"allowed" doc:"whether programs may be run in its containers"`
	}
}

func (a *routes) getExec(ctx context.Context, in *form.SitePath) (*form.Reply[Exec], error) {
	file, problem, err := a.shownFile(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[Exec]{Body: Exec{Allowed: file.Exec, Problem: problem}}, nil
}

func (a *routes) putExec(ctx context.Context, in *putExecInput) (*struct{}, error) {
	site, err := in.Parse()
	if err == nil {
		err = a.onSiteFile(ctx, site, "", func(was []byte, expect string) error {
			if len(was) > 0 || in.Body.Allowed {
				return a.setExec(ctx, site, was, expect, in.Body.Allowed)
			}
			return nil // without a file nothing is allowed
		})
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

func (a *routes) setExec(ctx context.Context, site protocol.SiteID, was []byte, expect string, allowed bool) error {
	file, bad := sitefile.Parse(site, was)
	if expect != "" && bad == nil && file.Exec == allowed {
		return nil
	}
	content, err := sitefile.SetExec(site, was, allowed)
	if len(was) > 0 && bad != nil && !allowed { // what is allowed must have an end: the file becomes what is in force, without it
		held, _, failed := a.contentIn(ctx, site, was)
		if failed != nil {
			return failed
		}
		held.Exec = false
		content, err = sitefile.Marshal(site, sitefile.Rules(held.Rules), held.Further())
	}
	if err != nil {
		return problem.OfSiteFile(err, true)
	}
	word := "Refuse"
	if allowed {
		word = "Allow"
	}
	if _, err := a.opts.Repo.Put(ctx, sitefile.Path(site), content, expect, word+" programs in containers of "+string(site)); err != nil {
		return err
	}
	a.opts.Changed()
	return nil
}
