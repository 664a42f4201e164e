package feed

import (
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestMatches has a stream leave out what nodes reported of commands, where its filter says so, and nothing else.
func TestMatches(t *testing.T) {
	t.Parallel()
	all, without := &follower{}, &follower{filter: fleet.EventFilter{WithoutResults: true}}
	for kind, want := range map[protocol.EventKind]bool{protocol.CommandResult: false, protocol.CommandReceived: true, protocol.StatusEvent: true} {
		e := &fleet.Event{Kind: string(kind), Site: "plant"}
		if !all.matches(e) || without.matches(e) != want {
			t.Errorf("%s: %t with results, %t without, want true, %t", kind, all.matches(e), without.matches(e), want)
		}
	}
}
