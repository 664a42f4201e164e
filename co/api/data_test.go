package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	protocolstream "github.com/colonyfleet/colony/protocol/stream"
)

const (
	rulesURL = "/api/v1/sites/home/data-rules"
	dataURL  = "/api/v1/sites/home/data"
	siteFile = "apiVersion: colony/v1\nkind: Site\nmetadata: {id: home}\nspec:\n  data:\n    rules:\n" +
		"      - {name: a, direction: up, topics: [a/#], store: {}} # kept\n      - {name: b, direction: up, topics: [b/#]}\n"
)

func TestDataRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	var none, first, second sitedata.DataRules
	a := w.get(rulesURL).into(http.StatusOK, &none)
	diff(t, "without a file", sitedata.DataRules{Site: "home", Rules: none.Rules}, none)
	if len(none.Rules) != 0 || a.header.Get("ETag") != "" {
		t.Errorf("%+v, ETag %q", none, a.header.Get("ETag"))
	}
	w.do(http.MethodPut, rulesURL, map[string]any{"rules": []map[string]any{}}, "If-Match", `"x"`).fails(http.StatusPreconditionFailed, "read them again")

	a = w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, &first)
	if first.Document != siteFile || len(first.Rules) != 2 || first.Rules[0].Name != "a" || a.header.Get("ETag") != `"`+first.Commit+`"` {
		t.Errorf("%+v, ETag %q", first, a.header.Get("ETag"))
	}
	diff(t, "read", first, func() (got sitedata.DataRules) { w.get(rulesURL).into(http.StatusOK, &got); return got }())
	w.eventually(func() bool {
		d, err := w.store.SiteData(t.Context(), "home")
		return err == nil && d.Commit == first.Commit && len(d.Rules) == 2 && d.Rules[0].Store
	})
	// The same again is no commit, and what was read can be written.
	w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, &second)
	diff(t, "the same again", first, second)
	a = w.do(http.MethodPut, rulesURL, map[string]any{"rules": first.Rules[:1]}, "If-Match", `"`+first.Commit+`"`).into(http.StatusOK, &second)
	if len(second.Rules) != 1 || second.Commit == first.Commit || strings.Contains(second.Document, "# kept") {
		t.Errorf("%+v", second)
	}
	w.do(http.MethodPut, rulesURL, map[string]any{"rules": first.Rules}, "If-Match", `"`+first.Commit+`"`).
		fails(http.StatusPreconditionFailed, "the data rules of site home were changed since you read them")
	w.do(http.MethodDelete, rulesURL, nil, "If-Match", `"`+first.Commit+`"`).fails(http.StatusPreconditionFailed, "read them again")
	w.do(http.MethodDelete, rulesURL, nil, "If-Match", a.header.Get("ETag")).into(http.StatusNoContent, nil)
	w.do(http.MethodDelete, rulesURL, nil).fails(http.StatusNotFound, "site home has no data rules")
	w.eventually(func() bool {
		d, err := w.store.SiteData(t.Context(), "home")
		return err == nil && d.Commit != first.Commit && len(d.Rules) == 0
	})
}

