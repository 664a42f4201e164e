package uplink

import (
	"bytes"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestGlance(t *testing.T) {
	t.Parallel()
	for _, e := range []protocol.Event{
		{Kind: protocol.Superseded},
		{UnixMillis: 1_700_000_000_000, Kind: protocol.DataLost, Body: protocol.Marshal(protocol.Loss{V: 1, Class: "age", Records: 5})},
		{UnixMillis: 7, Kind: protocol.DataEvent, Node: "n", Body: protocol.Marshal(protocol.DataMessage{V: 1, Topic: "t", ExpiryMillis: 70_000})},
		{UnixMillis: 7, Kind: protocol.DataEvent, Body: protocol.Marshal(protocol.DataMessage{
			V: 1, Topic: "t", Payload: make([]byte, 300), QoS: 1, Retain: true, ExpiryMillis: 1, ContentType: "a", CorrelationData: []byte{1}, Properties: []string{"a", "b"},
		})},
	} {
		var want protocol.DataMessage
		if e.Kind == protocol.DataEvent {
			if err := protocol.Unmarshal(e.Body, &want); err != nil {
				t.Fatal(err)
			}
		}
		g, ok := glance(protocol.Marshal(e))
		if !ok || g.millis != e.UnixMillis || string(g.kind) != string(e.Kind) || g.expiry != want.ExpiryMillis || g.retain != want.Retain {
			t.Errorf("%+v reads as %+v, %v", e, g, ok)
		}
	}
}

// A list of what is retained brings what came long before the rule's bound of age:
// as expired, the receiver would delete it.
func TestRetainedDoesNotAge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		retain bool
		expiry uint64
		want   bool
	}{{false, 0, true}, {true, 0, false}, {true, 5_000, true}, {true, 50_000, false}} {
		m := protocol.DataMessage{V: 1, Topic: "t", Payload: []byte("1"), Retain: tt.retain, ExpiryMillis: tt.expiry}
		g, _ := glance(protocol.Marshal(protocol.Event{UnixMillis: 1, Kind: protocol.DataEvent, Body: protocol.Marshal(m)}))
		if got := g.expired(10_001, 1_000); got != tt.want {
			t.Errorf("%+v ten seconds later: expired %t", m, got)
		}
	}
}

// FuzzGlance compares it with the decoder, and looks for panics.
func FuzzGlance(f *testing.F) {
	f.Add(telemetry(1))
	f.Add(protocol.Marshal(protocol.Event{UnixMillis: 5, Kind: protocol.DataEvent, Body: protocol.Marshal(protocol.DataMessage{V: 1, Topic: "t", ExpiryMillis: 9})}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, ok := glance(b)
		var e protocol.Event
		if protocol.Unmarshal(b, &e) != nil || !bytes.Equal(protocol.Marshal(e), b) {
			return // not what is in a journal
		}
		if !ok || g.millis != max(0, e.UnixMillis) || string(g.kind) != string(e.Kind) {
			t.Errorf("%x reads as %+v, %v; it is %+v", b, g, ok, e)
		}
		var m protocol.DataMessage
		if e.Kind == protocol.DataEvent && protocol.Unmarshal(e.Body, &m) == nil && bytes.Equal(protocol.Marshal(m), e.Body) && g.expiry != m.ExpiryMillis {
			t.Errorf("expiry %d, want %d", g.expiry, m.ExpiryMillis)
		}
	})
}
