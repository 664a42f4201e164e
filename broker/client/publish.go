package client

import (
	"context"
	"fmt"
	"strings"

	"github.com/eclipse/paho.golang/packets"

	"github.com/colonyfleet/colony/protocol"
)

// PublishAll sends list in order, without waiting for the answer to one message before it sends the
// next: as many are under way at once as the broker allows. Messages published one after the other
// arrive in that order, as with Publish.
//
// If a message cannot be sent, or the broker will never accept it, refused is called with its index
// in list; the others are sent all the same. The error is that of Publish, of any kind but
// Unavailable. The calls come in the order of list, from the goroutine of the caller.
//
// Without an error all other messages are acknowledged, or handed to the network where their QoS is
// 0. With one, which is of kind Unavailable or ctx's, any of them may or may not have arrived:
// publish the whole list again.
func (c *Client) PublishAll(ctx context.Context, list []Message, refused func(i int, err error)) error {
	if len(list) == 0 {
		return nil
	}
	c.mu.Lock()
	l := c.up
	c.mu.Unlock()
	if l == nil {
		return protocol.Errorf(protocol.Unavailable, "publish %d messages from %s on: no link to the broker", len(list), list[0].Topic)
	}
	return l.publishAll(ctx, list, refused)
}

// A sending is a message under way.
type sending struct {
	answer <-chan reply // nil: the broker does not answer
	err    error        // why it was not sent
}

func (l *link) publishAll(ctx context.Context, list []Message, refused func(i int, err error)) error {
	final := func(err error) bool { return protocol.KindOf(err) != protocol.Unavailable && ctx.Err() == nil }
	sent := make([]sending, len(list))
	for i := range list {
		sent[i].answer, sent[i].err = l.begin(ctx, &list[i])
		if err := sent[i].err; err != nil && !final(err) {
			return err
		}
	}
	quickAck(l.conn)
	for i := range list {
		err := sent[i].err
		if err == nil {
			err = l.outcome(ctx, &list[i], sent[i].answer)
		}
		switch {
		case err == nil:
		case final(err):
			refused(i, err)
		default:
			return err
		}
	}
	return nil
}

// begin sends m. What it returns is for outcome.
func (l *link) begin(ctx context.Context, m *Message) (<-chan reply, error) {
	if m.QoS > min(1, l.terms.maxQoS) {
		return nil, protocol.Errorf(protocol.Invalid, "publish %s: QoS %d: this link carries up to %d", m.Topic, m.QoS, min(1, l.terms.maxQoS))
	}
	if m.Topic == "" || len(m.Topic) > 1<<16-1 || strings.ContainsAny(m.Topic, "+#\x00") {
		return nil, protocol.Errorf(protocol.Invalid, "publish to %.100q: want a topic of 1 to 65535 bytes without wildcards", m.Topic)
	}
	p := &packets.Publish{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Properties: properties(*m)}
	if m.QoS == 0 {
		l.wmu.Lock()
		defer l.wmu.Unlock()
		return nil, l.sendLocked(p, packets.PUBLISH)
	}
	select {
	case l.quota <- struct{}{}: // released by the acknowledgement
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, l.lost(m.Topic)
	}
	answer, err := l.ask(request{want: packets.PUBACK, codes: 1}, func(id uint16) error {
		p.PacketID = id
		return l.sendLocked(p, packets.PUBLISH)
	})
	if err != nil {
		return nil, fmt.Errorf("publish %s: %w", m.Topic, err)
	}
	return answer, nil
}

// outcome waits for the broker's answer to m.
func (l *link) outcome(ctx context.Context, m *Message, answer <-chan reply) error {
	if answer == nil {
		return nil
	}
	r, err := l.await(ctx, answer)
	if err != nil {
		return fmt.Errorf("publish %s: %w", m.Topic, err)
	}
	if r.codes[0] >= 0x80 {
		return refusal("publish "+m.Topic, r.codes[0], r.reason)
	}
	return nil
}

// request sends a packet with a new id and waits for its answer. r says which.
func (l *link) request(ctx context.Context, r request, send func(id uint16) error) (reply, error) {
	answer, err := l.ask(r, send)
	if err != nil {
		return reply{}, err
	}
	return l.await(ctx, answer)
}

// ask sends a packet with a new id. An id whose caller goes away stays taken until
// its answer comes.
func (l *link) ask(r request, send func(id uint16) error) (<-chan reply, error) {
	r.answer = make(chan reply, 1)
	l.wmu.Lock()
	defer l.wmu.Unlock()
	id := l.register(r)
	if err := send(id); err != nil {
		l.forget(id)
		return nil, err
	}
	return r.answer, nil
}

// await returns the answer to what ask has sent.
func (l *link) await(ctx context.Context, answer <-chan reply) (reply, error) {
	select {
	case r := <-answer:
		return r, nil
	case <-ctx.Done():
		if l.ctx.Err() == nil {
			return reply{}, ctx.Err()
		}
	case <-l.ctx.Done():
	}
	select {
	case r := <-answer: // it came together with the end
		return r, nil
	default:
		return reply{}, l.lost("wait for the acknowledgement")
	}
}