// TestMissingSiteFile removes the file of a site by hand: what it said is in force, is shown with what is wrong, and comes back
// with a change.
func TestMissingSiteFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	var first, held, back sitedata.DataRules
	w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, &first)
	rules := func() int {
		d, err := w.store.SiteData(t.Context(), "home")
		if err != nil {
			t.Fatal(err)
		}
		return len(d.Rules)
	}
	w.eventually(func() bool { return rules() == 2 })
	w.push("Remove the file", map[string][]byte{"sites/home/site.yaml": nil})
	w.get(rulesURL).into(http.StatusOK, &held)
	if len(held.Rules) != 2 || !strings.Contains(held.Problem, "is missing: the data rules and device accounts that it said last are in force") {
		t.Errorf("%+v", held)
	}
	w.do(http.MethodPut, "/api/v1/sites/home/exec", map[string]any{"allowed": true}).into(http.StatusNoContent, nil)
	w.get(rulesURL).into(http.StatusOK, &back)
	diff(t, "back with another change", first.Rules, back.Rules)
	allowed := func() bool {
		d, err := w.store.SiteData(t.Context(), "home")
		return err == nil && d.Exec
	}
	w.eventually(allowed)
	w.push("Remove the file", map[string][]byte{"sites/home/site.yaml": nil})
	var exec sitedata.Exec
	if w.get("/api/v1/sites/home/exec").into(http.StatusOK, &exec); !exec.Allowed || !strings.Contains(exec.Problem, "is missing") {
		t.Errorf("without the file: %+v", exec)
	}
	w.push("Spoil the file", map[string][]byte{"sites/home/site.yaml": []byte("spec: x\n")})
	if w.get("/api/v1/sites/home/exec").into(http.StatusOK, &exec); !exec.Allowed || exec.Problem == "" {
		t.Errorf("with a bad file: %+v", exec)
	}
	w.do(http.MethodPut, rulesURL, map[string]any{"rules": first.Rules}).into(http.StatusOK, nil)
	exec = sitedata.Exec{}
	if w.get("/api/v1/sites/home/exec").into(http.StatusOK, &exec); !exec.Allowed || exec.Problem != "" {
		t.Errorf("after a change of the rules: %+v", exec)
	}
	w.push("Spoil the file", map[string][]byte{"sites/home/site.yaml": []byte("spec: x\n")})
	w.do(http.MethodPut, "/api/v1/sites/home/exec", map[string]any{"allowed": false}).into(http.StatusNoContent, nil)
	exec = sitedata.Exec{}
	if w.get("/api/v1/sites/home/exec").into(http.StatusOK, &exec); exec.Allowed || exec.Problem != "" {
		t.Errorf("refused while the file is bad: %+v", exec)
	}
	w.get(rulesURL).into(http.StatusOK, &back)
	diff(t, "the rules after that", first.Rules, back.Rules)
	w.push("Remove the file", map[string][]byte{"sites/home/site.yaml": nil})
	w.get(rulesURL).into(http.StatusOK, &held)
	w.do(http.MethodDelete, rulesURL, nil).into(http.StatusNoContent, nil)
	w.eventually(func() bool { return rules() == 0 })
}

func TestDataRulesFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	rule := map[string]any{"name": "a", "direction": "up", "topics": []string{"a"}}
	with := func(key string, value any) map[string]any {
		m := map[string]any{key: value}
		for k, v := range rule {
			if k != key {
				m[k] = v
			}
		}
		return map[string]any{"rules": []map[string]any{rule, m}}
	}
	for name, tt := range map[string]struct {
		body any
		want []string
	}{
		"nothing":     {map[string]any{}, []string{"body: want either rules or document"}},
		"both":        {map[string]any{"rules": []any{}, "document": siteFile}, []string{"body: want either rules or document"}},
		"unknown key": {with("tll", "1d"), []string{"body.rules[1]", "unexpected property"}},
		"ttl":         {with("ttl", "soon"), []string{`body.rules[1].ttl: "soon": want a duration`}},
		"topics":      {with("topics", []string{"a#"}), []string{`body.rules[1].topics: "a#": a wildcard must be a whole level`, "body.rules[1].name: "}},
		"the file":    {map[string]any{"document": strings.Replace(siteFile, "up", "sideways", 1)}, []string{`body.document: line 7: spec.data.rules[0].direction: "sideways": want one of up, down`}},
		"other site":  {map[string]any{"document": strings.Replace(siteFile, "home", "away", 1)}, []string{"body.document: line 3: metadata.id: "}},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.do(http.MethodPut, rulesURL, tt.body)
			a.t = t
			a.fails(http.StatusUnprocessableEntity, tt.want...)
		})
	}
	for _, path := range []string{"/data-rules", "/link", "/data", "/data/stream"} {
		w.get("/api/v1/sites/none"+path).fails(http.StatusNotFound, `no site "none"`)
		w.get("/api/v1/sites/No%20ne"+path).fails(http.StatusUnprocessableEntity, "path.site: ")
	}
	w.do(http.MethodPut, "/api/v1/sites/none/data-rules", map[string]any{"document": strings.Replace(siteFile, "home", "none", 1)}).fails(http.StatusNotFound, "no site")
	w.do(http.MethodDelete, "/api/v1/sites/none/data-rules", nil).fails(http.StatusNotFound, "no site")
}

