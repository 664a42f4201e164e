package fleetdb_test

import (
	"fmt"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// BenchmarkTransitions commits reports each of which moves a deployment on a node, so
// that each is a row of the events and of the history, and changes a state.
func BenchmarkTransitions(b *testing.B) {
	for _, size := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := open(b)
			var turns [2][]protocol.Event
			for turn, to := range [2]lifecycle.State{lifecycle.Installed, lifecycle.Failed} {
				j := &journal{}
				for i := range size {
					j.status(fmt.Sprintf("d%d", i/50), fmt.Sprintf("n%d", i%50), to, lifecycle.EN)
				}
				turns[turn] = j.events
			}
			// In a gap any transition is applied, and the same reports can go to and fro.
			seq, trimmed := uint64(1), uint64(1)
			for i := 0; b.Loop(); i++ {
				batch := protocol.Batch{V: 1, Epoch: "e", First: seq + 1, Count: uint32(size), Trimmed: trimmed}
				ack, err := s.CommitBatch(b.Context(), "home", batch, turns[i%2])
				if err != nil {
					b.Fatal(err)
				}
				seq = ack.Seq
			}
			b.ReportMetric(float64(seq-1)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
