package projection

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/wiretest"
)

// ofData are the kinds of the streams of machine data, which are not folded.
var ofData = []protocol.EventKind{protocol.DataEvent, protocol.DataExpired, protocol.RetainedBegin, protocol.RetainedEnd}

// TestEveryKindIsDecoded wants each kind of event known here: what is not becomes an anomaly, as if a later
// version of the LO had sent it.
func TestEveryKindIsDecoded(t *testing.T) {
	t.Parallel()
	kinds := wiretest.Constants(t, "../../protocol/journal.go", "EventKind")
	if len(kinds) < 20 {
		t.Errorf("%d kinds found: the test does not read package protocol", len(kinds))
	}
	for _, k := range kinds {
		_, reason := decode(&protocol.Event{Kind: protocol.EventKind(k.Value)})
		if known := !strings.Contains(reason, "is not known here"); known == slices.Contains(ofData, protocol.EventKind(k.Value)) {
			t.Errorf("protocol.%s (%q): known: %t", k.Name, k.Value, known)
		}
	}
}
