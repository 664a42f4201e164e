package api_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A counted store counts what the streams ask of the database, and fails while it is
// asked to.
type counted struct {
	api.EventStore
	reads, lasts atomic.Int64
	away         atomic.Bool
}

func (c *counted) Feed(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	c.reads.Add(1)
	if c.away.Load() {
		return nil, protocol.Errorf(protocol.Unavailable, "away")
	}
	return c.EventStore.Feed(ctx, f)
}

func (c *counted) LastEvent(ctx context.Context) (int64, error) {
	c.lasts.Add(1)
	return c.EventStore.LastEvent(ctx)
}

// A watcher is a client of a stream without a connection. While it is stopped, it does
// not read.
type watcher struct {
	header http.Header
	mu     sync.Mutex // held: stopped
	text   bytes.Buffer
	got    chan struct{} // a value after each write
}

func (w *watcher) Header() http.Header              { return w.header }
func (*watcher) WriteHeader(int)                    {}
func (*watcher) Flush()                             {}
func (*watcher) SetWriteDeadline(_ time.Time) error { return nil }
func (w *watcher) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	select {
	case w.got <- struct{}{}:
	default:
	}
	return len(b), nil
}

// until waits until the stream has sent a text, and returns all that it has sent.
func (w *watcher) until(t *testing.T, text string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		all := w.text.String()
		w.mu.Unlock()
		if strings.Contains(all, text) {
			return all
		}
		select {
		case <-w.got:
		case <-deadline:
			t.Fatalf("no %q in %q", text, all)
		}
	}
}

// watch opens streams, which end with the test, and waits until each has begun.
func (w *world) watch(n int, query string) []*watcher {
	w.t.Helper()
	return w.watchAs(w.t.Context(), n, query)
}

// watchAs is watch in a context that says whose request it is.
func (w *world) watchAs(ctx context.Context, n int, query string) []*watcher {
	w.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	w.t.Cleanup(func() { cancel(); wg.Wait() })
	list := make([]*watcher, n)
	for i := range list {
		list[i] = &watcher{header: http.Header{}, got: make(chan struct{}, 1)}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events"+query, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		r.Header.Set("Accept", "text/event-stream")
		wg.Go(func() { w.server.Config.Handler.ServeHTTP(list[i], r) })
	}
	for _, c := range list {
		c.until(w.t, "retry: ")
	}
	return list
}

// TestWatchersCostNoQueries has 1,000 streams wait for a rare event: the events that
// come before it are read once, and not once for each stream.
func TestWatchersCostNoQueries(t *testing.T) {
	t.Parallel()
	store := &counted{}
	w := newWorld(t, withoutLoop, options(func(o *api.Options) { store.EventStore = o.Events; o.Events = store }))
	w.say("before")
	live := w.watch(1, "")
	watchers := w.watch(1000, "?kind=anomaly")
	watchers = append(watchers, w.watch(10, "?site=home&node=gw-1")...)
	w.eventually(func() bool { return store.reads.Load() >= int64(len(watchers)) }) // each has read once, where it begins
	reads, lasts := store.reads.Load(), store.lasts.Load()
	const events = 50
	for i := range events {
		w.say(fmt.Sprint("common ", i))
		live[0].until(t, fmt.Sprintf("common %d\"", i))
	}
	w.say("kind=anomaly node this one")
	for _, c := range watchers {
		if all := c.until(t, "this one"); strings.Contains(all, "common") {
			t.Fatalf("a stream has what it did not ask for: %q", all)
		}
	}
	// One read for what was announced, and now and then one that finds it read already.
	if n := store.reads.Load() - reads; n > 2*events+20 {
		t.Errorf("%d queries for %d events and %d streams", n, events, len(watchers))
	}
	if n := store.lasts.Load() - lasts; n != 0 {
		t.Errorf("%d queries for the last event by streams that were open", n)
	}
}

