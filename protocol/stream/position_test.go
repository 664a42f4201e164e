package stream_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/stream/streamtest"
)

// TestFollow plays the table of arrivals that every receiver of a stream must pass
// against the position itself.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, c := range streamtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var p stream.Position
			c.Play(t, streamtest.Receiver{Receive: func(_ *testing.T, b protocol.Batch, n int) (protocol.Ack, []uint64) {
				a := p.Follow(b, n)
				if a.Fresh+a.LeftOut > n {
					t.Errorf("%d fresh and %d left out of %d", a.Fresh, a.LeftOut, n)
				}
				var fresh []uint64
				for _, e := range stream.Number(make([]protocol.Event, n), a.Fresh, p.Seq) {
					fresh = append(fresh, e.Seq)
				}
				return p.Ack(b), fresh
			}})
		})
	}
}

// TestGap checks what a batch declares as lost, at a receiver that has five events of
// epoch b.
func TestGap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		at   stream.Position
		b    protocol.Batch
		want *stream.Gap
	}{
		"next":              {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "b", First: 6}, nil},
		"loss":              {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "b", First: 9, Trimmed: 8}, &stream.Gap{Lost: 3}},
		"new stream":        {stream.Position{}, protocol.Batch{Epoch: "b", First: 1}, nil},
		"new stream, later": {stream.Position{}, protocol.Batch{Epoch: "b", First: 3, Trimmed: 2}, &stream.Gap{Lost: 2}},
		"new epoch":         {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "c", First: 3, Trimmed: 2}, &stream.Gap{Lost: 2, AtMost: true, NewEpoch: true, After: 5}},
		"of another epoch":  {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "c", First: 3, Trimmed: 2, Previous: protocol.PreviousEpoch{Epoch: "a", Through: 9}}, &stream.Gap{Lost: 2, AtMost: true, NewEpoch: true, After: 5}},
		"of what it has":    {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "c", First: 3, Trimmed: 2, Previous: protocol.PreviousEpoch{Epoch: "b", Through: 9}}, &stream.Gap{NewEpoch: true, After: 9}},
		"less than it has":  {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "c", First: 3, Trimmed: 2, Previous: protocol.PreviousEpoch{Epoch: "b", Through: 4}}, &stream.Gap{NewEpoch: true, After: 5}},
		"more was trimmed":  {stream.Position{Epoch: "b", Seq: 5}, protocol.Batch{Epoch: "c", First: 9, Trimmed: 8, Previous: protocol.PreviousEpoch{Epoch: "b", Through: 9}}, &stream.Gap{Lost: 3, NewEpoch: true, After: 9}},
	} {
		if diff := cmp.Diff(tc.want, tc.at.Follow(tc.b, 1).Gap); diff != "" {
			t.Errorf("%s: gap (-want +got):\n%s", name, diff)
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
	var want []string
	for i := 35; i < 99; i++ {
		want = append(want, fmt.Sprint(i))
	}
	if diff := cmp.Diff(want, p.Retired); diff != "" {
		t.Errorf("retired epochs (-want +got):\n%s", diff)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	got := stream.Number(make([]protocol.Event, 5), 3, 9)
	if diff := cmp.Diff([]protocol.Event{{Seq: 7}, {Seq: 8}, {Seq: 9}}, got); diff != "" {
		t.Error(diff)
	}
}
