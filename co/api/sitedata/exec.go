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
	Allowed bool   `json:"allowed" doc:"programs may be run in its containers by whoever has sessions:open"`
	Problem string `json:"problem,omitempty" doc:"why the site's file is not followed: then it is not allowed"`
}

type putExecInput struct {
	form.SitePath
	Body struct {
		Allowed bool `json:"allowed" doc:"whether programs may be run in its containers"`
	}
}

func (a *routes) getExec(ctx context.Context, in *form.SitePath) (*form.Reply[Exec], error) {
	site, err := in.Parse()
	if err == nil {
		_, err = a.opts.Fleet.Site(ctx, site)
	}
	var content []byte
	if err == nil {
		content, _, err = a.siteFile(ctx, site)
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	out := Exec{}
	if len(content) > 0 {
		file, err := sitefile.Parse(site, content)
		if out.Allowed = file.Exec; err != nil {
			out.Problem = err.Error()
		}
	}
	return &form.Reply[Exec]{Body: out}, nil
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
	if file, err := sitefile.Parse(site, was); len(was) > 0 && err == nil && file.Exec == allowed {
		return nil
	}
	content, err := sitefile.SetExec(site, was, allowed)
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