// TestStreamThatFallsBehind stops a client until its queue is full, then lets it go on:
// it gets every event once, in order.
func TestStreamThatFallsBehind(t *testing.T) {
	t.Parallel()
	store := &counted{}
	w := newWorld(t, withoutLoop, options(func(o *api.Options) { store.EventStore = o.Events; o.Events = store }))
	w.say("before")
	slow, quick := w.watch(1, "?kind=inventory")[0], w.watch(1, "")[0]
	w.say("first")
	slow.until(t, "first")
	slow.mu.Lock()
	const events = 2500 // more than a queue holds, and than two queries return
	messages := make([]fleet.Event, events)
	for i := range messages {
		messages[i] = fleet.Event{Kind: "inventory", Message: fmt.Sprintf("n%d.", i)}
	}
	for _, e := range messages {
		if err := w.store.AddEvent(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	quick.until(t, fmt.Sprintf("n%d.", events-1))
	slow.mu.Unlock()
	all := slow.until(t, fmt.Sprintf("n%d.", events-1))
	at := 0
	for _, e := range messages {
		i := strings.Index(all[at:], `"message":"`+e.Message+`"`)
		if i < 0 {
			t.Fatalf("%s is missing or out of order", e.Message)
		}
		at += i
	}
	if n := strings.Count(all, "\ndata: "); n != events+1 {
		t.Errorf("%d events, want %d", n, events+1)
	}
}

// TestStreamsWaitForTheDatabase has the reads of the streams fail for a while.
func TestStreamsWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	store := &counted{}
	w := newWorld(t, withoutLoop, options(func(o *api.Options) { store.EventStore = o.Events; o.Events = store }))
	w.say("before")
	live := w.watch(1, "")[0]
	w.say("first")
	live.until(t, "first")
	store.away.Store(true)
	late := w.watch(1, "?after=0")[0]
	w.say("second", "third")
	reads := store.reads.Load()
	w.eventually(func() bool { return store.reads.Load() >= reads+2 })
	store.away.Store(false)
	for _, c := range []*watcher{live, late} {
		all := c.until(t, "third")
		if n := strings.Count(all, "second"); n != 1 {
			t.Errorf("the second event came %d times: %q", n, all)
		}
	}
	if all := late.until(t, "third"); !strings.Contains(all, "before") {
		t.Errorf("the stream from the beginning: %q", all)
	}
}

// TestStreamWithinSites follows, from now on and from the beginning, the events of the sites of a token.
func TestStreamWithinSites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	for _, site := range []protocol.SiteID{"plant-1", "secret"} {
		if _, err := w.store.CreateSite(t.Context(), site); err != nil {
			t.Fatal(err)
		}
	}
	say := func(site protocol.SiteID, message string) {
		t.Helper()
		if err := w.store.AddEvent(t.Context(), fleet.Event{Kind: "inventory", Site: site, Message: message}); err != nil {
			t.Fatal(err)
		}
	}
	as := access.With(t.Context(), access.Principal{Name: "ann", Role: access.ReadOnly, Sites: []string{"plant-*"}}, access.ReadFleet, nil)
	say("", "of no site")
	say("secret", "early of another")
	say("plant-1", "early of its own")
	late, live := w.watchAs(as, 1, "?after=0")[0], w.watchAs(as, 1, "")[0]
	all := w.watch(1, "")[0]
	late.until(t, "early of its own")
	for _, c := range []*watcher{live, all} {
		say("plant-1", "begin")
		c.until(t, "begin")
	}
	say("", "later of no site")
	say("secret", "later of another")
	say("plant-1", "later of its own")
	if text := all.until(t, "later of its own"); !strings.Contains(text, "later of another") || !strings.Contains(text, "later of no site") {
		t.Errorf("the stream of the whole fleet has not all: %q", text)
	}
	for what, c := range map[string]*watcher{"from the beginning": late, "from now on": live} {
		if text := c.until(t, "later of its own"); strings.Contains(text, "of another") || strings.Contains(text, "of no site") {
			t.Errorf("the stream %s has what is of other sites: %q", what, text)
		}
	}
}

// TestStreamOfAnotherDatabase resumes behind an id that this record never had.
func TestStreamOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.say("one", "two")
	got, _ := w.open("?after=1000", "").next(2)
	diff(t, "events", []string{"one", "two"}, got)
}
