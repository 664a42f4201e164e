// Package streamtest holds the arrivals of batches that every receiver of a stream must handle
// alike, independent of where it stores its position: the CO's for events and for machine data, and
// the LO's for machine data on its way down.
package streamtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// An Arrival is a batch, and where the receiver stands after it.
type Arrival struct {
	// Name says what the batch is at this moment.
	Name string
	// Epoch, First, Trimmed and the number of events, N, are the batch's. N is 0 for
	// one that asks.
	Epoch          string
	First, Trimmed uint64
	N              int
	// Previous is the batch's.
	Previous protocol.PreviousEpoch
	// Restart ends the receiver before the batch arrives and begins another one on
	// the same durable state.
	Restart bool

	// WantEpoch and WantSeq are what the Ack says.
	WantEpoch string
	WantSeq   uint64
	// Retired says that the Ack names Epoch as retired.
	Retired bool
	// Fresh is how many of the events are new to the receiver.
	Fresh int
}

// A Case is a number of arrivals at a receiver of which nothing is known.
type Case struct {
	Name     string
	Arrivals []Arrival
}

// A Receiver is one under test, of one stream.
type Receiver struct {
	// Receive hands in a batch of n events and returns the Ack, and the sequences of
	// the events that it delivered or stored. The batch has no Events and no Stream
	// yet.
	Receive func(t *testing.T, b protocol.Batch, n int) (protocol.Ack, []uint64)
	// Restart ends the receiver and begins another one; nil where its state is
	// durable with each Receive and in no process.
	Restart func(t *testing.T)
}

// Play plays the arrivals against a receiver that has received nothing.
func (c Case) Play(t *testing.T, r Receiver) {
	t.Helper()
	for i, a := range c.Arrivals {
		if a.Restart && r.Restart != nil {
			r.Restart(t)
		}
		b := protocol.Batch{V: protocol.Version, Epoch: a.Epoch, First: a.First, Count: uint32(a.N), Trimmed: a.Trimmed, Previous: a.Previous}
		ack, fresh := r.Receive(t, b, a.N)
		if ack.Epoch != a.WantEpoch {
			t.Errorf("arrival %d, %s: the ack's epoch is %q, want %q", i+1, a.Name, ack.Epoch, a.WantEpoch)
		}
		if ack.Seq != a.WantSeq {
			t.Errorf("arrival %d, %s: the ack's sequence is %d, want %d", i+1, a.Name, ack.Seq, a.WantSeq)
		}
		retired := ""
		if a.Retired {
			retired = a.Epoch
		}
		if ack.Retired != retired {
			t.Errorf("arrival %d, %s: the ack says that epoch %q is retired, want %q", i+1, a.Name, ack.Retired, retired)
		}
		var want []uint64
		for n := range a.Fresh {
			want = append(want, a.WantSeq-uint64(a.Fresh-1-n))
		}
		if !slices.Equal(fresh, want) {
			t.Errorf("arrival %d, %s: the sequences received are %v, want %v", i+1, a.Name, fresh, want)
		}
		if t.Failed() {
			return // what follows builds on it
		}
	}
}

