package stream_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol/stream"
)

func TestStamp(t *testing.T) {
	t.Parallel()
	own := []string{"unit", "C", "colony-time", "a lie", "unit", "F", "odd"}
	got := stream.Stamp{Time: time.UnixMilli(1_700_000_000_123), Stream: "data/temps", Seq: 7}.Properties(own)
	want := []string{"colony-time", "2023-11-14T22:13:20.123Z", "colony-stream", "data/temps", "colony-seq", "7", "unit", "C", "unit", "F"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
	got = stream.Stamp{Stream: "data/temps", Seq: 1}.Properties(nil)
	if diff := cmp.Diff([]string{"colony-stream", "data/temps", "colony-seq", "1"}, got); diff != "" {
		t.Errorf("properties of a message without a time (-want +got):\n%s", diff)
	}
}
