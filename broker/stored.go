package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/broker/topictree"
	"github.com/colonyfleet/colony/broker/transport"
	"github.com/colonyfleet/colony/protocol"
)

// storeTimeout is how long a client waits for its subscription to be on disk.
const storeTimeout = 30 * time.Second

// openStore opens what is stored of sessions, and subscribes for them. b.mu is held.
func (b *Broker) openStore(ctx context.Context) (err error) {
	if b.o.Sessions.Dir == "" || b.o.Sessions.Limits.Off {
		return nil
	}
	b.store, err = sessions.Open(ctx, sessions.Options{
		Dir: b.o.Sessions.Dir, Disk: b.o.Sessions.Disk, Limits: b.o.Sessions.Limits, Logger: b.log, Dropped: b.metrics.DroppedStored,
	})
	if err != nil {
		return fmt.Errorf("broker %s: %w", b.o.Name, err)
	}
	for _, stored := range b.store.All() {
		sub := newSubscriber(stored)
		b.away[stored] = sub
		if body := stored.Will(); body != nil {
			b.holdWill(sub, retained.Size(len(body.Topic)+len(body.Properties)+len(body.Payload)))
		}
		for filter, s := range stored.Subscriptions() {
			sub.subs.filters[filter] = struct{}{}
			sub.subs.levels += 1 + strings.Count(filter, "/")
			sub.subs.bytes += len(filter)
			b.held.Add(sub.address, heldBy(filter))
			b.tree.Add(sub, filter, topictree.Options{Identifier: s.Identifier, QoS: s.QoS, NoLocal: s.NoLocal, RetainAsPublished: s.RetainAsPublished})
			b.metrics.Subscribed(filter, 1)
		}
	}
	return nil
}

// holdWill counts the bytes of a last will that waits for its delay, and no longer those of an earlier
// one; 0 where none waits any more.
func (b *Broker) holdWill(sub *subscriber, bytes int64) {
	b.held.Add(sub.address, bytes-sub.will.Swap(bytes))
}

func (b *Broker) closeStore() error {
	if b.store == nil {
		return nil
	}
	return b.store.Close()
}

func newSubscriber(stored *sessions.Session) *subscriber {
	return &subscriber{
		client: stored.Client(), id: access.DecodeIdentity(stored.Owner().Identity), address: stored.Owner().Address, stored: stored,
		subs: subscriptions{filters: make(map[string]struct{})},
	}
}

// askedExpiry is the session expiry interval that CONNECT asks for. MQTT 3.1.1 has none: a
// session is for ever, or ends with its connection. [MQTT-3.1.1, 3.1.2.4]
func askedExpiry(p *packets.Packet) uint32 {
	switch {
	case p.ProtocolVersion == 5:
		return p.Properties.SessionExpiryInterval
	case p.Connect.Clean:
		return 0
	}
	return sessions.Never
}

// resume gives a connection the session that is stored for its client, or a new one if it asks
// for one; present says that it was stored. s is the one connection of its client id.
func (b *Broker) resume(s *session, clean bool) (present bool, err error) {
	if b.store == nil {
		return false, nil
	}
	s.expiry = b.store.Expiry(s.asked)
	stored := b.store.Get(s.client)
	if stored != nil && stored.Owner().Name != s.id.Name {
		return false, protocol.Errorf(protocol.Invalid, "client id %s has a session of %s", s.client, stored.Owner().Name)
	}
	if stored != nil && clean { // [MQTT-3.1.2-4]
		b.endStored(stored)
		if err := b.flush(); err != nil {
			b.log.Warn("the end of a session is not stored", "client", s.client, "err", err)
		}
		stored = nil
	}
	if stored != nil && b.attach(s, stored) { // [MQTT-3.1.2-5]
		return true, nil
	}
	if s.expiry == 0 {
		return false, nil
	}
	if stored, err = b.createStored(s); err != nil {
		return false, &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: err.Error()}
	}
	b.mu.Lock()
	b.away[stored] = newSubscriber(stored)
	b.mu.Unlock()
	b.attach(s, stored)
	return false, nil
}

