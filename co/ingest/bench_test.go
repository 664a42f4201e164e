package ingest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// BenchmarkAccept takes compressed batches of 2,000 as they come from the broker,
// to their commit in PostgreSQL: reports that each move a deployment, and messages
// of 100 bytes of a rule that stores them.
func BenchmarkAccept(b *testing.B) {
	const size = 2000
	for name, make := range map[string]func(turn, i int) protocol.Event{
		"moves": func(turn, i int) protocol.Event {
			node := protocol.NodeID(fmt.Sprintf("n%d", i%50))
			return protocol.Event{UnixMillis: 1_700_000_000_000, Kind: protocol.StatusEvent, Node: node, Body: protocol.Marshal(protocol.DeploymentStatus{
				V: 1, Node: node, Deployment: protocol.DeploymentName(fmt.Sprintf("d%d", i/50)), Actor: lifecycle.EN, App: "app", AppVersion: "1",
				State: [2]lifecycle.State{lifecycle.Installed, lifecycle.Failed}[turn%2],
			})}
		},
		"data": func(turn, i int) protocol.Event {
			return protocol.Event{UnixMillis: 1_700_000_000_000, Kind: protocol.DataEvent, Body: protocol.Marshal(protocol.DataMessage{
				V: 1, Topic: fmt.Sprintf("line%d/temperature", i%50), QoS: 1, Payload: fmt.Appendf(nil, `{"value":%d.5,"quality":"good","from":"%060d"}`, i*turn, i),
			})}
		},
	} {
		b.Run(name, func(b *testing.B) {
			db, err := db.Open(b.Context(), pgtest.New(b), db.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			s := fleetdb.New(db)
			rules := fleet.SiteData{Rules: []fleet.DataRule{{DataRule: protocol.DataRule{Name: "r", Topics: []string{"#"}}, Store: true}}}
			if _, _, err := s.SaveDesired(b.Context(), "home", "c", nil, rules); err != nil {
				b.Fatal(err)
			}
			in := ingest.New(ingest.Options{
				Store: s, Data: datadb.New(db), PublishAck: (&acks{}).publish, Deliver: func(context.Context, []fleet.Delivery) error { return nil },
				Patience: time.Minute,
			})
			defer in.Close()
			batches := [2]protocol.Batch{}
			for turn := range batches {
				var events []any
				for i := range size {
					events = append(events, make(turn, i))
				}
				batches[turn] = batch(1, "zstd", events...)
				batches[turn].Trimmed = 1 // in a gap any move is taken
				if name == "data" {
					batches[turn].Stream, batches[turn].Trimmed = protocol.DataStream("r"), 0
				}
			}
			seq, n := batches[0].Trimmed, 0
			for b.Loop() {
				next := batches[n%2]
				next.First = seq + 1
				if err := in.Accept(b.Context(), "home", protocol.Marshal(next)); err != nil {
					b.Fatal(err)
				}
				seq += size
				n++
			}
			b.ReportMetric(float64(n*size)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
