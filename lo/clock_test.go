package lo

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// TestEventsAreMarked stamps events by a clock that nothing keeps in step, and by one that is
// in step again.
func TestEventsAreMarked(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(filepath.Join(t.TempDir(), "journal"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	unsynced := true
	events := eventJournal{j, func() bool { return unsynced }}
	for range 2 {
		if _, err := events.Append(context.Background(), []nodes.Fact{{Event: protocol.Event{Kind: protocol.NodeOnlineEvent, Node: "n"}}}); err != nil {
			t.Fatal(err)
		}
		unsynced = false
	}
	_, bodies, err := j.Bodies(0, 10, 1<<20)
	if err != nil || len(bodies) != 2 {
		t.Fatalf("%d events (%v), want 2", len(bodies), err)
	}
	for i, want := range []bool{true, false} {
		var e protocol.Event
		if err := protocol.Unmarshal(bodies[i], &e); err != nil || e.Unsynced != want {
			t.Errorf("event %d is marked: %t (%v), want %t", i+1, e.Unsynced, err, want)
		}
	}
}