// TestBadSiteFile shows what was pushed by hand, beside the rules that hold.
func TestBadSiteFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, nil)
	w.eventually(func() bool {
		d, err := w.store.SiteData(t.Context(), "home")
		return err == nil && len(d.Rules) == 2
	})
	r := repo{w.repo}
	_, commit, err := r.File(t.Context(), "sites/home/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Put(t.Context(), "sites/home/site.yaml", []byte("rules: []"), commit, "by hand"); err != nil {
		t.Fatal(err)
	}
	var got sitedata.DataRules
	w.get(rulesURL).into(http.StatusOK, &got)
	if len(got.Rules) != 2 || got.Document != "rules: []" || !strings.Contains(got.Problem, "line 1: rules: unknown key; known here: apiVersion") {
		t.Errorf("%+v", got)
	}
	w.eventually(func() bool {
		events, err := w.store.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.DataRulesInvalid}})
		return err == nil && len(events) == 1 && strings.Contains(events[0].Message, "sites/home/site.yaml at commit "+got.Commit[:12]+": line 1: ")
	})
}

// rules records rules of the site home: a and c store, b does not; d goes down.
func (w *world) rules() {
	w.t.Helper()
	rule := func(name string, store, down bool) fleet.DataRule {
		return fleet.DataRule{DataRule: protocol.DataRule{Name: name, Topics: []string{name + "/#"}, Down: down}, Store: store}
	}
	data := fleet.SiteData{Commit: "c", Rules: []fleet.DataRule{rule("a", true, false), rule("b", false, false), rule("c", true, false), rule("d", false, true)}}
	if _, _, err := w.store.SaveDesired(w.t.Context(), "home", "c", nil, data); err != nil {
		w.t.Fatal(err)
	}
}

// data sends messages of a rule, "topic payload", through the CO as its ingest does.
func (w *world) data(rule string, backlog protocol.Backlog, messages ...string) {
	w.t.Helper()
	w.dataOf(rule, false, backlog, messages...)
}

