package sessions

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/broker/sessions/state"
)

// namedClients is how many clients a line of the log names.
const namedClients = 10

// forgetWills forgets the last wills that the log has. While it took nothing their clients may have left with a DISCONNECT, or have come back,
// and then they must not be sent. [MQTT-3.14.4-3] [MQTT-3.1.3-9]
func (s *Store) forgetWills(ctx context.Context, st *state.State) {
	var clients []string
	for _, one := range st.Sessions {
		if one.Will != nil {
			one.Will = nil
			clients = append(clients, one.Client)
		}
	}
	if len(clients) == 0 {
		return
	}
	slices.Sort(clients)
	s.o.Dropped(len(clients), DroppedVoid)
	s.log.WarnContext(ctx, "last wills are not sent: while the log of sessions took nothing, their clients may have left in order, or have come back; look at those that do not come back",
		"wills", len(clients), "clients", clients[:min(len(clients), namedClients)])
}
