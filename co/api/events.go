package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
	// streamChunk is how many bytes of events go into one write, at least, where there
	// are more.
	streamChunk = 64 << 10
)

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
	return min(id, newest), nil
}

var errFeedOver = errors.New("the CO stops")

// A following is one stream of events on its way to a client.
type following struct {
	api   *API
	to    *stream
	fo    *follower
	after int64 // all up to it that the client wants was sent
}

func (a *API) follow(ctx context.Context, f fleet.EventFilter, out *stream) error {
	fo := a.feed.follow(f)
	defer a.feed.leave(fo)
	s := &following{api: a, to: out, fo: fo, after: f.After}
	beat, again := time.NewTicker(streamBeat), time.NewTicker(feedAgain)
	defer beat.Stop()
	defer again.Stop()
	for {
		select { // a feed that has ended tells nothing more
		case <-a.feed.over:
			return errFeedOver
		default:
		}
		var retry <-chan time.Time
		if err := s.send(ctx); err != nil {
			if protocol.KindOf(err) != protocol.Unavailable {
				return err
			}
			a.feed.lag(fo)
			retry = again.C
			select { // the notification of that; the wait is for the database
			case <-fo.wake.C():
			default:
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.feed.over:
		case <-fo.wake.C():
		case <-retry:
		case <-beat.C:
			// With the id a client that comes again does not make the CO look through
			// what it did not want.
			if err := out.write(fmt.Sprintf("id: %d\n: \n\n", s.after)); err != nil {
				return err
			}
		}
	}
}

// send sends what there is.
func (s *following) send(ctx context.Context) error {
	list, head, behind := s.api.feed.take(s.fo)
	if behind {
		if err := s.catchUp(ctx); err != nil {
			return err
		}
	} else if err := s.frames(list); err != nil {
		return err
	}
	s.after = max(s.after, head)
	return nil
}

// catchUp sends what the database has.
func (s *following) catchUp(ctx context.Context) error {
	f := s.fo.filter
	f.Limit = streamPage
	for {
		f.After = s.after
		events, err := s.api.feed.read(ctx, f)
		if err != nil {
			return err
		}
		list := make([]*frame, len(events))
		for i := range events {
			if list[i], err = newFrame(&events[i]); err != nil {
				return err
			}
		}
		if err := s.frames(list); err != nil || len(events) < f.Limit {
			return err
		}
	}
}

// frames sends events but those that were sent before, many in one write.
func (s *following) frames(list []*frame) error {
	var text []byte
	for _, fr := range list {
		if fr.id <= s.after {
			continue
		}
		text = append(text, fr.text...)
		s.after = fr.id
		if len(text) >= streamChunk {
			if err := s.to.write(string(text)); err != nil {
				return err
			}
			text = text[:0]
		}
	}
	if len(text) == 0 {
		return nil
	}
	return s.to.write(string(text))
}

// A stream writes server-sent events to one client.
type stream struct {
	w http.ResponseWriter
	c *http.ResponseController
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
