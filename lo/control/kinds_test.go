package control

import (
	"errors"
	"slices"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
	"github.com/colonyfleet/colony/protocol/wiretest"
)

// elsewhere are the kinds that package lo/command decodes; its test says so.
var elsewhere = []topic.Kind{topic.CommandResult, topic.NodeLive, topic.NodeTimeAsk}

// TestEveryKindIsAccepted has each kind of message of a node decoded: one without a decoder is refused for its
// topic, and not for what stands in it.
func TestEveryKindIsAccepted(t *testing.T) {
	t.Parallel()
	site := newPlant(t, protocol.SiteDesired{}, "g1").site
	for _, kind := range wiretest.Kinds(t, "../../protocol/topic/topic.go", "EN → LO") {
		if slices.Contains(elsewhere, kind) {
			continue
		}
		err := site.Accept(t.Context(), wiretest.ForNode(kind, "s1", "g1"), []byte("no CBOR"))
		var refused *protocol.Error
		if !errors.As(err, &refused) || refused.Kind != protocol.Invalid {
			t.Errorf("%s: %v, want that it cannot be decoded", kind, err)
		}
	}
}
