package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/internal/refusals"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/lasting"
	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/packet"
	"github.com/colonyfleet/colony/broker/reason"
	"github.com/colonyfleet/colony/broker/routing"
	"github.com/colonyfleet/colony/broker/sessions"
)

// storeTimeout is how long a client waits for its subscription to be on disk.
const storeTimeout = 30 * time.Second

// openStore opens what is stored of sessions, and subscribes for them. b.mu is held.
func (b *Broker) openStore(ctx context.Context) (err error) {
	if b.o.Sessions.Off() {
		return nil
	}
	b.store, err = lasting.Open(ctx, lasting.Options{Storage: b.o.Sessions, Logger: b.log, Routes: b.routes, Metrics: b.metrics, Will: func(one *sessions.Session, w *sessions.Will) { b.wills.SendStored(one, w, b.atOnce()) }})
	if err != nil {
		return fmt.Errorf("broker %s: %w", b.o.Name, err)
	}
	return nil
}

func (b *Broker) closeStore() error {
	if b.store == nil {
		return nil
	}
	return b.store.Close()
}

// mayResume refuses a connection whose client id has a stored session of another identity. While the client id has no
// connection, there comes none.
func (b *Broker) mayResume(s *session) error {
	if b.store == nil {
		return nil
	}
	if stored := b.store.Get(s.client); stored != nil && stored.Owner().Name != s.id.Name {
		return reason.Held(s.client, stored.Owner().Name, false)
	}
	return nil
}

// A resumed is what a connection begins with.
type resumed struct {
	present bool   // a session that was stored
	note    string // what its client is to know; "": nothing
}

// undone is what a client is to know whose session begins or ends while the disk takes nothing.
const undone = "the disk of the broker takes nothing now: after a crash of the broker your session is as it was before, or there again if it has ended"

// resume gives a connection the session that is stored for its client, or a new one if it asks
// for one. s is the one connection of its client id.
func (b *Broker) resume(s *session, clean bool) (begun resumed, err error) {
	if b.store == nil {
		return begun, nil
	}
	s.expiry = b.store.Expiry(s.asked)
	stored := b.store.Get(s.client)
	if stored != nil && clean { // [MQTT-3.1.2-4]
		b.store.End(stored)
		if err := b.flush(); err != nil {
			b.notStored(s, "the end of a session is not stored", err)
			begun.note = undone
		}
		stored = nil
	}
	if stored != nil {
		if begun.present, err = b.attach(s, stored, &begun); begun.present || err != nil { // [MQTT-3.1.2-5]
			return begun, err
		}
	}
	if s.expiry == 0 {
		return begun, nil
	}
	owner := sessions.Owner{Name: s.id.Name, Identity: s.id.Encode(), Address: s.conn.address()}
	if stored, err = b.store.Create(s.client, owner, s.expiry); err != nil {
		return begun, &reason.Refusal{Code: packets.ErrQuotaExceeded, Message: err.Error()}
	}
	_, err = b.attach(s, stored, &begun)
	return begun, err
}

// attach connects s to a stored session, and notes what its client is to know; false if the session has ended. It fails where the disk does not answer: what is sent then would come without
// DUP after a crash.
func (b *Broker) attach(s *session, stored *sessions.Session, begun *resumed) (there bool, err error) {
	sub := b.store.Subscriber(stored)
	if sub == nil {
		return false, nil
	}
	link := stored.Attach(sessions.Receiver{
		V5: s.v5, Window: s.window, Largest: s.largest, Wake: s.conn.Wake,
		May:  func(topic string) bool { return b.o.Access.MaySubscribe(s.id, topic) },
		Sent: s.countSent,
		Cut:  func(key string) { b.endSlow(s.conn, sessions.DroppedTotal, key) }, // the store counts what it drops
		Will: s.will.Stored(s.expiry),
	}, s.expiry)
	if link == nil {
		return false, nil
	}
	s.sub, s.link = sub, link
	b.routes.HoldWill(sub, 0)         // it is not sent any more
	if err := b.flush(); err != nil { // so that Received has what the former connection has sent
		b.notStored(s, "a session is resumed while the disk fails", err)
		begun.note = undone
		if errors.Is(err, context.DeadlineExceeded) {
			return true, &reason.Refusal{Code: packets.ErrServerUnavailable, Message: "the disk of the broker does not answer: try again later"}
		}
	}
	s.pending.Add(stored.Received()...)
	return true, nil
}

