package datadb_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// BenchmarkCommitData commits batches of messages of 100 bytes on 50 topics, of a
// rule that stores them and of one that does not.
func BenchmarkCommitData(b *testing.B) {
	for _, rule := range []string{"stored", "unknown"} {
		for _, size := range []int{100, 1000, 4000} {
			b.Run(fmt.Sprintf("%s/%d", rule, size), func(b *testing.B) {
				_, streams := newStreamHelper(b, rule)
				events := make([]protocol.Event, size)
				for i := range events {
					events[i] = msg(fmt.Sprintf("line%d/temperature=%0100d", i%50, i))
				}
				deliver := func(context.Context, []fleet.Delivery) error { return nil }
				seq := uint64(0)
				for b.Loop() {
					batch := streams[0].batch(int(seq)+1, events)
					ack, err := streams[0].s.CommitData(b.Context(), "home", batch, events, deliver)
					if err != nil {
						b.Fatal(err)
					}
					seq = ack.Seq
				}
				b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}
