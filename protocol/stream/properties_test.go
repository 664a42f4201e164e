package stream_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
	got = stream.Stamp{Time: time.UnixMilli(1_700_000_000_123), Unsynced: true, Stream: "data/temps", Seq: 7}.Properties(nil)
	want = []string{"colony-time", "2023-11-14T22:13:20.123Z", "colony-time-unsynced", "true", "colony-stream", "data/temps", "colony-seq", "7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("properties of a message whose clock was not synchronised (-want +got):\n%s", diff)
	}
	got = stream.Stamp{Stream: "data/temps", Seq: 1}.Properties(nil)
	if diff := cmp.Diff([]string{"colony-stream", "data/temps", "colony-seq", "1"}, got); diff != "" {
		t.Errorf("properties of a message without a time (-want +got):\n%s", diff)
	}
}

// The mark is as it is said, whatever the publisher set, and leaves other properties alone.
func TestMarkUnsynced(t *testing.T) {
	t.Parallel()
	const mark = stream.UnsyncedProperty
	for _, tt := range []struct{ own, rest []string }{
		{nil, nil},
		{[]string{"a", "b"}, []string{"a", "b"}},
		{[]string{mark, "true"}, nil},
		{[]string{"a", "b", mark, "no", "c", "d", mark, "true", "a", "b", "odd"}, []string{"a", "b", "c", "d", "a", "b"}},
	} {
		for _, unsynced := range []bool{true, false} {
			before := append([]string(nil), tt.own...)
			stored := stream.MarkUnsynced(tt.own, unsynced)
			marked, rest := stream.Unsynced(stored)
			if marked != unsynced || !cmp.Equal(rest, tt.rest, cmpopts.EquateEmpty()) {
				t.Errorf("%q marked %t: stored as %q, read as %t and %q", before, unsynced, stored, marked, rest)
			}
			if !cmp.Equal(before, tt.own) {
				t.Errorf("%q became %q", before, tt.own)
			}
		}
	}
}
