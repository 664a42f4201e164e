package projection

import (
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// clientMessage says what a client of a site's broker did, or how many did something.
func clientMessage(kind protocol.EventKind, m *protocol.ClientReport) string {
	if kind == protocol.ClientsChanged {
		return fmt.Sprintf("%d clients changed within some seconds: %d connected, %d disconnected, the others did both", m.Changes, m.Connected, m.Disconnected)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "client %s of account %s, from %s", clean(m.Client), clean(m.User), clean(m.From))
	if m.Reason != "" {
		fmt.Fprintf(&b, ": %s", clean(m.Reason))
	}
	if m.Changes > 1 {
		fmt.Fprintf(&b, " (%d changes since the last report)", m.Changes)
	}
	return b.String()
}
