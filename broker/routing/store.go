package routing

import (
	"slices"
	"strings"

	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
)

// Open subscribes for all sessions that are stored, and returns the subscribers of those that have subscriptions or a
// last will. It is called once, before any message.
func (r *Router) Open(store *sessions.Store) map[*sessions.Session]*Subscriber {
	r.store = store
	away := map[*sessions.Session]*Subscriber{}
	for _, stored := range store.All() {
		sub := NewSubscriber(stored)
		if body := stored.Will(); body != nil {
			r.HoldWill(sub, retained.Size(len(body.Topic)+len(body.Properties)+len(body.Payload)))
		}
		for filter, s := range stored.Subscriptions() {
			sub.subs.add(filter)
			sub.subs.levels += 1 + strings.Count(filter, "/")
			sub.subs.bytes += len(filter)
			r.Held.Add(sub.Address, heldBy(filter))
			r.tree.Add(sub, filter, topictree.Options{Identifier: s.Identifier, QoS: s.QoS, NoLocal: s.NoLocal, RetainAsPublished: s.RetainAsPublished})
			r.o.Metrics.Subscribed(filter, 1)
		}
		if !sub.Idle() {
			away[stored] = sub
		}
	}
	return away
}

// Storable returns why a message cannot be stored for a session that is to get it, or nil.
func (r *Router) Storable(m *message.Message) error {
	if r.store == nil || m.QoS == 0 {
		return nil
	}
	err := r.store.Storable(sessions.Body{Topic: m.Topic, Properties: m.Props, Payload: m.Payload})
	if err == nil {
		return nil
	}
	to := r.tree.Find(m.Topic)
	r.charge(m, &to)
	if len(r.separate(m, &to)) == 0 {
		return nil
	}
	r.o.Metrics.Refused("publish", "sessions_disk")
	return err
}

// separate takes out of what a message goes to the sessions that it is stored for: with QoS 1
// or 2, whether or not they have a connection.
func (r *Router) separate(m *message.Message, found *topictree.Found[*Subscriber]) (to []sessions.Target) {
	if r.store == nil || m.QoS == 0 {
		return nil
	}
	rest := found.Plain[:0]
	for _, sub := range found.Plain {
		switch {
		case sub.To.Stored == nil || sub.QoS == 0:
			rest = append(rest, sub)
		case !local(m, &sub):
			to = r.appendTarget(to, m, &sub)
		}
	}
	found.Plain = rest
	for i, members := range found.Shared {
		if sub := r.shareOf(members, m.Topic); sub != nil {
			to = r.appendTarget(to, m, sub)
			found.Shared[i] = nil
			continue
		}
		found.Shared[i] = withoutSessions(members)
	}
	return to
}

// withoutSessions are the members of a shared subscription that a message can be sent to without being
// stored: packet ids of a connection with a session are those of its queue. It does not change members.
func withoutSessions(members group) group {
	stored := func(sub topictree.Match[*Subscriber]) bool { return sub.To.Stored != nil && sub.QoS > 0 }
	if !slices.ContainsFunc(members, stored) {
		return members
	}
	return slices.DeleteFunc(slices.Clone(members), stored)
}

// shareOf returns the member of a shared subscription that a message is stored for. It is the first member that
// keeps up; else the first with a connection and a session; else, if none has a connection, the first with a
// session. nil: a member with a connection and without a session gets the message. [MQTT-4.8.2-4] Members that
// may not receive the topic do not count.
func (r *Router) shareOf(members group, topic string) *topictree.Match[*Subscriber] {
	var late, away *topictree.Match[*Subscriber]
	online := false
	for i := range members {
		sub := &members[i]
		if !r.entitled(members, i, topic) {
			continue
		}
		s, stored := sub.To.connection(), sub.To.Stored != nil && sub.QoS > 0
		online = online || s != nil
		switch {
		case s != nil && !stored:
			if s.Transport().State() == transport.KeepsUp {
				return nil
			}
		case s != nil && !sub.To.Stored.Lags():
			return sub
		case s != nil && late == nil:
			late = sub
		case s == nil && stored && away == nil:
			away = sub
		}
	}
	if online {
		return late
	}
	return away
}

func (r *Router) appendTarget(to []sessions.Target, m *message.Message, sub *topictree.Match[*Subscriber]) []sessions.Target {
	if !r.o.Access.MaySubscribe(sub.To.ID, m.Topic) {
		r.Withheld(sub.To.ID)
		return to
	}
	return append(to, sessions.Target{Session: sub.To.Stored, Delivery: sessions.Delivery{
		QoS: min(m.QoS, sub.QoS), Retain: m.Retain && sub.RetainAsPublished, Identifiers: sub.Identifiers(),
	}})
}

// StoreFor stores a message for sessions, if there are any, and calls done then.
func (r *Router) StoreFor(to []sessions.Target, m *message.Message, done func(error)) {
	if len(to) > 0 {
		r.store.Publish(r.Publication(to, m), done)
	}
}

// Publication is a message on its way to the sessions that it is stored for.
func (r *Router) Publication(to []sessions.Target, m *message.Message) *sessions.Publish {
	return &sessions.Publish{Body: sessions.Body{Topic: m.Topic, Properties: m.Props, Payload: m.Payload}, Expires: r.store.Until(m.Expires), To: to}
}
