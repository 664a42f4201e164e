package stream_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

type sent struct {
	through uint64
	bytes   int
}

func (s sent) Through() uint64 { return s.through }
func (s sent) Bytes() int      { return s.bytes }

func TestWindow(t *testing.T) {
	t.Parallel()
	var w stream.Window[sent]
	want := func(what string, length, bytes int) {
		t.Helper()
		if w.Len() != length {
			t.Errorf("%s: %d batches in flight, want %d", what, w.Len(), length)
		}
		if w.Bytes() != bytes {
			t.Errorf("%s: %d bytes in flight, want %d", what, w.Bytes(), bytes)
		}
	}
	want("empty", 0, 0)
	for i := range 4 {
		w.Add(sent{uint64(10 * (i + 1)), i + 1})
	}
	want("four batches", 4, 10)
	if done := w.Acknowledge(9); len(done) != 0 {
		t.Errorf("an ack within the first batch ends %v, want nothing", done)
	}
	done := w.Acknowledge(29)
	equal := cmp.AllowUnexported(sent{})
	if diff := cmp.Diff([]sent{{10, 1}, {20, 2}}, done, equal); diff != "" {
		t.Errorf("acknowledged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]sent{{30, 3}, {40, 4}}, w.Batches(), equal); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
	want("two acknowledged", 2, 7)
	w.Clear()
	want("given up", 0, 0)
}

// TestRefusal has a receiver answer with another epoch.
func TestRefusal(t *testing.T) {
	t.Parallel()
	var r stream.Refusal
	start := time.Unix(1_700_000_000, 0)
	for i, step := range []struct {
		epoch string
		at    time.Duration
		want  bool
	}{
		{"old", 0, false},
		{"old", 10 * time.Second, false},
		{"own", 11 * time.Second, false},
		{"old", 12 * time.Second, false},
		{"", 20 * time.Second, false},
		{"old", 30 * time.Second, false},
		{"old", 41 * time.Second, true},
	} {
		if got := r.Answer("own", protocol.Ack{Epoch: step.epoch}, start.Add(step.at), 10*time.Second); got != step.want {
			t.Errorf("answer %d, of epoch %q after %v: refused is %v, want %v", i+1, step.epoch, step.at, got, step.want)
		}
	}
	r.Clear()
	if r.Answer("own", protocol.Ack{Epoch: "old"}, start.Add(time.Hour), 10*time.Second) {
		t.Error("the first answer after Clear is a refusal")
	}
	if r.Answer("own", protocol.Ack{Epoch: "old", Retired: "earlier"}, start.Add(time.Hour), 10*time.Second) {
		t.Error("an answer that names another epoch as retired is a refusal")
	}
	if !r.Answer("own", protocol.Ack{Epoch: "old", Retired: "own"}, start.Add(time.Hour), 10*time.Second) {
		t.Error("an answer that names this epoch as retired is no refusal")
	}
}