// createStored makes a session, for which one that holds nothing ends where there are too many.
func (b *Broker) createStored(s *session) (*sessions.Session, error) {
	owner := sessions.Owner{Name: s.id.Name, Identity: s.id.Encode(), Address: s.conn.address()}
	stored, err := b.store.Create(s.client, owner, s.expiry)
	if err == nil {
		return stored, nil
	}
	idle := b.store.MakeRoom(owner)
	if idle == nil {
		return nil, err
	}
	b.discard(idle, nil)
	b.metrics.EvictedSessions.Inc()
	b.log.Info("session ended that held nothing: another client needs its place", "client", idle.Client(), "for", s.client, "limit", err)
	return b.store.Create(s.client, owner, s.expiry)
}

// attach connects s to a stored session; false if that has ended.
func (b *Broker) attach(s *session, stored *sessions.Session) bool {
	b.mu.RLock()
	sub := b.away[stored]
	b.mu.RUnlock()
	if sub == nil {
		return false
	}
	link := stored.Attach(sessions.Receiver{
		V5: s.v5, Window: s.window, Largest: s.largest, Wake: s.conn.Wake,
		May:  func(topic string) bool { return b.o.Access.MaySubscribe(s.id, topic) },
		Sent: s.countSent,
		Cut:  func() { b.tooSlow(s.conn, "unacknowledged") },
	}, s.expiry)
	if link == nil {
		return false
	}
	s.sub, s.link = sub, link
	b.holdWill(sub, 0)                // it is not sent any more
	if err := b.flush(); err != nil { // so that Received has what the former connection has sent
		b.log.Warn("a session is resumed while the disk fails", "client", s.client, "err", err)
	}
	s.pending.Add(stored.Received()...)
	return true
}

// retire is what becomes of the session when its connection has ended: its last will is sent or
// waits for its delay, its subscriptions end or stay.
func (b *Broker) retire(s *session) {
	stopping := b.ctx.Err() != nil
	b.held.Add(s.conn.address(), -s.will.held)
	if s.link == nil {
		for filter := range s.sub.subs.filters {
			b.forget(s.sub, filter)
		}
	}
	var later *sessions.Will
	if w := s.will.m; w != nil && !s.clean.Load() {
		switch delay := min(s.will.delay, s.expiry); {
		case s.link != nil && delay > 0: // [MQTT-3.1.3-9]
			b.holdWill(s.sub, s.will.held)
			later = &sessions.Will{
				At: b.store.WillAt(delay), QoS: w.QoS, Retain: w.Retain, Expiry: s.will.expiry,
				Body: sessions.Body{Topic: w.Topic, Properties: w.Props, Payload: w.Payload},
			}
		case !stopping:
			b.sendWill(s.id, w, s.will.expiry, s.waiting(patience))
		}
	}
	switch {
	case s.link == nil:
	case s.expiry == 0:
		b.endStored(s.sub.stored)
	default:
		s.sub.now.Store(nil)
		s.link.Detach(s.expiry, later)
	}
}

// endStored ends a session that is stored, and sends the last will that waited for it.
func (b *Broker) endStored(stored *sessions.Session) {
	b.discard(stored, stored.End())
}

// discard forgets the subscriptions of a session that has ended.
func (b *Broker) discard(stored *sessions.Session, will *sessions.Will) {
	b.mu.Lock()
	sub := b.away[stored]
	delete(b.away, stored)
	b.mu.Unlock()
	if sub != nil {
		b.holdWill(sub, 0)
		for filter := range sub.subs.filters {
			b.forget(sub, filter)
		}
	}
	if will != nil {
		b.sendStoredWill(stored, will)
	}
}

func (b *Broker) sendStoredWill(stored *sessions.Session, w *sessions.Will) {
	m := &message.Message{
		Topic: w.Body.Topic, Payload: w.Body.Payload, Props: w.Body.Properties, QoS: w.QoS, Retain: w.Retain,
		Origin: stored.Client(), Owner: stored.Owner().Name,
	}
	b.sendWill(access.DecodeIdentity(stored.Owner().Identity), m, w.Expiry, b.pace.Waiting(0))
}

