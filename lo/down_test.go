package lo

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/protocol"
)

// TestDownMessage checks the user properties of a message for the site: a client of
// the CO cannot set those that only Colony sets.
func TestDownMessage(t *testing.T) {
	t.Parallel()
	got := downMessage(downlink.Delivery{
		DataMessage: protocol.DataMessage{V: 1, Topic: "plc/set", Properties: []string{"unit", "C", "colony-seq", "9", "unit", "F"}},
		Stream:      "data/set", Seq: 3, AcceptedMillis: 1_700_000_000_123,
	})
	want := []broker.Property{
		{Key: "colony-time", Value: "2023-11-14T22:13:20.123Z"},
		{Key: "colony-stream", Value: "data/set"},
		{Key: "colony-seq", Value: "3"},
		{Key: "unit", Value: "C"},
		{Key: "unit", Value: "F"},
	}
	if diff := cmp.Diff(want, got.Properties); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
}
