// Package feed sends events to many clients at once as server-sent events (WHATWG HTML,
// section 9.2): one reader of the database for all of them.
package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// retryDelay is the wait after a read of the database that failed.
	retryDelay = time.Second
	// followerEvents and followerBytes bound what waits for one stream. A stream that
	// is further behind reads from the database.
	followerEvents = 1000
	followerBytes  = 1 << 20
	// readersAtOnce bounds the reads of the streams that are behind, of all together.
	readersAtOnce = 2
)

// A Store reads events.
type Store interface {
	// Feed returns events in the order of their ids, as far as the filter wants them.
	Feed(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error)
}

// A Feed reads new events from the database once, and hands each to the streams that
// want it: a stream costs memory, and a query only while it is behind.
type Feed struct {
	store   Store
	log     *slog.Logger
	over    chan struct{} // closed with the feed
	readers chan struct{} // holds a token for each read of a stream that is behind

	mu   sync.Mutex // protects what follows, and the followers
	head int64      // the greatest id that was handed out; -1 before the first
	// followers are the streams by the site that they want; "": any.
	followers map[protocol.SiteID]map[*follower]bool
}

// A follower is what a feed keeps of one stream.
type follower struct {
	filter fleet.EventFilter
	wake   notify.Signal // there is something to take

	queue []*frame
	bytes int
	// lagging says that the queue does not go on where the stream is: what is missing
	// has to be read from the database.
	lagging bool
}

// A frame is an event, encoded once for all streams.
type frame struct {
	id   int64
	text []byte
}

func newFrame(e *fleet.Event) (*frame, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event %d: %w", e.ID, err)
	}
	return &frame{e.ID, fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data)}, nil
}

// New returns a Feed. It works while Run does.
func New(store Store, log *slog.Logger) *Feed {
	return &Feed{
		store: store, log: log, over: make(chan struct{}), readers: make(chan struct{}, readersAtOnce),
		head: -1, followers: map[protocol.SiteID]map[*follower]bool{},
	}
}

// Run hands out events until ctx ends or changed is closed. It is called once.
func (f *Feed) Run(ctx context.Context, changed <-chan int64) {
	defer close(f.over)
	for {
		select {
		case <-ctx.Done():
			return
		case id, ok := <-changed:
			if !ok {
				return
			}
			f.advance(ctx, id)
		}
	}
}

// Over is closed when Run has ended.
func (f *Feed) Over() <-chan struct{} { return f.over }

// advance hands out the events up to an id. The first time, and while no stream follows, it only
// notes where to begin.
func (f *Feed) advance(ctx context.Context, upto int64) {
	head := f.begin(upto)
	for head < upto && ctx.Err() == nil {
		events, err := f.store.Feed(ctx, fleet.EventFilter{After: head, Limit: fleet.MaxLimit})
		switch {
		case err != nil && ctx.Err() == nil:
			f.log.WarnContext(ctx, "event streams stand still, trying again", "after", head, "err", err)
			_ = retry.Sleep(ctx, retryDelay) // an error is the end of ctx
		case err == nil && len(events) == 0:
			return // they were removed meanwhile
		case err == nil:
			f.publish(ctx, events)
			head = events[len(events)-1].ID
		}
	}
}

// begin returns the id after which to read: upto where no stream follows, as a new stream begins
// with the database.
func (f *Feed) begin(upto int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head >= 0 && f.head <= upto && len(f.followers) > 0 {
		return f.head
	}
	f.head = upto
	for _, set := range f.followers {
		for fo := range set {
			fo.lag()
		}
	}
	return upto
}

func (f *Feed) publish(ctx context.Context, events []fleet.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range events {
		e := &events[i]
		f.head = e.ID
		if err := f.hand(e); err != nil {
			f.log.ErrorContext(ctx, "event not sent to streams", "err", err)
		}
	}
}

// hand queues an event for the streams that want it. The caller holds f.mu.
func (f *Feed) hand(e *fleet.Event) (err error) {
	sets := []map[*follower]bool{f.followers[""]}
	if e.Site != "" {
		sets = append(sets, f.followers[e.Site])
	}
	var fr *frame
	for _, set := range sets {
		for fo := range set {
			if !fo.matches(e) {
				continue
			}
			if fr == nil {
				if fr, err = newFrame(e); err != nil {
					return err
				}
			}
			fo.add(fr)
		}
	}
	return nil
}

// follow adds a stream. It is behind until it has read the database.
func (f *Feed) follow(filter fleet.EventFilter) *follower {
	fo := &follower{filter: filter, wake: notify.New()}
	f.mu.Lock()
	defer f.mu.Unlock()
	fo.lag()
	set := f.followers[filter.Site]
	if set == nil {
		set = map[*follower]bool{}
		f.followers[filter.Site] = set
	}
	set[fo] = true
	return fo
}

func (f *Feed) leave(fo *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := f.followers[fo.filter.Site]
	if delete(set, fo); len(set) == 0 {
		delete(f.followers, fo.filter.Site)
	}
}

// next returns what a stream is to send next, and the id up to which that is all. For
// one that is behind, this is in the database up to that id; what follows is queued.
func (f *Feed) next(fo *follower) (list []*frame, head int64, lagging bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, lagging = fo.queue, fo.lagging
	fo.queue, fo.bytes, fo.lagging = nil, 0, false
	return list, f.head, lagging
}

// read reads the database for a stream that is behind, when its turn comes.
func (f *Feed) read(ctx context.Context, filter fleet.EventFilter) ([]fleet.Event, error) {
	select {
	case f.readers <- struct{}{}:
		defer func() { <-f.readers }()
	case <-f.over:
		return nil, ErrOver
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return f.store.Feed(ctx, filter)
}

// lag makes a stream read the database again.
func (f *Feed) lag(fo *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fo.lag()
}

func (fo *follower) lag() {
	fo.queue, fo.bytes, fo.lagging = nil, 0, true
	fo.wake.Notify()
}

func (fo *follower) add(fr *frame) {
	switch {
	case fo.lagging:
	case len(fo.queue) >= followerEvents || fo.bytes > followerBytes:
		fo.lag()
	default:
		fo.queue = append(fo.queue, fr)
		fo.bytes += len(fr.text)
		fo.wake.Notify()
	}
}

// matches reports whether a stream wants an event; the site that it names was compared before.
func (fo *follower) matches(e *fleet.Event) bool {
	w := &fo.filter
	return w.Within.Has(e.Site) && (w.Node == "" || w.Node == e.Node) && (w.Deployment == "" || w.Deployment == e.Deployment) &&
		(len(w.Kinds) == 0 || slices.Contains(w.Kinds, e.Kind)) && !(w.WithoutResults && e.Kind == string(protocol.CommandResult))
}