// dataOf is data of a site whose clock is not synchronised, or is.
func (w *world) dataOf(rule string, unsynced bool, backlog protocol.Backlog, messages ...string) {
	w.t.Helper()
	stream := protocol.DataStream(rule)
	first := backlog.Last - uint64(len(messages)) + 1
	b := protocol.Batch{V: 1, Stream: stream, Epoch: "e", First: first, Count: uint32(len(messages)), Trimmed: first - 1, Backlog: backlog}
	var events []protocol.Event
	for i, m := range messages {
		topic, payload, _ := strings.Cut(m, " ")
		events = append(events, protocol.Event{
			Kind: protocol.DataEvent, UnixMillis: 1_700_000_000_000 + int64(first) + int64(i), Unsynced: unsynced,
			Body: protocol.Marshal(protocol.DataMessage{V: 1, Topic: topic, Payload: []byte(payload), QoS: 1, Properties: []string{"k", "v"}}),
		})
	}
	_, err := w.dataStore.CommitData(w.t.Context(), "home", b, events, func(_ context.Context, list []fleet.Delivery) error {
		w.hub.Deliver(list)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.hub.Committed("home")
}

func TestLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	var got sitedata.Link
	w.get("/api/v1/sites/home/link").into(http.StatusOK, &got)
	if len(got.Up) != 4 {
		t.Fatalf("%d streams, want 4: %+v", len(got.Up), got.Up)
	}
	if got.Up[0].Rule != "" || got.Up[1].Rule != "a" {
		t.Errorf("the first streams are of rules %q and %q, want that of the events, and a", got.Up[0].Rule, got.Up[1].Rule)
	}
	if got.Up[1].Reported != nil {
		t.Errorf("stream a was reported at %s, and nothing was reported", got.Up[1].Reported)
	}
	if got.Online || got.Refreshed != nil {
		t.Errorf("online %t, refreshed %v, of a site that never connected", got.Online, got.Refreshed)
	}
	w.data("a", protocol.Backlog{Last: 10, Bytes: 5000, OldestMillis: 60_000, Dropped: 3, Expired: 2, RTTMicros: 1500, BytesPerSecond: 8000}, "a/1 x")
	w.data("old", protocol.Backlog{Last: 1}, "x y")
	ignore := cmpopts.IgnoreFields(sitedata.Stream{}, "Reported", "OldestSeconds")
	// One batch of a stream whose first nine records were dropped.
	want := []sitedata.Stream{{Last: got.Up[0].Last, Committed: got.Up[0].Committed}, {
		Rule: "a", Bytes: 5000, Dropped: 3, Expired: 2, RTTSeconds: 0.0015, BytesPerSecond: 8000, Last: 10, Committed: 10,
	}, {Rule: "b"}, {Rule: "c"}, {Rule: "old", Removed: true, Last: 1, Committed: 1}}
	w.get("/api/v1/sites/home/link").into(http.StatusOK, &got)
	if d := cmp.Diff(want, got.Up, ignore); d != "" || got.Up[1].OldestSeconds != 0 {
		t.Errorf("oldest %v\n%s", got.Up[1].OldestSeconds, d)
	}
	// The site reports more than it has sent: a batch without events does.
	b := protocol.Batch{V: 1, Stream: "data/a", Epoch: "e", First: 11, Backlog: protocol.Backlog{Last: 25, OldestMillis: 60_000}}
	if _, err := w.dataStore.CommitData(t.Context(), "home", b, nil, nil); err != nil {
		t.Fatal(err)
	}
	w.get("/api/v1/sites/home/link").into(http.StatusOK, &got)
	if q := got.Up[1]; q.Queued != 15 || q.OldestSeconds < 60 || q.OldestSeconds > 120 || q.Reported == nil || time.Since(*q.Reported) > time.Minute {
		t.Errorf("%+v", q)
	}
	if err := w.dataStore.PutDown(t.Context(), []fleet.DownMessage{{Site: "home", Rule: protocol.DataRule{Name: "d", Down: true}, Message: protocol.DataMessage{V: 1, Topic: "d/1"}}}); err != nil {
		t.Fatal(err)
	}
	w.get("/api/v1/sites/home/link").into(http.StatusOK, &got)
	if len(got.Down) != 1 || got.Down[0].Rule != "d" || got.Down[0].Removed {
		t.Errorf("down: %+v", got.Down)
	}
}

func TestLinkRefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	var got sitedata.Link
	w.get("/api/v1/sites/home/link?refresh=true").into(http.StatusOK, &got)
	if got.Refreshed == nil || *got.Refreshed || w.asked.Load() != 0 {
		t.Errorf("a site that is offline: %+v, asked %d times", got, w.asked.Load())
	}
	if err := w.store.SetSitePresence(t.Context(), "home", protocol.Presence{Online: true, Session: "1"}); err != nil {
		t.Fatal(err)
	}
	w.ask = func() error {
		for _, stream := range []string{"", "data/a", "data/b", "data/c"} {
			b := protocol.Batch{V: 1, Stream: stream, Epoch: "e", First: 1, Backlog: protocol.Backlog{Last: 7}}
			var err error
			if stream == "" {
				_, err = w.store.CommitBatch(context.Background(), "home", b, nil)
			} else {
				_, err = w.dataStore.CommitData(context.Background(), "home", b, nil, nil)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	w.get("/api/v1/sites/home/link?refresh=true").into(http.StatusOK, &got)
	if got.Refreshed == nil || !*got.Refreshed || !got.Online || w.asked.Load() != 1 || got.Up[2].Queued != 7 {
		t.Errorf("%+v, asked %d times", got, w.asked.Load())
	}
	w.ask = func() error { return errors.New("the broker is away") }
	w.get("/api/v1/sites/home/link?refresh=true").into(http.StatusOK, &got)
	if *got.Refreshed {
		t.Error("it says that the site reported anew, and nobody was asked")
	}
}

// A message says where the clock of its time was not synchronised, as it is stored and as it is
// delivered.
func TestMessagesOfAWrongClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	watch := w.hub.Subscribe("home", 10, func(fleet.Delivery) bool { return true })
	defer watch.Close()
	w.dataOf("a", true, protocol.Backlog{Last: 1}, "a/1 1")
	w.dataOf("a", false, protocol.Backlog{Last: 2}, "a/1 2")
	var got sitedata.Messages
	w.get(dataURL).into(http.StatusOK, &got)
	if len(got.Items) != 2 || !got.Items[0].Unsynced || got.Items[1].Unsynced {
		t.Fatalf("messages %+v", got.Items)
	}
	for _, m := range got.Items {
		if len(m.Properties) != 1 || m.Properties[0].Name != "k" {
			t.Errorf("properties %+v, want those of the publisher alone", m.Properties)
		}
	}
	list, _ := watch.Next()
	for i, d := range list {
		if marked, _ := protocolstream.Unsynced(d.Message.Properties); marked != (i == 0) {
			t.Errorf("message %d is delivered as %q", i, d.Message.Properties)
		}
	}
	if len(list) != 2 {
		t.Errorf("%d deliveries, want 2", len(list))
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	w.data("a", protocol.Backlog{Last: 3}, "a/1 1", "a/2 2", "a/1 \xff3")
	w.data("b", protocol.Backlog{Last: 1}, "b/1 no")
	w.data("c", protocol.Backlog{Last: 2}, "c/1 4", "c/1 5")
	var got sitedata.Messages
	w.get(dataURL).into(http.StatusOK, &got)
	if len(got.Items) != 5 || got.Next != "" || got.Read == "" {
		t.Fatalf("%+v", got)
	}
	m := got.Items[2]
	if m.Topic != "a/1" || m.Rule != "a" || m.Payload != nil || string(m.PayloadBase64) != "\xff3" || m.Received == nil ||
		m.Time == nil || m.Time.UnixMilli() != 1_700_000_000_003 || m.QoS != 1 || len(m.Properties) != 1 || m.Properties[0] != (sitedata.UserProperty{Name: "k", Value: "v"}) {
		t.Errorf("%+v", m)
	}
	for query, want := range map[string]string{
		"":                     "1,2,b,4,5",
		"?topic=%2B/1":         "1,b,4,5",
		"?rule=c":              "4,5",
		"?newest=true&limit=2": "4,5",
		"?since=2020-01-01T00:00:00Z&until=2021-01-01T00:00:00%2B01:00": "",
	} {
		var list sitedata.Messages
		w.get(dataURL+query).into(http.StatusOK, &list)
		diff(t, query, want, payloads(list.Items))
	}
	var all []sitedata.DataMessage
	pages, next := 0, ""
	for more := true; more; more = next != "" {
		var page sitedata.Messages
		w.get(dataURL+"?limit=2&after="+next).into(http.StatusOK, &page)
		all = append(all, page.Items...)
		pages, next, got = pages+1, page.Next, page
	}
	diff(t, "by pages", "1,2,b,4,5", payloads(all))
	w.data("a", protocol.Backlog{Last: 4}, "a/9 6")
	w.get(dataURL+"?after="+got.Read).into(http.StatusOK, &got)
	diff(t, "what came since", "6", payloads(got.Items))
	w.get(dataURL+"?topic=a%23").fails(http.StatusUnprocessableEntity, "query.topic: ", "# the whole last one")
	w.get(dataURL+"?after=x").fails(http.StatusUnprocessableEntity, "query.after: ", "take it from the answer before")
	w.get(dataURL+"?since=yesterday").fails(http.StatusUnprocessableEntity, "query.since: ")
	w.get(dataURL+"?limit=0").fails(http.StatusUnprocessableEntity, "query.limit: ")
}

func payloads(list []sitedata.DataMessage) string {
	var all []string
	for _, m := range list {
		if m.Payload == nil {
			all = append(all, "b")
		} else {
			all = append(all, *m.Payload)
		}
	}
	return strings.Join(all, ",")
}

// A tail is a client of the stream of data.
type tail struct {
	t      *testing.T
	events chan [3]string // id, event, data; closed at the end
	close  func()
}

func (w *world) tail(query, lastEventID string) *tail {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+dataURL+"/stream"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	diff(w.t, "content type", "text/event-stream", resp.Header.Get("Content-Type"))
	s := &tail{t: w.t, events: make(chan [3]string), close: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer resp.Body.Close()
		defer close(s.events)
		lines := bufio.NewScanner(resp.Body)
		var e [3]string
		for lines.Scan() {
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "id":
				e[0] = value
			case "event":
				e[1] = value
			case "data":
				e[2] = value
			case "":
				if e[1] == "" {
					continue
				}
				select {
				case s.events <- e:
				case <-ctx.Done():
					return
				}
				e = [3]string{0: e[0]}
			}
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	if e := s.event(); e[1] != "begin" {
		w.t.Errorf("the stream begins with %q", e)
	}
	return s
}

func (s *tail) event() [3]string {
	s.t.Helper()
	select {
	case e, ok := <-s.events:
		if !ok {
			s.t.Fatal("the stream ended")
		}
		return e
	case <-time.After(patience):
		s.t.Fatal("nothing came in time")
	}
	return [3]string{}
}

// next returns the payloads of the next n messages, and the id of the last.
func (s *tail) next(n int) (got string, id string) {
	s.t.Helper()
	var all []sitedata.DataMessage
	for range n {
		e := s.event()
		var m sitedata.DataMessage
		if err := json.Unmarshal([]byte(e[2]), &m); err != nil || e[1] != "message" {
			s.t.Fatalf("%q: %v", e, err)
		}
		all, id = append(all, m), e[0]
	}
	return payloads(all), id
}

func TestTail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	w.data("a", protocol.Backlog{Last: 1}, "a/1 before")
	s := w.tail("", "")
	for i := range uint64(3) {
		w.data("a", protocol.Backlog{Last: 2 + i}, fmt.Sprintf("a/1 %d", i))
		got, _ := s.next(1)
		diff(t, "stored", fmt.Sprint(i), got)
		w.data("b", protocol.Backlog{Last: 1 + i}, fmt.Sprintf("b/1 live%d", i))
		got, _ = s.next(1)
		diff(t, "not stored", fmt.Sprintf("live%d", i), got)
	}
	since, _ := w.tail("?since=2020-01-01T00:00:00Z", "").next(4)
	diff(t, "since", "before,0,1,2", since)
	one := w.tail("?topic=%2B/2&rule=b", "")
	w.data("b", protocol.Backlog{Last: 5}, "b/1 no", "b/2 yes")
	got, _ := one.next(1)
	diff(t, "filtered", "yes", got)
	w.get(dataURL+"/stream?topic=a%23").fails(http.StatusUnprocessableEntity, "query.topic: ")
	w.do(http.MethodGet, dataURL+"/stream", nil, "Last-Event-ID", "!").fails(http.StatusUnprocessableEntity, "header.Last-Event-ID: ")
}

// TestTailResumes cuts a stream and goes on after its last message, and after its
// beginning.
func TestTailResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	w.rules()
	w.data("a", protocol.Backlog{Last: 1}, "a/1 old")
	s := w.tail("", "")
	w.data("a", protocol.Backlog{Last: 3}, "a/1 1", "a/1 2")
	w.data("c", protocol.Backlog{Last: 1}, "c/1 3")
	got, id := s.next(2)
	diff(t, "first", "1,2", got)
	s.close()
	w.data("c", protocol.Backlog{Last: 2}, "c/1 4")
	again := w.tail("", id)
	w.data("a", protocol.Backlog{Last: 4}, "a/1 5")
	got, _ = again.next(3)
	diff(t, "no gap and no repeat", "3,4,5", got)
}

func TestTailEndsWithTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withoutLoop)
	w.fleet()
	s := w.tail("", "")
	w.endFeed()
	select {
	case e, ok := <-s.events:
		if ok {
			t.Errorf("got %q", e)
		}
	case <-time.After(patience):
		t.Error("the stream did not end")
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet()
	const url = "/api/v1/sites/home/devices"
	list := func() (out sitedata.Devices) { w.get(url).into(http.StatusOK, &out); return out }
	if got := list(); got.Commit != "" || len(got.Devices) != 0 {
		t.Errorf("at first %+v", got)
	}
	w.do(http.MethodDelete, url+"/plc", nil).fails(http.StatusNotFound, `site home has no device account "plc"`)
	w.do(http.MethodPut, rulesURL, map[string]any{"document": siteFile}).into(http.StatusOK, nil)
	password := map[string]string{"sha256": strings.Repeat("ab", 32)}
	w.do(http.MethodPut, url+"/plc", map[string]any{"publish": []string{"a/#"}, "password": password}).into(http.StatusNoContent, nil)
	w.do(http.MethodPut, url+"/hmi", map[string]any{"clientIDs": []string{"HMI*"}, "subscribe": []string{"#"}, "password": password}).into(http.StatusNoContent, nil)
	w.do(http.MethodPut, url+"/hmi", map[string]any{"subscribe": []string{"b/#"}, "password": password}).into(http.StatusNoContent, nil)
	if got := list(); len(got.Devices) != 2 || got.Devices[0].User != "hmi" || got.Devices[0].ClientIDs != nil || got.Devices[0].Subscribe[0] != "b/#" {
		t.Errorf("%+v", got)
	}
	var rules sitedata.DataRules
	w.get(rulesURL).into(http.StatusOK, &rules)
	if len(rules.Rules) != 2 || !strings.Contains(rules.Document, "# kept") {
		t.Errorf("the rest of the file has changed:\n%s", rules.Document)
	}
	w.eventually(func() bool {
		m, err := w.store.LastDesired(t.Context(), "home")
		return err == nil && len(m.Devices) == 2 && m.Devices[1].User == "plc" && m.Devices[1].Publish[0] == "a/#"
	})
	// Rules are written and removed without the accounts.
	w.do(http.MethodPut, rulesURL, map[string]any{"rules": rules.Rules[:1]}).into(http.StatusOK, nil)
	w.do(http.MethodDelete, rulesURL, nil).into(http.StatusNoContent, nil)
	if got := list(); len(got.Devices) != 2 {
		t.Errorf("after the rules were removed: %+v", got)
	}
	w.do(http.MethodDelete, url+"/plc", nil).into(http.StatusNoContent, nil)
	if got := list(); len(got.Devices) != 1 {
		t.Errorf("%+v", got)
	}
	w.do(http.MethodPut, url+"/a@b", map[string]any{"password": password}).fails(http.StatusUnprocessableEntity, "which no user name of Colony's own is")
	w.do(http.MethodPut, "/api/v1/sites/none/devices/plc", map[string]any{"password": password}).fails(http.StatusNotFound, "no site")
	w.get("/api/v1/sites/none/devices").fails(http.StatusNotFound, "no site")
}
