package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/feed"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// streamPage is how many events one query of a stream fetches.
const streamPage = 500

type eventQuery struct {
	Site       string   `query:"site" doc:"only events of this site"`
	Node       string   `query:"node" doc:"only events of nodes with this name"`
	Deployment string   `query:"deployment" doc:"only events of deployments with this name"`
	Kind       []string `query:"kind" doc:"several are separated by commas"`
	Results    bool     `query:"results" doc:"also what nodes reported of commands (command_result), one event for each node; without it they come where kind names them alone"`
	After      int64    `query:"after" minimum:"0" doc:"only events with a greater id"`
	Limit      int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many events"`
	Newest     bool     `query:"newest" doc:"the last ones instead of the first; the order is the same"`
}

func (a *API) listEvents(ctx context.Context, in *eventQuery) (*form.Reply[form.List[fleet.Event]], error) {
	f, err := in.filter(ctx)
	if err == nil {
		err = a.retained(ctx, f.After)
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	items, err := a.opts.Events.Events(ctx, f)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return form.Page(items, ""), nil
}

func wantsStream(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// streamEvents answers with server-sent events (WHATWG HTML, section 9.2) until
// the client goes away or the CO stops.
func (a *API) streamEvents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains([]string{"site", "node", "deployment", "kind", "results", "after", "limit", "newest"}, name) {
			problem.Write(w, http.StatusUnprocessableEntity, "unknown query parameter "+strconv.Quote(name))
			return
		}
	}
	f := fleet.EventFilter{
		Within: access.SitesOf(r.Context()),
		Site:   protocol.SiteID(q.Get("site")), Node: protocol.NodeID(q.Get("node")), Deployment: protocol.DeploymentName(q.Get("deployment")),
		Limit: streamPage,
	}
	if kinds := strings.Join(q["kind"], ","); kinds != "" {
		f.Kinds = strings.Split(kinds, ",")
	}
	results, err := strconv.ParseBool(cmp.Or(q.Get("results"), "false"))
	if err != nil {
		problem.Write(w, http.StatusUnprocessableEntity, fmt.Sprintf("results %q: want true or false", q.Get("results")))
		return
	}
	f.WithoutResults = !results && len(f.Kinds) == 0
	after, err := a.resume(r)
	if err == nil {
		err = checkEvents(r.Context(), f)
	}
	if err != nil {
		answer := a.fail(r.Context(), err)
		problem.Write(w, answer.GetStatus(), answer.Error())
		return
	}
	f.After = after
	out := feed.NewStream(w)
	if err := out.Write("retry: 1000\n\n"); err != nil {
		return
	}
	if err := a.feed.Serve(r.Context(), f, out); err != nil && r.Context().Err() == nil {
		a.log.InfoContext(r.Context(), "event stream ended", "err", err)
	}
}

// resume returns the id after which a stream begins: that of Last-Event-ID, the
// parameter after, or the newest there is. One past the newest is of a record that no
// longer exists: all that this one holds is new to the client.
func (a *API) resume(r *http.Request) (int64, error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("after")
	}
	id, err := int64(math.MaxInt64), error(nil)
	if last != "" {
		if id, err = strconv.ParseInt(last, 10, 64); err != nil || id < 0 {
			return 0, protocol.Errorf(protocol.Invalid, "event id %q: want a number of 0 or more, as the stream or the list gave it", last)
		}
	}
	newest, err := a.opts.Events.LastEvent(r.Context())
	if err != nil {
		return 0, err
	}
	if last != "" && id > newest {
		return 0, nil
	}
	return min(id, newest), a.retained(r.Context(), min(id, newest))
}

// retained returns an error where events that follow an id are not kept any more: who goes on
// there would miss them without a sign. From 0 begins who wants what there is.
func (a *API) retained(ctx context.Context, id int64) error {
	if id == 0 {
		return nil
	}
	first, err := a.opts.Events.FirstEvent(ctx)
	if err != nil || id >= first-1 {
		return err
	}
	return problem.WithStatus(http.StatusGone, fmt.Sprintf(
		"the events from %d to %d are not kept any more: go on after %d, and read the lists for what happened until then", id+1, first-1, first-1))
}

// Status says whether Colony works and what it runs.
type Status struct {
	Version      string            `json:"version"`
	Parts        map[string]string `json:"parts" doc:"ok, or what is wrong with it"`
	Sites        int               `json:"sites"`
	SitesOnline  int               `json:"sitesOnline"`
	Unenrolled   int               `json:"sitesNotEnrolled,omitempty" doc:"sites whose LO has no certificate, at a CO that wants one; not counted for a token of some sites"`
	Nodes        int               `json:"nodes"`
	NodesOnline  int               `json:"nodesOnline" doc:"known to be online"`
	NodesUnknown int               `json:"nodesUnknown" doc:"of sites that are offline"`
	Apps         int               `json:"apps"`
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
