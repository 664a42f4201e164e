// Package wills has the last wills of clients: what the broker publishes for a client whose connection ends
// without a DISCONNECT.
package wills

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/internal/refusals"
	"github.com/colonyfleet/colony/protocol"
)

// A Will is the last will of a connection. The zero value is none.
type Will struct {
	Message *message.Message // nil: none
	// Held is how many bytes are counted for it.
	Held int64
	// Expiry is how long it lasts from when it is sent, in seconds, as EndOfWill reads it; 0: for ever.
	Expiry uint32
	// Delay is how long after the end of the connection it is sent, in seconds.
	Delay uint32
}

// Of returns the last will in a CONNECT packet, without what is Held for it.
func Of(p *packets.Packet) Will {
	return Will{Message: message.WillOf(p), Expiry: p.Connect.WillProperties.MessageExpiryInterval, Delay: p.Connect.WillProperties.WillDelayInterval}
}

// After is after how many seconds the will is sent, of a session that ends so many after its connection.
func (w *Will) After(session uint32) uint32 { return min(w.Delay, session) }

// Stored returns the will as a session stores it that ends session seconds after its connection, in case the broker ends
// first. It is nil for no will, and for a will without a delay, which is not sent when the broker ends.
func (w *Will) Stored(session uint32) *sessions.Will {
	m, delay := w.Message, w.After(session)
	if m == nil || delay == 0 {
		return nil
	}
	return &sessions.Will{
		At: int64(time.Duration(delay) * time.Second), QoS: m.QoS, Retain: m.Retain, Expiry: w.Expiry,
		Body: sessions.Body{Topic: m.Topic, Properties: m.Props, Payload: m.Payload},
	}
}

// Access decides which clients may publish which topics. It is called concurrently.
type Access interface {
	// MayPublish reports whether id may publish to a topic name.
	MayPublish(id access.Identity, name string) bool
}

// A Sender sends last wills. Its methods may be called concurrently.
type Sender struct {
	Access  Access
	Routes  *routing.Router
	Levels  int // that a topic may have
	Metrics *metrics.Metrics
	Refused *refusals.Log
	Logger  *slog.Logger
}

// Check refuses a last will that its client could not publish itself; nil is none.
func (s *Sender) Check(id access.Identity, m *message.Message) error {
	switch {
	case m == nil:
		return nil
	case m.Topic == "" || strings.ContainsAny(m.Topic, "+#\x00") || filter.Reserved(m.Topic) || strings.Count(m.Topic, "/") >= s.Levels:
		return &reason.Refusal{Code: packets.ErrTopicNameInvalid, Message: fmt.Sprintf("last will on %.200q: want a topic without wildcards, not below $SYS or $share, of up to %d levels", m.Topic, s.Levels)}
	case !s.Access.MayPublish(id, m.Topic):
		return protocol.Errorf(protocol.Denied, "last will on %s: %s may not publish there", refusals.Shortened(m.Topic), id.Name)
	}
	return nil
}

// Send sends the last will of a client, which expires so long after.
func (s *Sender) Send(id access.Identity, m *message.Message, expiry uint32, wait *transport.Waiting) {
	m.Expires = message.EndOfWill(expiry)
	to, err := s.Routes.Accept(id, m, wait)
	if err != nil {
		s.Refused.Warn("last will", m.Owner, err.Error(), "last will refused", "client", refusals.Shortened(m.Origin), "topic", refusals.Shortened(m.Topic), "err", err)
		return
	}
	s.Routes.StoreFor(to, m, func(err error) {
		if err != nil {
			s.Refused.Warn("not stored", m.Owner, err.Error(), "last will not stored for the clients that are away", "client", refusals.Shortened(m.Origin), "topic", refusals.Shortened(m.Topic), "err", err)
		}
	})
	s.Metrics.Wills.Inc()
}

// SendStored sends the last will of a session that is stored, if its client may still publish there.
func (s *Sender) SendStored(stored *sessions.Session, w *sessions.Will, wait *transport.Waiting) {
	owner := stored.Owner()
	id := access.DecodeIdentity(owner.Identity)
	if !s.Access.MayPublish(id, w.Body.Topic) {
		s.Logger.Warn("last will not sent: its client may not publish there any more", "client", stored.Client(), "user", owner.Name, "topic", refusals.Shortened(w.Body.Topic))
		return
	}
	s.Send(id, &message.Message{
		Topic: w.Body.Topic, Payload: w.Body.Payload, Props: w.Body.Properties, QoS: w.QoS, Retain: w.Retain,
		Origin: stored.Client(), Owner: access.Account(id, owner.Address, nil),
	}, w.Expiry, wait)
}
