package sitedata

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/colonyfleet/colony/co/api/feed"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A Watch gets what this CO delivers of one site's machine data.
type Watch interface {
	// C delivers a value when there may be something to receive, or to read from the
	// database.
	C() <-chan struct{}
	// Next returns what came since the last time, and how many messages found no room.
	Next() (list []fleet.Delivery, lost uint64)
	// Close ends the watch.
	Close()
}

const (
	// streamMessages is how many messages one query of a stream fetches.
	streamMessages = 500
	// liveBuffer is how many messages of rules that do not store a slow stream is behind.
	liveBuffer = 1000
	// tailInterval is how often a stream looks for messages that another CO received.
	tailInterval = time.Second
)

type streamInput struct {
	MessageQuery
	After string `header:"Last-Event-ID" doc:"resumes after that message, as does the read of a list; without it the stream begins with since, or with what is new"`
}

// streamData answers with server-sent events (WHATWG HTML, section 9.2) until the
// client goes away or the CO stops.
func (a *routes) streamData(ctx context.Context, in *streamInput) (*huma.StreamResponse, error) {
	t, err := a.openTail(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		t.out = feed.NewStream(w)
		t.watch = a.opts.Watch(t.filter.Site, liveBuffer, t.matches)
		defer t.watch.Close()
		if err := t.run(hc.Context()); err != nil && hc.Context().Err() == nil {
			a.log.InfoContext(hc.Context(), "data stream ended", "err", err)
		}
	}}, nil
}

// A tail is one stream of machine data. Messages of rules that store come from the
// database, so that a client which resumes misses none; others come as they are
// delivered.
type tail struct {
	api    *routes
	filter fleet.MessageFilter
	out    *feed.Stream
	watch  Watch
	// storing are the rules that store, as of the last look.
	storing atomic.Pointer[map[string]bool]
}

func (a *routes) openTail(ctx context.Context, in *streamInput) (*tail, error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	if _, err := a.opts.Fleet.Site(ctx, f.Site); err != nil {
		return nil, err
	}
	f.Limit = streamMessages
	switch {
	case in.After != "":
		if f.After, err = fleet.ParsePositions(in.After); err != nil {
			return nil, problem.At("header.Last-Event-ID", err)
		}
	case in.Since.IsZero():
		if f.After, err = a.opts.Data.LastMessages(ctx, f.Site); err != nil {
			return nil, err
		}
	}
	t := &tail{api: a, filter: f}
	return t, t.look(ctx)
}

// look finds out which rules store.
func (t *tail) look(ctx context.Context) error {
	data, err := t.api.opts.Rules.SiteData(ctx, t.filter.Site)
	if err != nil {
		return err
	}
	storing := map[string]bool{}
	for _, r := range data.Rules {
		if r.Store {
			storing[protocol.DataStream(r.Name)] = true
		}
	}
	t.storing.Store(&storing)
	return nil
}

// matches picks the messages that the database will not have.
func (t *tail) matches(d fleet.Delivery) bool {
	return !(*t.storing.Load())[d.Stream] && (t.filter.Rule == "" || d.Stream == protocol.DataStream(t.filter.Rule)) &&
		(t.filter.Topic == "" || topic.Matches(t.filter.Topic, d.Message.Topic))
}

func (t *tail) run(ctx context.Context) error {
	// The position is sent at once: a client that is cut off before the first message
	// resumes here.
	if err := t.out.Write("retry: 1000\n\nid: " + t.filter.After.String() + "\nevent: begin\ndata: {}\n\n"); err != nil {
		return err
	}
	beat, look := time.NewTicker(feed.Beat), time.NewTicker(tailInterval)
	defer beat.Stop()
	defer look.Stop()
	for {
		more, err := t.pass(ctx)
		if err != nil && protocol.KindOf(err) != protocol.Unavailable {
			return err
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.api.opts.Over():
			return feed.ErrOver
		case <-t.watch.C():
		case <-look.C:
			if err := t.look(ctx); err != nil && protocol.KindOf(err) != protocol.Unavailable {
				return err
			}
		case <-beat.C:
			if err := t.out.Write(": \n\n"); err != nil {
				return err
			}
		}
	}
}

// pass sends what there is, and reports whether there is more in the database.
func (t *tail) pass(ctx context.Context) (more bool, err error) {
	page, err := t.api.opts.Data.Messages(ctx, t.filter)
	if err == nil {
		at := t.filter.After
		if at == nil {
			at = fleet.Positions{}
		}
		for _, m := range page.Messages {
			at[m.Rule] = m.Position
			if err := t.send(at.String(), stored(m)); err != nil {
				return false, err
			}
		}
		t.filter.After = page.Read
	}
	list, lost := t.watch.Next()
	for _, d := range list {
		if err := t.send("", delivered(d)); err != nil {
			return false, err
		}
	}
	if lost > 0 {
		if err := t.out.Write(fmt.Sprintf("event: lost\ndata: {\"messages\":%d}\n\n", lost)); err != nil {
			return false, err
		}
	}
	return page.More, err
}

// send writes a message; id is the position to resume after it, "" where that stays.
func (t *tail) send(id string, m DataMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return t.out.Write(id + "event: message\ndata: " + string(data) + "\n\n")
}
