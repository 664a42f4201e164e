// Package routing decides which clients receive a message. It holds the subscriptions of clients
// and the retained messages, puts messages into the queues of connections or names the sessions
// that they are stored for, and sends retained messages to new subscriptions. It reads no packet.
package routing

import (
	"context"
	"log/slog"
	"time"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/quota"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/protocol"
)

// Patience is how long one message waits for subscribers that all lag behind.
const Patience = 2 * time.Second

// Options configure a Router. All but Accept are required.
type Options struct {
	Access  Access
	Limits  *limits.Limits // with defaults
	Metrics *metrics.Metrics
	Logger  *slog.Logger
	// Accept is called for each message that a client publishes, before it is distributed, with Context. An error
	// refuses the message. Nil accepts everything.
	Accept func(ctx context.Context, from access.Identity, m client.Message) error
	// Context ends when the broker stops.
	Context context.Context
	// Go runs a function that the broker waits for when it stops.
	Go func(func())
}

// Access decides which clients may subscribe to which filters. It is called concurrently. An
// implementation that also has the method
//
//	Refusal(id access.Identity, filter string) string
//
// returns there why a filter was refused.
type Access interface {
	// MaySubscribe reports whether id may receive every topic that a filter matches.
	MaySubscribe(id access.Identity, filter string) bool
}

// A Connection is what a subscriber gets messages on. Its methods are called concurrently.
type Connection interface {
	// Transport returns the connection itself.
	Transport() *transport.Conn
	// V5 reports whether it speaks MQTT 5.
	V5() bool
	// Deliver puts a message into the queue of the connection; false if that has ended, or gets
	// such messages from its stored session alone.
	Deliver(f *message.Frames, d message.Delivery) bool
	// Panicked ends the connection, as serving it made the broker panic.
	Panicked(what string, r any)
}

// A Router routes messages. Its methods may be called concurrently, unless they say otherwise.
type Router struct {
	// Retained are the messages that are retained.
	Retained *retained.Store[*message.Message]
	// Held counts the bytes of filters, last wills and topic aliases, by the address of the client.
	Held *quota.Ledger
	// steps count what it takes to find the subscribers of messages, by the account of their publisher.
	steps *quota.Rates

	o     Options
	tree  topictree.Tree[*Subscriber]
	store *sessions.Store // nil: nothing is stored
}

// New returns a router without subscriptions.
func New(o Options) *Router {
	return &Router{
		o:        o,
		Retained: retained.New[*message.Message](retained.Limits{All: o.Limits.RetainedBytes, PerOwner: o.Limits.RetainedPerIdentity}),
		Held:     quota.New(quota.Limits{All: o.Limits.StateBytes, PerOwner: o.Limits.StatePerAddress}),
		steps:    quota.NewRates(float64(o.Limits.MatchRate), matchSlack, matchDebt),
	}
}

// Retain retains a message, or, if its payload is empty, forgets the one of its topic.
func (r *Router) Retain(m *message.Message) {
	if len(m.Payload) == 0 { // [MQTT-3.3.1-6]
		r.Retained.Delete(m.Topic)
		return
	}
	r.Retained.Put(retained.Message[*message.Message]{Topic: m.Topic, Value: m, Owner: m.Owner, Size: m.Size(), Expires: m.Expires}) // [MQTT-3.3.1-5]
}

// Reserve makes room for a message that is to be retained, until release is called. The error is
// Unavailable.
func (r *Router) Reserve(m *message.Message) (release func(), err error) {
	if !m.Retain || len(m.Payload) == 0 {
		return func() {}, nil
	}
	ok, whose := r.Retained.Reserve(m.Topic, m.Owner, m.Size())
	if !ok {
		r.o.Metrics.Refused("publish", "retained_bytes")
		return nil, protocol.Errorf(protocol.Unavailable, "no room to retain %d bytes on %s: the limit of %s is reached; see limits.retainedBytes and limits.retainedPerIdentity", m.Size(), m.Topic, whose)
	}
	return func() { r.Retained.Release(m.Owner, m.Size()) }, nil
}