// retire ends the part of a session that belongs to its connection: the last will is sent or waits
// for its delay, the subscriptions end or stay.
func (b *Broker) retire(s *session) {
	stopping := b.ctx.Err() != nil
	b.routes.Held.Add(s.conn.address(), -s.will.Held-s.aliases.Held())
	if s.link == nil {
		b.routes.ForgetAll(s.sub)
	}
	var later *sessions.Will
	if s.will.Message != nil && !s.clean.Load() {
		switch delay := s.will.After(s.expiry); {
		case s.link != nil && delay > 0: // [MQTT-3.1.3-9]
			b.routes.HoldWill(s.sub, s.will.Held)
			later = s.will.Stored(s.expiry)
			later.At = b.store.WillAt(delay)
		case !stopping:
			b.wills.Send(s.id, s.will.Message, s.will.Expiry, s.waiting(routing.Patience))
		}
	}
	switch {
	case s.link == nil:
	case s.expiry == 0:
		b.store.End(s.sub.Stored)
		if err := b.store.Err(); err != nil {
			b.notStored(s, "the end of a session is not stored", err)
		}
	default:
		s.sub.Leave()
		s.link.Detach(s.expiry, later)
		b.store.Rest(s.sub)
	}
}

// storeFrom stores a message of a client, and acknowledges or refuses it then.
func (b *Broker) storeFrom(s *session, to []sessions.Target, m *message.Message, id uint16) {
	p := &sessions.Publish{Expires: b.store.Until(m.Expires)}
	if len(to) > 0 {
		p = b.routes.Publication(to, m)
	}
	if m.QoS == 2 && s.link != nil {
		p.From, p.ID = s.sub.Stored, id
	}
	s.conn.BeginAnswer()
	begun := time.Now()
	b.store.Publish(p, func(err error) {
		defer s.conn.EndAnswer()
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
	b.store.Publish(&sessions.Publish{From: s.sub.Stored, ID: id}, s.onceStored(packets.Pubrec, id)) // behind the first in the log
	return nil
}

// onceStored sends an acknowledgement when what it acknowledges is durable. A client that cannot get it is
// disconnected: it asks again on its next connection.
func (s *session) onceStored(kind byte, id uint16) func(error) {
	s.conn.BeginAnswer()
	return func(err error) {
		defer s.conn.EndAnswer()
		if err == nil {
			s.ack(kind, id, packets.CodeSuccess)
			return
		}
		s.b.disconnect(s.conn, reason.OfPublish(err))
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
		default:
			s.recorded(id)
		}
	case packet.Pubrel:
		if !s.pending.End(id) {
			s.ack(packets.Pubcomp, id, packets.ErrPacketIdentifierNotFound)
			return
		}
		s.sub.Stored.Finish(id, s.onceStored(packets.Pubcomp, id)) // [MQTT-4.3.3-11]
	}
}

// recorded acts on a PUBREC without an error.
func (s *session) recorded(id uint16) {
	switch s.link.Recorded(id, s.onceStored(packets.Pubrel, id)) {
	case sessions.UnknownPubrec:
		s.ack(packets.Pubrel, id, packets.ErrPacketIdentifierNotFound)
		s.conn.EndAnswer() // the disk has none
	case sessions.RepeatedPubrec:
		s.conn.EndAnswer() // that of the first is for both
	}
}

// notStored logs that something of a client is not stored: no more often than refusals, as the log may be on the same disk.
func (b *Broker) notStored(s *session, what string, err error) {
	b.refused.Warn("not stored", s.account, err.Error(), what, "client", refusals.Shortened(s.client), "err", err)
}

// flush waits until what was changed of sessions is durable.
func (b *Broker) flush() error {
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	return b.store.Flush(ctx)
}

// unsubscribed takes back the subscriptions of a SUBSCRIBE that could not be stored.
func (s *session) unsubscribed(ack *packets.Packet, filters packets.Subscriptions, err error) []routing.Replay {
	for i, code := range ack.ReasonCodes {
		if code >= packets.ErrUnspecifiedError.Code {
			continue
		}
		if ack.ReasonCodes[i] = packets.ErrQuotaExceeded.Code; !s.v5 {
			ack.ReasonCodes[i] = packets.ErrUnspecifiedError.Code // [MQTT-3.1.1, 3.9.3]
		}
		if s.sub.Subscribed(filters[i].Filter) {
			s.b.routes.Forget(s.sub, filters[i].Filter)
			s.sub.Stored.Unsubscribe(filters[i].Filter)
		}
		s.b.metrics.Refused("subscribe", "sessions_disk")
	}
	if !s.terse {
		ack.Properties.ReasonString = reason.String(err)
	}
	s.b.notStored(s, "subscriptions are not stored", err)
	return nil
}
