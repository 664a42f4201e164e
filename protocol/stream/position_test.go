package stream_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// TestFollow takes batches at a lane that has committed five events of epoch b, and
// gave up epoch a.
func TestFollow(t *testing.T) {
	t.Parallel()
	at := stream.Position{Epoch: "b", Seq: 5, Retired: []string{"a"}}
	for name, tc := range map[string]struct {
		epoch          string
		first, trimmed uint64
		n              int
		want           stream.Advance
		then           stream.Position
	}{
		"no events":               {"b", 6, 0, 0, stream.Advance{}, at},
		"no epoch":                {"", 6, 0, 2, stream.Advance{LeftOut: 2}, at},
		"next":                    {"b", 6, 0, 2, stream.Advance{Fresh: 2}, stream.Position{Epoch: "b", Seq: 7, Retired: at.Retired}},
		"again":                   {"b", 4, 0, 2, stream.Advance{}, at},
		"partly again":            {"b", 4, 0, 3, stream.Advance{Fresh: 1}, stream.Position{Epoch: "b", Seq: 6, Retired: at.Retired}},
		"too early":               {"b", 7, 0, 2, stream.Advance{LeftOut: 2}, at},
		"sequence 0":              {"b", 0, 0, 9, stream.Advance{LeftOut: 9}, at},
		"loss":                    {"b", 9, 8, 1, stream.Advance{Fresh: 1, Gap: &stream.Gap{Lost: 3}}, stream.Position{Epoch: "b", Seq: 9, Retired: at.Retired}},
		"loss, not the beginning": {"b", 10, 8, 1, stream.Advance{LeftOut: 1}, at},
		"given up":                {"a", 1, 0, 1, stream.Advance{LeftOut: 1}, at},
		"new epoch": {
			"c", 3, 2, 2,
			stream.Advance{Fresh: 2, Gap: &stream.Gap{Lost: 2, NewEpoch: true, After: 5}},
			stream.Position{Epoch: "c", Seq: 4, Retired: []string{"a", "b"}},
		},
		"new epoch, not its beginning": {"c", 3, 1, 2, stream.Advance{LeftOut: 2}, at},
	} {
		p := at
		p.Retired = append([]string(nil), at.Retired...)
		got := p.Follow(protocol.Batch{Epoch: tc.epoch, First: tc.first, Trimmed: tc.trimmed}, tc.n)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(tc.then, p); diff != "" {
			t.Errorf("%s: position: %s", name, diff)
		}
	}
}

// TestRetiredIsBounded gives up more epochs than are remembered: the oldest are
// forgotten.
func TestRetiredIsBounded(t *testing.T) {
	t.Parallel()
	var p stream.Position
	for i := range 100 {
		p.Follow(protocol.Batch{Epoch: fmt.Sprint(i), First: 1}, 1)
	}
	if len(p.Retired) != 64 || p.Retired[63] != "98" || p.Retired[0] != "35" {
		t.Errorf("%d are remembered: %v", len(p.Retired), p.Retired)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	got := stream.Number(make([]protocol.Event, 5), 3, 9)
	if diff := cmp.Diff([]protocol.Event{{Seq: 7}, {Seq: 8}, {Seq: 9}}, got); diff != "" {
		t.Error(diff)
	}
}
