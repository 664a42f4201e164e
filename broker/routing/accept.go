package routing

import (
	"time"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/protocol"
)

// Accept hands a message of a client to the owner of the broker. If the owner accepts it, Accept distributes it, and
// returns the sessions that it must be stored for. Before that, Accept checks that there is room to retain and to store
// it: so the owner never gets a message that its publisher must send again.
func (r *Router) Accept(id access.Identity, m *message.Message, wait *transport.Waiting) ([]sessions.Target, error) {
	if err := r.Storable(m); err != nil {
		return nil, err
	}
	release, err := r.Reserve(m)
	if err != nil {
		return nil, err
	}
	defer release()
	if r.o.Accept != nil {
		begun := time.Now()
		err := r.o.Accept(r.o.Context, id, m.Public())
		r.o.Metrics.AcceptSeconds.Observe(time.Since(begun).Seconds())
		if err != nil {
			r.o.Metrics.Refused("publish", string(protocol.KindOf(err)))
			return nil, err
		}
	}
	return r.Distribute(m, wait), nil
}
