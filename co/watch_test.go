package co_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestRulesDataAndLink follows the rules of a site from a call to the site, its data
// to a stream, and a question about its queues to the site and back.
func TestRulesDataAndLink(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.publish(topic.SiteOnline, protocol.Presence{V: 1, Online: true, Session: "1"}, true)
	b.call(http.MethodPut, "/api/v1/sites/plant/data-rules", map[string]any{"rules": []map[string]any{
		{"name": "temps", "direction": "up", "topics": []string{"line1/#"}, "store": map[string]any{"keep": "1d"}},
		{"name": "live", "direction": "up", "topics": []string{"#"}, "remote": "x/"},
	}}, nil)
	var desired protocol.SiteDesired
	for len(desired.Data) == 0 {
		desired = protocol.SiteDesired{}
		if err := protocol.Unmarshal(b.next(topic.SiteDesired).Payload, &desired); err != nil {
			t.Fatal(err)
		}
	}
	if len(desired.Data) != 2 || desired.Data[0].Name != "temps" || desired.Data[1].Remote != "x/" {
		t.Fatalf("the site is sent %+v", desired.Data)
	}

	stream := b.tail("/api/v1/sites/plant/data/stream")
	b.data(1, dataEvent(protocol.DataMessage{Topic: "line1/temp", Payload: []byte("20.5"), QoS: 1}))
	if m := b.message(stream); m.Topic != "line1/temp" || m.Payload == nil || *m.Payload != "20.5" || m.Rule != "temps" || m.Received == nil {
		t.Errorf("the stream has %+v", m)
	}
	e := dataEvent(protocol.DataMessage{Topic: "x/1", Payload: []byte("now")})
	b.publish(topic.Up, protocol.Batch{V: 1, Epoch: "l", First: 1, Count: 1, Stream: "data/live", Events: protocol.Marshal(e)}, false)
	if m := b.message(stream); m.Topic != "x/1" || m.Rule != "live" || m.Received != nil {
		t.Errorf("the stream has %+v", m)
	}
	var history sitedata.Messages
	b.call(http.MethodGet, "/api/v1/sites/plant/data", nil, &history)
	if len(history.Items) != 1 || history.Items[0].Topic != "line1/temp" {
		t.Errorf("stored are %+v", history.Items)
	}

	var link sitedata.Link
	asked := make(chan error, 1)
	go func() { asked <- b.get("/api/v1/sites/plant/link?refresh=true", &link) }()
	b.answer()
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	if link.Refreshed == nil || !*link.Refreshed || !link.Online {
		t.Errorf("refreshed %v, online %t", link.Refreshed, link.Online)
	}
	if len(link.Up) != 3 {
		t.Fatalf("%d streams, want 3: %+v", len(link.Up), link.Up)
	}
	if link.Up[1].Queued != 41 {
		t.Errorf("%d messages wait in the second stream, want 41", link.Up[1].Queued)
	}
	if link.Up[2].Rule != "live" {
		t.Errorf("the third stream is of rule %q, want live", link.Up[2].Rule)
	}
}

// get asks the API; unlike call it may run on any goroutine.
func (b *bench) get(path string, out any) error {
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+path, nil)
	if err != nil {
		return err
	}
	req.Close = true // so that no connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

// answer waits for the request to report the streams, and reports them.
func (b *bench) answer() {
	var ack protocol.Ack
	for !ack.Ask {
		if err := protocol.Unmarshal(b.next(topic.Ack).Payload, &ack); err != nil {
			b.t.Fatal(err)
		}
	}
	for stream, epoch := range map[string]string{"": "e", "data/temps": "e", "data/live": "l"} {
		b.publish(topic.Up, protocol.Batch{V: 1, Epoch: epoch, First: 2, Stream: stream, Backlog: protocol.Backlog{Last: 42}}, false)
	}
}

// tail opens a stream of the API, and returns once it has begun.
func (b *bench) tail(path string) *bufio.Scanner {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	cut := time.AfterFunc(20*time.Second, func() { _ = resp.Body.Close() })
	b.t.Cleanup(func() {
		cut.Stop()
		_ = resp.Body.Close()
	})
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && lines.Text() != "event: begin" {
	}
	return lines
}

// message returns the next message of a stream.
func (b *bench) message(lines *bufio.Scanner) (m sitedata.DataMessage) {
	b.t.Helper()
	for lines.Scan() {
		if lines.Text() != "event: message" || !lines.Scan() {
			continue
		}
		if err := json.Unmarshal([]byte(lines.Text()[len("data: "):]), &m); err != nil {
			b.t.Fatalf("%q: %v", lines.Text(), err)
		}
		return m
	}
	b.t.Fatalf("the stream ended: %v", lines.Err())
	return m
}
