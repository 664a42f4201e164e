// Package inbound gives each message of a site, or of a client of the CO's broker, to the part
// that it is for. The parts publish by the broker, which is made first: a message that comes
// before they are there waits for them.
package inbound

import (
	"context"
	"sync"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// Receivers are the parts that messages are for, by kind. All are required.
type Receivers struct {
	// Batch and Presence get the payloads of a site, DownAck its positions in machine data.
	Batch, Presence func(ctx context.Context, site protocol.SiteID, payload []byte) error
	DownAck         func(site protocol.SiteID, payload []byte) error
	// Live gets what a command sends live, TimeAsk the questions for the time.
	Live    func(site protocol.SiteID, id string, payload []byte) error
	TimeAsk func(ctx context.Context, site protocol.SiteID, payload []byte) error
	// Data gets what a client publishes for a site.
	Data func(ctx context.Context, t topic.Topic, m client.Message) error
	// Connected is called whenever an external broker is connected: it may have lost what it
	// retained.
	Connected func(ctx context.Context)
}

// A Router gives messages to receivers, once it has them. Its methods may be called concurrently.
type Router struct {
	once sync.Once
	open chan struct{} // closed by Open
	to   Receivers     // set before open is closed, never changed
}

// New returns a Router without receivers.
func New() *Router { return &Router{open: make(chan struct{})} }

// Open gives the Router its receivers, once: those of another call are left out.
func (r *Router) Open(to Receivers) {
	r.once.Do(func() {
		r.to = to
		close(r.open)
	})
}

// Accept has a message received before the broker acknowledges it. One that is for no part is
// acknowledged; one whose topic is not Colony's is an error of kind Invalid.
func (r *Router) Accept(ctx context.Context, from access.Identity, m client.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	select {
	case <-r.open:
	case <-ctx.Done():
		return protocol.Errorf(protocol.Unavailable, "message on %s: the co is still starting: %w", m.Topic, context.Cause(ctx))
	}
	switch t.Kind {
	case topic.Up:
		return r.to.Batch(ctx, from.Site, m.Payload)
	case topic.SiteOnline:
		return r.to.Presence(ctx, from.Site, m.Payload)
	case topic.In:
		return r.to.Data(ctx, t, m)
	case topic.DownAck:
		return r.to.DownAck(from.Site, m.Payload)
	case topic.SiteLive:
		return r.to.Live(from.Site, t.Tail, m.Payload)
	case topic.SiteTimeAsk:
		return r.to.TimeAsk(ctx, from.Site, m.Payload)
	default:
		return nil
	}
}

// Connected is called whenever an external broker is connected.
func (r *Router) Connected(ctx context.Context) {
	select {
	case <-r.open:
		r.to.Connected(ctx)
	case <-ctx.Done():
	}
}
