// Package eventsapi has the routes of the API that list events and follow them.
package eventsapi

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/feed"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/api/within"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A Store reads events.
type Store interface {
	// Events returns all that was committed before the call, as far as f wants it.
	Events(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error)
	// LastEvent returns the greatest id that an event ever had, 0 where there was none.
	LastEvent(ctx context.Context) (int64, error)
	// FirstEvent returns the least id of the events that are kept.
	FirstEvent(ctx context.Context) (int64, error)
}

type routes struct {
	store Store
	site  func(context.Context, protocol.SiteID) (fleet.Site, error)
	feed  *feed.Feed
	log   *slog.Logger
}

// Register adds the route of the list to h, and returns the handler of the same route for
// clients that ask for a stream. site returns a site, or the error of one that does not exist.
func Register(h huma.API, store Store, site func(context.Context, protocol.SiteID) (fleet.Site, error), f *feed.Feed, log *slog.Logger) http.Handler {
	a := &routes{store, site, f, log}
	huma.Get(h, "/api/v1/events", a.list, form.Describe("events", "List events, or follow them as server-sent events"), func(o *huma.Operation) {
		o.Description = "With Accept: text/event-stream the answer is a stream of events (WHATWG HTML 9.2): the id is the event's id, " +
			"the data an Event as JSON. Last-Event-ID resumes after that event; without it the stream begins with what is new. " +
			"What nodes reported of commands (command_result) comes where results or kind asks for it: it is one event for each node of a fleet."
	})
	return a
}

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

func (a *routes) list(ctx context.Context, in *eventQuery) (*form.Reply[form.List[fleet.Event]], error) {
	f, err := in.filter(ctx)
	if err == nil {
		err = a.retained(ctx, f.After)
	}
	if err != nil {
		return nil, problem.Answer(ctx, a.log, err)
	}
	items, err := a.store.Events(ctx, f)
	if err == nil && len(items) == 0 && f.Site != "" && f.After == 0 { // one that was removed has some
		_, err = a.site(ctx, f.Site)
	}
	if err != nil {
		return nil, problem.Answer(ctx, a.log, err)
	}
	return form.Page(items, ""), nil
}

// WantsStream reports whether a request asks for a stream, not for a list.
func WantsStream(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// ServeHTTP answers with server-sent events (WHATWG HTML, section 9.2) until
// the client goes away or the CO stops.
func (a *routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		answer := problem.Answer(r.Context(), a.log, err)
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
func (a *routes) resume(r *http.Request) (int64, error) {
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
	newest, err := a.store.LastEvent(r.Context())
	if err != nil {
		return 0, err
	}
	if last != "" && id > newest {
		return 0, nil
	}
	return min(id, newest), a.retained(r.Context(), min(id, newest))
}

// retained returns an error where events that follow an id are not kept any more: a client that goes
// on there would miss them without a sign. A client that wants all that there is begins at 0.
func (a *routes) retained(ctx context.Context, id int64) error {
	if id == 0 {
		return nil
	}
	first, err := a.store.FirstEvent(ctx)
	if err != nil || id >= first-1 {
		return err
	}
	return problem.WithStatus(http.StatusGone, fmt.Sprintf(
		"the events from %d to %d are not kept any more: go on after %d, and read the lists for what happened until then", id+1, first-1, first-1))
}

func (in *eventQuery) filter(ctx context.Context) (f fleet.EventFilter, err error) {
	f = fleet.EventFilter{
		Within: access.SitesOf(ctx),
		After:  in.After, Site: protocol.SiteID(in.Site), Node: protocol.NodeID(in.Node), Deployment: protocol.DeploymentName(in.Deployment),
		Kinds: in.Kind, WithoutResults: !in.Results && len(in.Kind) == 0, Limit: in.Limit, Newest: in.Newest,
	}
	return f, checkEvents(ctx, f)
}

// checkEvents refuses what no event can match, what no index finds, and what the client may not see.
func checkEvents(ctx context.Context, f fleet.EventFilter) error {
	if _, err := within.Picked(ctx, f.Site); err != nil {
		return err
	}
	if f.Site == "" && (f.Node != "" || f.Deployment != "") {
		return problem.At("query.site", protocol.Errorf(protocol.Invalid, "a node or a deployment without its site: their names are unique within a site, name it as well"))
	}
	for _, k := range f.Kinds {
		if !slices.Contains(fleet.EventKinds, k) {
			return problem.At("query.kind", protocol.Errorf(protocol.Invalid, "kind %q: there is %s", k, strings.Join(fleet.EventKinds, ", ")))
		}
	}
	return nil
}
