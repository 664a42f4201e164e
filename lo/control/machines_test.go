package control

import (
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// TestPendingAgain reports a node that waits three times: the later reports, which are no events at the CO, do not take
// the place of the first one while the CO is away.
func TestPendingAgain(t *testing.T) {
	t.Parallel()
	j := openJournal(t)
	site, before := openSite(t, j, openStore(t), &desiredState{}), j.Last()
	for _, goesOn := range []bool{false, true, true} {
		if err := site.Enrolment(t.Context(), protocol.MachinePending, "g1", protocol.Enrolment{V: protocol.Version, Key: []byte{1}, Renewal: goesOn}); err != nil {
			t.Fatal(err)
		}
	}
	records, err := j.Read(before, 100, 1<<20)
	keys := map[string]int{}
	for _, r := range records {
		keys[r.Key]++
	}
	if err != nil || keys["pending/01"] != 1 || keys["pending-again/01"] == 0 {
		t.Errorf("in the journal: %v (%v), want the first report by a key of its own", keys, err)
	}
}
