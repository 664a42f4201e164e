package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// choice reads a choice of values: several are separated by commas, and a ! before them
// picks all others. Where allowed is not empty it has all values that there are.
func choice(parameter, text string, allowed []string) (fleet.Choice, error) {
	if text == "" {
		return fleet.Choice{}, nil
	}
	rest, not := strings.CutPrefix(text, "!")
	c := fleet.Choice{Values: strings.Split(rest, ","), Not: not}
	for _, v := range c.Values {
		if v == "" || len(allowed) > 0 && !slices.Contains(allowed, v) {
			want := "want a value"
			if len(allowed) > 0 {
				want = "want of " + strings.Join(allowed, ", ")
			}
			return c, problem.At("query."+parameter, protocol.Errorf(protocol.Invalid,
				"%s %q: %s; several are separated by commas, and a ! before them picks all others", parameter, v, want))
		}
	}
	return c, nil
}

// refuseEmptyState refuses a state that is there and empty: it would pick all, where a client that fills in a state left it out by mistake.
func refuseEmptyState(h huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		if values, there := u.Query()["state"]; !there || !slices.Contains(values, "") {
			next(ctx)
			return
		}
		for _, p := range ctx.Operation().Parameters {
			if p.In != "query" || p.Name != "state" {
				continue
			}
			want := p.Description
			if p.Schema != nil && len(p.Schema.Enum) > 0 {
				want = strings.Trim(fmt.Sprint(p.Schema.Enum), "[]")
			}
			_ = huma.WriteErr(h, ctx, http.StatusUnprocessableEntity, "query.state: it is empty: leave it out for all, or want of "+want)
			return
		}
		next(ctx)
	}
}

func states() []string {
	list := make([]string, len(lifecycle.States))
	for i, s := range lifecycle.States {
		list[i] = string(s)
	}
	return list
}

func (in *deploymentQuery) filter(ctx context.Context) (f fleet.DeploymentFilter, err error) {
	f.Site, f.Text, f.Archived = protocol.SiteID(in.Site), in.Text, in.Archived
	if f.Within, err = within.Picked(ctx, f.Site); err != nil {
		return f, err
	}
	if f.App, err = choice("app", in.App, nil); err != nil {
		return f, err
	}
	if f.Version, err = choice("version", in.Version, nil); err != nil {
		return f, err
	}
	f.State, err = choice("state", in.State, states())
	return f, err
}

func (in *nodeQuery) filter(ctx context.Context) (f fleet.NodeFilter, err error) {
	f.Site, f.Text = protocol.SiteID(in.Site), in.Text
	if f.Within, err = within.Picked(ctx, f.Site); err != nil {
		return f, err
	}
	for _, kv := range in.Label {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return f, problem.At("query.label", protocol.Errorf(protocol.Invalid, "label %q: want key=value", kv))
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[k] = v
	}
	if f.State, err = choice("state", in.State, fleet.NodeStates); err != nil {
		return f, err
	}
	f.Version, err = choice("version", in.Version, nil)
	return f, err
}

func (in *siteQuery) filter(ctx context.Context) (f fleet.SiteFilter, err error) {
	f.Text, f.Within = in.Text, access.SitesOf(ctx)
	if online := in.Online == "true"; in.Online != "" { // one of the two: others were refused
		f.Online = &online
	}
	f.Version, err = choice("version", in.Version, nil)
	return f, err
}

// total counts what a filter picks, where that is asked for.
func total[F any](ctx context.Context, asked bool, f F, count func(context.Context, F) (fleet.Total, error)) (*fleet.Total, error) {
	if !asked {
		return nil, nil //nolint:nilnil // no number is asked for
	}
	t, err := count(ctx, f)
	return &t, err
}

// known returns an error where a filter names a site or an application that does not
// exist: a list without items would hide a misspelt name.
func (a *API) known(ctx context.Context, site protocol.SiteID, apps fleet.Choice) error {
	if site != "" {
		if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
			return err
		}
	}
	if apps.Not {
		return nil
	}
	for _, id := range apps.Values {
		if _, err := a.opts.Apps.App(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
