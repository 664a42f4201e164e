package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// streamPage is how many events one query of a stream fetches.
	streamPage = 500
	// streamBeat is how often an idle stream sends a comment, so that proxies keep
	// it open and a client that went away is noticed.
	streamBeat = 15 * time.Second
	// streamWrite bounds one write to a client: who does not read is disconnected.
	streamWrite = 10 * time.Second
)

// A feed wakes all streams when there are new events. The events themselves come
// from the store, so that a slow stream costs nothing but its own query.
type feed struct {
	mu     sync.Mutex
	wake   chan struct{}
	closed bool
	over   chan struct{} // closed with the feed
}

func newFeed() *feed { return &feed{wake: make(chan struct{}), over: make(chan struct{})} }

func (f *feed) run(ctx context.Context, changed <-chan int64) {
	defer f.broadcast(true)
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-changed:
			if !ok {
				return
			}
			f.broadcast(false)
		}
	}
}

func (f *feed) broadcast(last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	close(f.wake)
	f.wake, f.closed = make(chan struct{}), last
	if last {
		close(f.over)
	}
}

// next returns a channel that is closed at the next change, and whether the feed is over.
func (f *feed) next() (wake <-chan struct{}, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wake, f.closed
}

type eventQuery struct {
	Site       string   `query:"site"`
	Node       string   `query:"node"`
	Deployment string   `query:"deployment"`
	Kind       []string `query:"kind" doc:"several are separated by commas"`
	After      int64    `query:"after" minimum:"0" doc:"only events with a greater id"`
	Limit      int      `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Newest     bool     `query:"newest" doc:"the last ones instead of the first; the order is the same"`
}

func (a *API) listEvents(ctx context.Context, in *eventQuery) (*reply[List[fleet.Event]], error) {
	items, err := a.opts.Events.Events(ctx, fleet.EventFilter{
		After: in.After, Site: protocol.SiteID(in.Site), Node: protocol.NodeID(in.Node), Deployment: protocol.DeploymentName(in.Deployment),
		Kinds: in.Kind, Limit: in.Limit, Newest: in.Newest,
	})
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return page(items, "", nil)
}

func wantsStream(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// streamEvents answers with server-sent events (WHATWG HTML, section 9.2) until
// the client goes away or the CO stops.
func (a *API) streamEvents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains([]string{"site", "node", "deployment", "kind", "after", "limit", "newest"}, name) {
			writeProblem(w, http.StatusUnprocessableEntity, "unknown query parameter "+strconv.Quote(name))
			return
		}
	}
	f := fleet.EventFilter{
		Site: protocol.SiteID(q.Get("site")), Node: protocol.NodeID(q.Get("node")), Deployment: protocol.DeploymentName(q.Get("deployment")),
		Limit: streamPage,
	}
	if kinds := strings.Join(q["kind"], ","); kinds != "" {
		f.Kinds = strings.Split(kinds, ",")
	}
	after, err := a.resume(r)
	if err != nil {
		problem := a.fail(r.Context(), err)
		writeProblem(w, problem.GetStatus(), problem.Error())
		return
	}
	f.After = after
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.Header().Set("Connection", "close") // it has a write deadline that no further request should meet
	out := &stream{w: w, c: http.NewResponseController(w)}
	if err := out.write("retry: 1000\n\n"); err != nil {
		return
	}
	if err := a.follow(r.Context(), f, out); err != nil && r.Context().Err() == nil {
		a.log.InfoContext(r.Context(), "event stream ended", "err", err)
	}
}

// resume returns the id after which a stream begins: that of Last-Event-ID, the
// parameter after, or the newest there is.
func (a *API) resume(r *http.Request) (int64, error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("after")
	}
	if last != "" {
		id, err := strconv.ParseInt(last, 10, 64)
		if err != nil || id < 0 {
			return 0, protocol.Errorf(protocol.Invalid, "event id %q: want a number of 0 or more, as the stream or the list gave it", last)
		}
		return a.within(r.Context(), id)
	}
	newest, err := a.opts.Events.Events(r.Context(), fleet.EventFilter{Limit: 1, Newest: true})
	if err != nil || len(newest) == 0 {
		return 0, err
	}
	return newest[0].ID, nil
}

// within returns the id of an event after which a stream goes on. One past the newest
// is of a record that no longer exists: all that this one holds is new to the client.
func (a *API) within(ctx context.Context, id int64) (int64, error) {
	newest, err := a.opts.Events.Events(ctx, fleet.EventFilter{Limit: 1, Newest: true})
	if err != nil {
		return 0, err
	}
	if len(newest) == 0 || newest[0].ID < id {
		return 0, nil
	}
	return id, nil
}

var errFeedOver = errors.New("the CO stops")

func (a *API) follow(ctx context.Context, f fleet.EventFilter, out *stream) error {
	beat := time.NewTicker(streamBeat)
	defer beat.Stop()
	for {
		wake, over := a.feed.next()
		if over {
			return errFeedOver
		}
		events, err := a.opts.Events.Events(ctx, f)
		if err != nil && protocol.KindOf(err) != protocol.Unavailable {
			return err
		}
		for _, e := range events {
			if err := out.event(e); err != nil {
				return err
			}
			f.After = e.ID
		}
		if len(events) == f.Limit {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		case <-beat.C:
			if err := out.write(": \n\n"); err != nil {
				return err
			}
		}
	}
}

// A stream writes server-sent events to one client.
type stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func (s *stream) event(e fleet.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return s.write(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data))
}

func (s *stream) write(text string) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("write to the client: %w", err)
	}
	return s.c.Flush()
}

// Status says whether Colony works and what it runs.
type Status struct {
	Version      string            `json:"version"`
	Parts        map[string]string `json:"parts" doc:"ok, or what is wrong with it"`
	Sites        int               `json:"sites"`
	SitesOnline  int               `json:"sitesOnline"`
	Nodes        int               `json:"nodes"`
	NodesOnline  int               `json:"nodesOnline" doc:"known to be online"`
	NodesUnknown int               `json:"nodesUnknown" doc:"of sites that are offline"`
	Apps         int               `json:"apps"`
	Deployments  map[string]int    `json:"deployments" doc:"number by state"`
}

func (a *API) status(ctx context.Context, _ *struct{}) (*reply[Status], error) {
	s := Status{Version: a.opts.Version, Parts: map[string]string{}, Deployments: map[string]int{}}
	asked, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	for name, err := range a.opts.Ready(asked) {
		s.Parts[name] = "ok"
		if err != nil {
			s.Parts[name] = public(err)
		}
	}
	if err := a.count(ctx, &s); err != nil {
		return nil, a.fail(ctx, err)
	}
	return &reply[Status]{s}, nil
}

func (a *API) count(ctx context.Context, s *Status) error {
	err := each(func(p fleet.Page) ([]fleet.Site, string, error) { return a.opts.Fleet.Sites(ctx, p) }, func(v fleet.Site) {
		s.Sites++
		s.Nodes += v.Nodes
		s.NodesOnline += v.NodesOnline
		s.NodesUnknown += v.NodesUnknown
		if v.Online {
			s.SitesOnline++
		}
	})
	if err != nil {
		return err
	}
	if err := each(func(p fleet.Page) ([]fleet.App, string, error) { return a.opts.Apps.Apps(ctx, p) }, func(fleet.App) { s.Apps++ }); err != nil {
		return err
	}
	return each(func(p fleet.Page) ([]fleet.Deployment, string, error) {
		return a.opts.Deployments.Deployments(ctx, fleet.DeploymentFilter{}, p)
	}, func(d fleet.Deployment) { s.Deployments[string(d.State)]++ })
}

// each calls f with every item of a list.
func each[T any](list func(fleet.Page) ([]T, string, error), f func(T)) error {
	page := fleet.Page{Limit: fleet.MaxLimit}
	for {
		items, next, err := list(page)
		if err != nil {
			return err
		}
		for _, item := range items {
			f(item)
		}
		if next == "" {
			return nil
		}
		page.Cursor = next
	}
}
