package members

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// TestOpenIsCounted compares what is counted of each node with what its commands say, whatever happens to them.
func TestOpenIsCounted(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	s, now := New(), time.Hour
	nodes := []protocol.NodeID{"n1", "n2", "n3"}
	states := []command.State{command.Running, command.Done, command.Failed, command.Refused}
	for i := range 20_000 {
		id := command.ID(fmt.Sprintf("c%d", rng.IntN(30)))
		now += time.Duration(rng.IntN(1000)) * time.Millisecond
		switch held, _ := s.Holds(id); {
		case !held:
			s.Add(Record{ID: id, Kind: command.Restart, Nodes: nodes[:1+rng.IntN(3)], IssuedMillis: 1, DeadlineMillis: 1 + int64(rng.IntN(1000_000))}, now)
		case rng.IntN(20) == 0:
			s.Forget(id)
		case rng.IntN(20) == 0:
			s.Cancel(id)
		case rng.IntN(5) == 0:
			for _, r := range s.Decide(now).End {
				s.Apply(&r, Where{})
			}
		default:
			r := command.Result{ID: id, Node: nodes[rng.IntN(3)], State: states[rng.IntN(len(states))], ByLO: rng.IntN(3) == 0}
			s.Apply(&r, Where{})
		}
		want := map[protocol.NodeID]int{}
		for _, e := range s.entries {
			open := 0
			for _, m := range e.members {
				if !m.ended() {
					want[m.node]++
					open++
				}
			}
			if open != e.open {
				t.Fatalf("step %d: %d of %s are open, counted are %d", i, open, e.ID, e.open)
			}
		}
		for _, n := range nodes {
			if s.open[n] != want[n] {
				t.Fatalf("step %d: %d commands of %s are open, counted are %d", i, want[n], n, s.open[n])
			}
		}
	}
}
