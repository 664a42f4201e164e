package api

import (
	"context"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
)

// Status says whether Colony works and what it runs.
type Status struct {
	Version      string            `json:"version"` // of the CO
	Parts        map[string]string `json:"parts" doc:"ok, or what is wrong with it"`
	Sites        int               `json:"sites"`       // on record
	SitesOnline  int               `json:"sitesOnline"` // of Sites
	Unenrolled   int               `json:"sitesNotEnrolled,omitempty" doc:"sites whose LO has no certificate, at a CO that wants one; not counted for a token of some sites"`
	Nodes        int               `json:"nodes"` // of all sites
	NodesOnline  int               `json:"nodesOnline" doc:"known to be online"`
	NodesUnknown int               `json:"nodesUnknown" doc:"of sites that are offline"`
	Apps         int               `json:"apps"` // applications in the catalog
	Deployments  map[string]int    `json:"deployments" doc:"number by state"`
	Proposals    int               `json:"proposals" doc:"proposals that wait to be confirmed; not counted for a token of some sites"`
	Held         int               `json:"held" doc:"removals that they hold"`
}

func (a *API) status(ctx context.Context, _ *struct{}) (*form.Reply[Status], error) {
	s := Status{Version: a.opts.Version, Parts: map[string]string{}, Deployments: map[string]int{}}
	asked, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	for name, err := range a.opts.Ready(asked) {
		s.Parts[name] = "ok"
		if err != nil {
			s.Parts[name] = problem.Public(err)
		}
	}
	if err := a.count(ctx, &s); err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[Status]{Body: s}, nil
}

func (a *API) count(ctx context.Context, s *Status) error {
	own := access.SitesOf(ctx)
	c, err := a.opts.Counts.Summary(ctx, own)
	if err != nil {
		return err
	}
	s.Sites, s.SitesOnline, s.Apps = c.Sites, c.SitesOnline, c.Apps
	s.Nodes, s.NodesOnline, s.NodesUnknown = c.Nodes, c.NodesOnline, c.NodesUnknown
	for state, n := range c.Deployments {
		if n > 0 {
			s.Deployments[string(state)] = n
		}
	}
	if !own.All() {
		return nil // what follows is counted for the whole fleet
	}
	if s.Proposals, s.Held, err = a.opts.Proposals.HeldRemovals(ctx); err != nil {
		return err
	}
	if list := a.opts.Sites.Machines.Unenrolled; list != nil {
		if _, s.Unenrolled, err = list(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}
