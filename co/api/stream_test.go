package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
)

// A stream is a client of the live events.
type stream struct {
	t      *testing.T
	events chan fleet.Event // closed at the end of the stream
	close  func()
	header http.Header
	body   io.ReadCloser
}

// open begins a stream; it is open once this returns.
func (w *world) open(query, lastEventID string) *stream {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/events"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		cancel()
		w.t.Fatalf("stream: %s", resp.Status)
	}
	s := &stream{t: w.t, events: make(chan fleet.Event), close: cancel, header: resp.Header, body: resp.Body}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.read(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

func (s *stream) read(ctx context.Context) {
	defer s.body.Close()
	defer close(s.events)
	lines := bufio.NewScanner(s.body)
	lines.Buffer(nil, 1<<20)
	var id, kind string
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			var e fleet.Event
			if err := json.Unmarshal([]byte(value), &e); err != nil || strconv.FormatInt(e.ID, 10) != id || e.Kind != kind {
				s.t.Errorf("id %q, event %q, data %s: %v", id, kind, value, err)
			}
			select {
			case s.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}
}

// next returns the messages of the next n events, and the id of the last.
func (s *stream) next(n int) (messages []string, id int64) {
	s.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for range n {
		select {
		case e, ok := <-s.events:
			if !ok {
				s.t.Fatalf("the stream ended after %q", messages)
			}
			messages, id = append(messages, e.Message), e.ID
		case <-limit.C:
			s.t.Fatalf("no event in time after %q", messages)
		}
	}
	return messages, id
}

// ended waits for the end of the stream, without any further event.
func (s *stream) ended() {
	s.t.Helper()
	select {
	case e, ok := <-s.events:
		if ok {
			s.t.Errorf("got %+v, want the end", e)
		}
	case <-time.After(patience):
		s.t.Error("the stream did not end")
	}
}

// say makes events with these messages, of kind a and the site home but for what
// a message such as "site=away kind=app_imported text" says.
func (w *world) say(messages ...string) {
	w.t.Helper()
	for _, m := range messages {
		e := fleet.Event{Kind: "inventory", Site: "home", Message: m}
		for _, f := range strings.Fields(m) {
			switch name, value, _ := strings.Cut(f, "="); name {
			case "kind":
				e.Kind = value
			case "node":
				e.Node = "gw-1"
			case "deployment":
				e.Deployment = "d"
			case "away":
				e.Site = "away"
			}
		}
		if err := w.store.AddEvent(w.t.Context(), e); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestStreamIsLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.say("before")
	s := w.open("", "")
	diff(t, "content type", "text/event-stream", s.header.Get("Content-Type"))
	diff(t, "cache", "no-store", s.header.Get("Cache-Control"))
	for i := range 3 {
		w.say(fmt.Sprint(i)) // one at a time: each must come without the next
		got, _ := s.next(1)
		diff(t, "event", []string{fmt.Sprint(i)}, got)
	}
	// The message may hold lines; the event stays one.
	w.say("two\nlines\n\nid: 7")
	got, _ := s.next(1)
	diff(t, "event", []string{"two\nlines\n\nid: 7"}, got)
}

func TestStreamResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	s := w.open("", "")
	w.say("1", "2", "3")
	got, last := s.next(2)
	diff(t, "first", []string{"1", "2"}, got)
	s.close()
	w.say("4", "5")
	id := strconv.FormatInt(last, 10)
	again := w.open("", id)
	w.say("6")
	got, _ = again.next(4)
	diff(t, "no gap and no repeat", []string{"3", "4", "5", "6"}, got)
	for name, s := range map[string]*stream{"after": w.open("?after="+id, ""), "the header wins": w.open("?after=1000", id), "begin": w.open("?after=0", "")} {
		want := []string{"3", "4", "5", "6"}
		if name == "begin" {
			want = []string{"1", "2", "3", "4", "5", "6"}
		}
		got, _ = s.next(len(want))
		diff(t, name, want, got)
	}
	for _, bad := range []string{"x", "-1", "99999999999999999999"} {
		w.do(http.MethodGet, "/api/v1/events", nil, "Accept", "text/event-stream", "Last-Event-ID", bad).
			fails(http.StatusUnprocessableEntity, "event id "+strconv.Quote(bad)+": want a number")
	}
}

// More events than one query fetches come whole and in order, though nothing new
// happens meanwhile: this API is never notified of any change.
func TestStreamOfManyEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	var want []string
	for i := range 1101 {
		want = append(want, fmt.Sprint(i))
	}
	w.say(want...)
	still := httptest.NewServer(api.New(api.Options{Events: w.store}))
	t.Cleanup(still.Close)
	w.url = still.URL
	got, _ := w.open("?after=0", "").next(len(want))
	diff(t, "events", want, got)
}

func TestStreamFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	all := []string{"kind=inventory 1", "kind=app_imported 2", "away 3", "node 4", "deployment 5", "kind=git_reachable 6"}
	streams := map[string]*stream{}
	for query := range map[string]bool{"": true, "?kind=app_imported": true, "?kind=app_imported,git_reachable": true, "?kind=app_imported&kind=git_reachable": true, "?site=away": true, "?site=home&node=gw-1": true, "?site=home&deployment=d": true} {
		streams[query] = w.open(query, "")
	}
	w.say(all...)
	w.say("kind=app_imported away node deployment end") // each filter but two lets this through
	for query, want := range map[string][]string{
		"":                                      all,
		"?kind=app_imported":                    {all[1]},
		"?kind=app_imported,git_reachable":      {all[1], all[5]},
		"?kind=app_imported&kind=git_reachable": {all[1], all[5]},
		"?site=away":                            {all[2]},
		"?site=home&node=gw-1":                  {all[3]},
		"?site=home&deployment=d":               {all[4]},
	} {
		if !strings.Contains(query, "home") {
			want = append(want[:len(want):len(want)], "kind=app_imported away node deployment end")
		}
		got, _ := streams[query].next(len(want))
		diff(t, query, want, got)
	}
}

func TestStreamEndsWithTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	one, two := w.open("", ""), w.open("?site=home", "")
	w.say("1")
	one.next(1)
	two.next(1)
	w.endFeed()
	one.ended()
	two.ended()
	w.open("", "").ended() // one that comes too late ends at once
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.server.Config.Shutdown(ctx); err != nil {
		t.Errorf("streams keep the server: %v", err)
	}
}

// A client that goes away ends its stream in the server as well: only then can
// the server close without the feed's end.
func TestStreamEndsWithTheClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	s := w.open("", "")
	w.say("1")
	s.next(1)
	s.close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.server.Config.Shutdown(ctx); err != nil {
		t.Errorf("the stream stays: %v", err)
	}
}

// A client that does not read gets nothing more once the buffers of its
// connection are full; the others get everything, at once.
func TestSlowReaderHurtsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	slow, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(slow, "GET /api/v1/events HTTP/1.1\r\nHost: co\r\nAccept: text/event-stream\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReaderSize(slow, 16).ReadString('\n'); err != nil { // the status line, and no more
		t.Fatal(err)
	}
	quick := w.open("", "")
	long := strings.Repeat("x", 64<<10)
	for i := range 200 { // 12 MiB, more than the kernel holds for a connection
		w.say(long + fmt.Sprint(i))
		if got, _ := quick.next(1); got[0] != long+fmt.Sprint(i) {
			t.Fatalf("event %d did not come", i)
		}
	}
	late := w.open("?after=0", "")
	if got, _ := late.next(200); len(got) != 200 {
		t.Errorf("got %d events", len(got))
	}
	w.get("/api/v1/sites").into(http.StatusOK, nil)
}

// While the database is away a stream waits; then it goes on without a gap.
func TestStreamOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	own := pgtest.NewOwn(t)
	w := newWorld(t, withoutLoop, databaseAt(own.URL()))
	s := w.open("", "")
	w.say("1")
	s.next(1)
	own.Stop()
	own.Start()
	w.eventually(func() bool {
		return w.store.AddEvent(t.Context(), fleet.Event{Kind: "inventory", Message: "2"}) == nil
	})
	got, _ := s.next(1)
	diff(t, "after the outage", []string{"2"}, got)
}

var errPipe = errors.New("the client went away")

// deaf is a client whose connection cannot be written to.
type deaf struct {
	header    http.Header
	deadlines chan time.Time
}

func (d deaf) Header() http.Header     { return d.header }
func (deaf) WriteHeader(int)           {}
func (deaf) Write([]byte) (int, error) { return 0, errPipe }
func (d deaf) SetWriteDeadline(t time.Time) error {
	d.deadlines <- t
	return nil
}

func TestStreamEndsWhenItCannotWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	client := deaf{http.Header{}, make(chan time.Time, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.server.Config.Handler.ServeHTTP(client, r)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
	// Each write is bounded, so that a client that does not read is let go.
	if wait := time.Until(<-client.deadlines); wait <= 0 || wait > 10*time.Second {
		t.Errorf("the write was bounded to %s", wait)
	}
}