// Cases returns the arrivals. A receiver that passes them follows the steps in the
// package comment of stream.
func Cases() []Case {
	return []Case{
		{"in order", []Arrival{
			{Name: "a question to a new stream", Epoch: "a"},
			{Name: "the first batch", Epoch: "a", First: 1, N: 2, WantEpoch: "a", WantSeq: 2, Fresh: 2},
			{Name: "the next", Epoch: "a", First: 3, N: 1, WantEpoch: "a", WantSeq: 3, Fresh: 1},
			{Name: "a question", Epoch: "a", WantEpoch: "a", WantSeq: 3},
			{Name: "a question of another epoch", Epoch: "b", WantEpoch: "a", WantSeq: 3},
			{Name: "after a restart", Epoch: "a", First: 4, N: 1, Restart: true, WantEpoch: "a", WantSeq: 4, Fresh: 1},
		}},
		{"copies and reordering", []Arrival{
			{Name: "the first batch", Epoch: "a", First: 1, N: 5, WantEpoch: "a", WantSeq: 5, Fresh: 5},
			{Name: "a copy", Epoch: "a", First: 4, N: 2, WantEpoch: "a", WantSeq: 5},
			{Name: "partly a copy", Epoch: "a", First: 4, N: 3, WantEpoch: "a", WantSeq: 6, Fresh: 1},
			{Name: "too early", Epoch: "a", First: 8, N: 2, WantEpoch: "a", WantSeq: 6},
			{Name: "a copy after a restart", Epoch: "a", First: 1, N: 6, Restart: true, WantEpoch: "a", WantSeq: 6},
		}},
		{"malformed", []Arrival{
			{Name: "no epoch", First: 1, N: 1},
			{Name: "an epoch that is too long", Epoch: strings.Repeat("e", stream.MaxEpoch+1), First: 1, N: 1},
			{Name: "a sequence that no sender reaches", Epoch: "a", First: 1<<64 - 1, Trimmed: 1<<64 - 2, N: 1},
			{Name: "the first batch", Epoch: "a", First: 1, N: 2, WantEpoch: "a", WantSeq: 2, Fresh: 2},
			{Name: "sequence 0", Epoch: "a", First: 0, N: 9, WantEpoch: "a", WantSeq: 2},
			{Name: "sequence 0 after everything", Epoch: "a", First: 0, Trimmed: 1<<64 - 1, N: 1, WantEpoch: "a", WantSeq: 2},
			{Name: "trimmed past what it holds", Epoch: "a", First: 3, Trimmed: 8, N: 2, WantEpoch: "a", WantSeq: 2},
			{Name: "the next", Epoch: "a", First: 3, N: 1, WantEpoch: "a", WantSeq: 3, Fresh: 1},
		}},
		{"declared loss", []Arrival{
			{Name: "a new stream that lost its beginning", Epoch: "a", First: 3, Trimmed: 2, N: 1, WantEpoch: "a", WantSeq: 3, Fresh: 1},
			{Name: "not the beginning of what is left", Epoch: "a", First: 8, Trimmed: 6, N: 1, WantEpoch: "a", WantSeq: 3},
			{Name: "the beginning", Epoch: "a", First: 7, Trimmed: 6, N: 1, WantEpoch: "a", WantSeq: 7, Fresh: 1},
			{Name: "its copy", Epoch: "a", First: 7, Trimmed: 6, N: 1, WantEpoch: "a", WantSeq: 7},
		}},
		{"a new epoch", []Arrival{
			{Name: "the first batch", Epoch: "a", First: 1, N: 5, WantEpoch: "a", WantSeq: 5, Fresh: 5},
			{Name: "of a new epoch, not its beginning", Epoch: "b", First: 3, Trimmed: 1, N: 1, WantEpoch: "a", WantSeq: 5},
			{Name: "its beginning", Epoch: "b", First: 3, Trimmed: 2, N: 2, WantEpoch: "b", WantSeq: 4, Fresh: 2},
			{Name: "the next", Epoch: "b", First: 5, Trimmed: 2, N: 1, WantEpoch: "b", WantSeq: 5, Fresh: 1},
		}},
		{"a new epoch that goes on with the numbers of the one before", []Arrival{
			{Name: "the first batch", Epoch: "a", First: 1, N: 5, WantEpoch: "a", WantSeq: 5, Fresh: 5},
			{Name: "of what it has", Epoch: "b", First: 3, Trimmed: 2, N: 2, Previous: protocol.PreviousEpoch{Epoch: "a", Through: 9}, WantEpoch: "b", WantSeq: 5},
			{Name: "of what it has in part", Epoch: "b", First: 5, Trimmed: 2, N: 2, Previous: protocol.PreviousEpoch{Epoch: "a", Through: 9}, WantEpoch: "b", WantSeq: 6, Fresh: 1},
			{Name: "that ended before what it has", Epoch: "c", First: 3, Trimmed: 2, N: 4, Previous: protocol.PreviousEpoch{Epoch: "b", Through: 4}, WantEpoch: "c", WantSeq: 6, Fresh: 2},
			{Name: "of an epoch that it has not followed", Epoch: "d", First: 3, Trimmed: 2, N: 1, Previous: protocol.PreviousEpoch{Epoch: "b", Through: 9}, WantEpoch: "d", WantSeq: 3, Fresh: 1},
		}},
		{"a retired epoch", []Arrival{
			{Name: "the first batch", Epoch: "a", First: 1, N: 2, WantEpoch: "a", WantSeq: 2, Fresh: 2},
			{Name: "a new epoch", Epoch: "b", First: 1, N: 1, WantEpoch: "b", WantSeq: 1, Fresh: 1},
			{Name: "a late copy of the retired one", Epoch: "a", First: 1, N: 2, WantEpoch: "b", WantSeq: 1, Retired: true},
			{Name: "a late batch of it that declares a loss", Epoch: "a", First: 4, Trimmed: 3, N: 1, WantEpoch: "b", WantSeq: 1, Retired: true},
			{Name: "a question of it", Epoch: "a", WantEpoch: "b", WantSeq: 1, Retired: true},
			{Name: "a question of an epoch that was never followed", Epoch: "x", WantEpoch: "b", WantSeq: 1},
			{Name: "after a restart", Epoch: "a", First: 1, N: 2, Restart: true, WantEpoch: "b", WantSeq: 1, Retired: true},
			{Name: "the next", Epoch: "b", First: 2, N: 1, WantEpoch: "b", WantSeq: 2, Fresh: 1},
			{Name: "a third epoch", Epoch: "c", First: 1, N: 1, WantEpoch: "c", WantSeq: 1, Fresh: 1},
			{Name: "the first again", Epoch: "a", First: 1, N: 1, WantEpoch: "c", WantSeq: 1, Retired: true},
			{Name: "the second again", Epoch: "b", First: 1, N: 1, WantEpoch: "c", WantSeq: 1, Retired: true},
		}},
	}
}
