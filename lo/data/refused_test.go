package data

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
)

// TestRefusedIsNotRestored has the queue refuse a retained message that the store has, and
// cannot take back because another topic has its room by then: whatever the sender was
// answered, the store says the same after a restart, and in the end so does the CO.
func TestRefusedIsNotRestored(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{"a message": "new", "a deletion": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := []protocol.DataRule{{Name: "r", Topics: []string{"#"}}}
			dir := t.TempDir()
			options := Options{
				Site: "s1", Dir: dir, Gate: pace.New(pace.Options{}), Logger: slog.New(slog.DiscardHandler),
				Begin: func(context.Context, string, []byte) (func(context.Context) error, error) {
					return nil, protocol.Errorf(protocol.Unavailable, "no link")
				},
				Rules: func() ([]protocol.DataRule, bool) { return rules, true }, Fail: func(error) {}, // the uplink of a closed queue
				RetainedBytes: 400,
			}
			d, err := Open(options)
			if err != nil {
				t.Fatal(err)
			}
			d.Reconcile(t.Context())
			retain(t, d, "x", string(make([]byte, 200)))
			l := d.streams["r"]
			l.mu.Lock() // holds up the message between the store and the queue
			m := message("x", payload)
			m.Retain = true
			accepted := make(chan error)
			go func() { accepted <- d.Accept(t.Context(), "", m) }()
			for {
				held, ok := d.retained.Get(m.Topic)
				if !ok || len(held.Data.Payload) < 100 {
					break
				}
				runtime.Gosched()
			}
			other := retained.Message{Topic: message("y", "").Topic, Data: protocol.DataMessage{V: protocol.Version, Payload: make([]byte, 150), Retain: true}}
			if _, err := d.retained.Put(other); err != nil {
				t.Fatal(err)
			}
			if err := l.queue.Close(); err != nil {
				t.Fatal(err)
			}
			l.mu.Unlock()
			err = <-accepted
			want := map[string]string{"x": string(make([]byte, 200)), "y": string(other.Data.Payload)}
			if err == nil {
				want["x"] = payload
				if payload == "" {
					delete(want, "x")
				}
			}
			_ = d.Close() // its queue is closed

			d = newForwarder(t, dir, rules...)
			got := map[string]string{}
			for _, m := range d.Retained().All() {
				got[filepath.Base(m.Topic)] = string(m.Data.Payload)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the sender got %v; after a restart the site has (-want +got):\n%s", err, diff)
			}
			d.Connected(true)
			d.Reconcile(t.Context())
			if diff := cmp.Diff(want, mirror(t, queued(t, d, "r"))); diff != "" {
				t.Errorf("the sender got %v; the CO would hold (-want +got):\n%s", err, diff)
			}
		})
	}
}