// expireSessions ends sessions whose time is up, and sends last wills whose delay is over.
func (b *Broker) expireSessions() {
	if b.store == nil {
		return
	}
	expired, wills := b.store.Due()
	for stored, w := range wills {
		b.mu.RLock()
		sub := b.away[stored]
		b.mu.RUnlock()
		if sub != nil {
			b.holdWill(sub, 0)
		}
		b.sendStoredWill(stored, w)
	}
	for _, stored := range expired {
		if will, ok := stored.EndIfExpired(); ok {
			b.metrics.ExpiredSessions.Inc()
			b.log.Info("session expired", "client", stored.Client())
			b.discard(stored, will)
		}
	}
}

// storable returns why a message cannot be stored for a session that is to get it, or nil.
func (b *Broker) storable(m *message.Message) error {
	if b.store == nil || m.QoS == 0 {
		return nil
	}
	err := b.store.Storable(sessions.Body{Topic: m.Topic, Properties: m.Props, Payload: m.Payload})
	if err == nil {
		return nil
	}
	to := b.tree.Find(m.Topic)
	if len(b.separate(m, &to)) == 0 {
		return nil
	}
	b.metrics.Refused("publish", "sessions_disk")
	return err
}

// separate takes out of what a message goes to the sessions that it is stored for: with QoS 1
// or 2, whether or not they have a connection.
func (b *Broker) separate(m *message.Message, found *topictree.Found[*subscriber]) (to []sessions.Target) {
	if b.store == nil || m.QoS == 0 {
		return nil
	}
	rest := found.Plain[:0]
	for _, sub := range found.Plain {
		switch {
		case sub.To.stored == nil || sub.QoS == 0:
			rest = append(rest, sub)
		case !local(m, &sub):
			to = b.appendTarget(to, m, &sub)
		}
	}
	found.Plain = rest
	for i, members := range found.Shared {
		if sub := shareOf(members); sub != nil {
			to = b.appendTarget(to, m, sub)
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
	stored := func(sub topictree.Match[*subscriber]) bool { return sub.To.stored != nil && sub.QoS > 0 }
	if !slices.ContainsFunc(members, stored) {
		return members
	}
	return slices.DeleteFunc(slices.Clone(members), stored)
}

// shareOf returns the member of a shared subscription that a message is stored for: the first that keeps
// up; if none does, the first with a connection and a session; if none has a connection, the first with a
// session. nil: it goes to one that has a connection and no session. [MQTT-4.8.2-4]
func shareOf(members group) *topictree.Match[*subscriber] {
	var late, away *topictree.Match[*subscriber]
	online := false
	for i := range members {
		sub := &members[i]
		s, stored := sub.To.now.Load(), sub.To.stored != nil && sub.QoS > 0
		online = online || s != nil
		switch {
		case s != nil && !stored:
			if s.conn.State() == transport.KeepsUp {
				return nil
			}
		case s != nil && !sub.To.stored.Lags():
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

func (b *Broker) appendTarget(to []sessions.Target, m *message.Message, sub *topictree.Match[*subscriber]) []sessions.Target {
	if !b.o.Access.MaySubscribe(sub.To.id, m.Topic) {
		b.withheld(sub.To.id)
		return to
	}
	return append(to, sessions.Target{Session: sub.To.stored, Delivery: sessions.Delivery{
		QoS: min(m.QoS, sub.QoS), Retain: m.Retain && sub.RetainAsPublished, Identifiers: sub.Identifiers(),
	}})
}

// storeFor stores a message for sessions, if there are any, and calls done then.
func (b *Broker) storeFor(to []sessions.Target, m *message.Message, done func(error)) {
	if len(to) > 0 {
		b.store.Publish(b.publication(to, m), done)
	}
}

func (b *Broker) publication(to []sessions.Target, m *message.Message) *sessions.Publish {
	return &sessions.Publish{Body: sessions.Body{Topic: m.Topic, Properties: m.Props, Payload: m.Payload}, Expires: b.store.Until(m.Expires), To: to}
}

// storeFrom stores a message of a client, and acknowledges or refuses it then.
func (b *Broker) storeFrom(s *session, to []sessions.Target, m *message.Message, id uint16) {
	p := &sessions.Publish{Expires: b.store.Until(m.Expires)}
	if len(to) > 0 {
		p = b.publication(to, m)
	}
	if m.QoS == 2 && s.link != nil {
		p.From, p.ID = s.sub.stored, id
	}
	begun := time.Now()
	b.store.Publish(p, func(err error) {
		b.metrics.StoreSeconds.Observe(time.Since(begun).Seconds())
		if err == nil {
			s.accept(m.QoS, id)
			return
		}
		b.metrics.Refused("publish", "sessions_disk")
		if end := s.reject(m.QoS, id, reason.OfPublish(err)); end != nil {
			code, _ := reason.Of(end)
			b.disconnect(s.conn, code)
		}
	})
}

// acknowledgeRepeat answers a message of QoS 2 that came before. [MQTT-4.3.3-10]
func (b *Broker) acknowledgeRepeat(s *session, id uint16) error {
	if s.link == nil {
		s.ack(packets.Pubrec, id, packets.CodeSuccess)
		return nil
	}
	b.store.Publish(&sessions.Publish{From: s.sub.stored, ID: id}, s.onceStored(packets.Pubrec, id)) // behind the first in the log
	return nil
}

// onceStored sends an acknowledgement when what it acknowledges is durable. A client that cannot get it is
// disconnected: it asks again on its next connection.
func (s *session) onceStored(kind byte, id uint16) func(error) {
	return func(err error) {
		if err == nil {
			s.ack(kind, id, packets.CodeSuccess)
			return
		}
		code := packets.ErrServerBusy
		code.Reason = reason.String(err)
		s.b.disconnect(s.conn, code)
	}
}

// acknowledgeStored is acknowledge for a client whose session is stored.
func (b *Broker) acknowledgeStored(s *session, kind packet.Type, id uint16, reason byte) {
	switch kind {
	case packet.Puback:
		s.link.Acknowledged(id, sessions.Puback)
	case packet.Pubcomp:
		s.link.Acknowledged(id, sessions.Pubcomp)
	case packet.Pubrec:
		switch {
		case reason >= packets.ErrUnspecifiedError.Code: // [MQTT-4.3.3-4]
			s.link.Acknowledged(id, sessions.Refused)
		case !s.link.Recorded(id, s.onceStored(packets.Pubrel, id)):
			s.ack(packets.Pubrel, id, packets.ErrPacketIdentifierNotFound)
		}
	case packet.Pubrel:
		if !s.pending.End(id) {
			s.ack(packets.Pubcomp, id, packets.ErrPacketIdentifierNotFound)
			return
		}
		s.sub.stored.Finish(id, s.onceStored(packets.Pubcomp, id)) // [MQTT-4.3.3-11]
	}
}

// flush waits until what was changed of sessions is durable.
func (b *Broker) flush() error {
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	return b.store.Flush(ctx)
}

// unsubscribed takes back the subscriptions of a SUBSCRIBE that could not be stored.
func (s *session) unsubscribed(ack *packets.Packet, filters packets.Subscriptions, err error) []replay {
	for i, code := range ack.ReasonCodes {
		if code >= packets.ErrUnspecifiedError.Code {
			continue
		}
		if ack.ReasonCodes[i] = packets.ErrQuotaExceeded.Code; !s.v5 {
			ack.ReasonCodes[i] = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
		}
		if _, known := s.sub.subs.filters[filters[i].Filter]; known {
			s.b.forget(s.sub, filters[i].Filter)
			s.sub.stored.Unsubscribe(filters[i].Filter)
		}
		s.b.metrics.Refused("subscribe", "sessions_disk")
	}
	if !s.terse {
		ack.Properties.ReasonString = reason.String(err)
	}
	s.b.log.Warn("subscriptions are not stored", "client", s.client, "err", err)
	return nil
}
