package data

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"unicode/utf8"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// Accept stores a message of machine data that a client of the site's broker publishes.
// The broker calls it before it acknowledges the message; node is the client, "" for one
// that is no node. On disk when it returns nil is a message of QoS 1 or 2, one of QoS 0
// whose rule has keepQoS0, and each that the broker retains. It fails with kind
// Unavailable where there is no room, and with Invalid for a message that can never be
// accepted.
func (f *Forwarder) Accept(ctx context.Context, node protocol.NodeID, m client.Message) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	rule, remote, ok := f.table.Load().Up(m.Topic)
	if !ok && !m.Retain {
		return nil // stays at the site, for its subscribers there
	}
	if err := checkText(m); err != nil {
		return err
	}
	var s *stream
	if ok {
		if s = f.streams[rule.Name]; s == nil || s.draining {
			return protocol.Errorf(protocol.Unavailable, "data rule %s has no queue now: %s", rule.Name, cmp.Or(f.fault, "the site's local orchestrator stops"))
		}
	}
	if max := 1<<16 - 1; ok && len(topic.ForTail(topic.Data, f.o.Site, remote)) > max {
		return protocol.Errorf(protocol.Invalid, "topic of %d bytes: with what data rule %s puts before it at the CO it is longer than MQTT's %d", len(m.Topic), rule.Name, max)
	}
	msg := messageOf(m)
	if m.Retain || rule.Sample.Mode != protocol.SampleAll {
		one := f.oneTopic(m.Topic)
		one.Lock()
		defer one.Unlock()
	}
	if m.Retain {
		return f.acceptRetained(ctx, s, retained.Message{Topic: m.Topic, UnixMillis: f.Now().UnixMilli(), Node: node, Data: msg})
	}
	keep := m.QoS > 0 || rule.KeepQoS0
	if !keep && !f.up.Load() {
		s.counts.offline.Add(1)
		return nil
	}
	err := s.accept(ctx, m.Topic, node, outgoing(rule, remote, msg), keep)
	if err == nil {
		s.count(msg)
	} else if m.QoS > 0 {
		return err
	}
	// QoS 0 promises the CO nothing: the site's clients get the message all the same, and
	// it is counted as refused.
	return nil
}

// oneTopic returns the lock of a topic; topics that hash alike share one.
func (f *Forwarder) oneTopic(name string) *sync.Mutex {
	return &f.topics[maphash.String(f.seed, name)%uint64(len(f.topics))]
}

// acceptRetained stores a message that the broker will retain, or a deletion, and
// appends it to the stream of its rule; s is nil if no rule matches. The caller holds mu
// for reading.
func (f *Forwarder) acceptRetained(ctx context.Context, s *stream, m retained.Message) error {
	// The end of the sender's connection must not leave the store and the queue with
	// different messages.
	ctx = context.WithoutCancel(ctx)
	if s != nil {
		if err := s.markStale(); err != nil {
			return err
		}
	}
	f.sequence.RLock()
	defer f.sequence.RUnlock()
	before, had := f.retained.Get(m.Topic)
	if !had {
		before = retained.Message{Topic: m.Topic}
	}
	var body []byte
	if s != nil {
		_, remote, _ := f.table.Load().Up(m.Topic)
		body = s.event(s.queue.Now().UnixMilli(), m.Node, outgoing(&s.rule, remote, m.Data))
		if err := s.fits(body); err != nil {
			return err
		}
	}
	if had || len(m.Data.Payload) > 0 {
		if _, err := f.retained.Put(m); err != nil {
			return err
		}
	}
	if s == nil {
		return nil
	}
	if err := s.forward(ctx, m.Topic, m.Data.Payload, body, true); err != nil {
		if err := f.revert(ctx, m, before, err); err != nil {
			return err
		}
		s.unqueued.Add(1)
	}
	s.count(m.Data)
	return nil
}

// revert puts the message before in the place of m, which the queue did not accept, and
// returns why: the sender gets the refusal of m, so that a restart must not find it.
// Where the store still holds m, as on a full disk, it returns nil: m then counts as
// accepted, and the CO gets it with the next snapshot of the stream.
func (f *Forwarder) revert(ctx context.Context, m, before retained.Message, why error) error {
	_, err := f.retained.Put(before)
	if err == nil {
		return why
	}
	held, ok := f.retained.Get(m.Topic)
	if ok == (len(m.Data.Payload) > 0) && (!ok || bytes.Equal(protocol.Marshal(&held), protocol.Marshal(&m))) {
		f.log.WarnContext(ctx, "the queue did not accept a retained message that the store cannot take back; the co gets it with the next snapshot",
			"topic", m.Topic, "queue_err", why, "err", err)
		return nil
	}
	// The store has changed, but not durably. It writes its file anew before it stores
	// anything else.
	if _, err := f.retained.Put(before); err != nil {
		f.log.ErrorContext(ctx, "retained message was refused, but a restart may restore it: the disk accepts no change", "topic", m.Topic, "err", err)
	}
	return why
}

// count counts an accepted message.
func (s *stream) count(m protocol.DataMessage) {
	s.counts.accepted.Add(1)
	s.counts.bytes.Add(uint64(len(m.Payload)))
}

// maxProperties is how many user properties a message may have. The CO cannot decode
// more than 32,768; see protocol.Unmarshal.
const maxProperties = 1024

// checkText refuses a message that the protocol cannot carry to the CO.
func checkText(m client.Message) error {
	if len(m.Properties) > maxProperties {
		return protocol.Errorf(protocol.Invalid, "message on %q has %d user properties: send %d at most", m.Topic, len(m.Properties), maxProperties)
	}
	ok := utf8.ValidString(m.Topic) && utf8.ValidString(m.ContentType) && utf8.ValidString(m.ResponseTopic)
	for _, p := range m.Properties {
		ok = ok && utf8.ValidString(p.Key) && utf8.ValidString(p.Value)
	}
	if !ok {
		return protocol.Errorf(protocol.Invalid, "message on %q: its topic or a property is not UTF-8", m.Topic)
	}
	return nil
}

// messageOf returns a message as it was published, without its topic.
func messageOf(m client.Message) protocol.DataMessage {
	out := protocol.DataMessage{
		V: protocol.Version, Payload: bytes.Clone(m.Payload), QoS: m.QoS, Retain: m.Retain, ExpiryMillis: uint64(m.Expiry.Milliseconds()),
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: bytes.Clone(m.CorrelationData),
	}
	for _, p := range m.Properties {
		out.Properties = append(out.Properties, p.Key, p.Value)
	}
	return out
}

// outgoing returns a message as a rule delivers it at the CO.
func outgoing(r *protocol.DataRule, remote string, m protocol.DataMessage) protocol.DataMessage {
	m.Topic, m.QoS = remote, min(m.QoS, r.QoS)
	if m.Retain && len(m.Payload) == 0 {
		m.ExpiryMillis = 0 // a deletion counts however late it arrives
		return m
	}
	if r.TTLMillis > 0 && (m.ExpiryMillis == 0 || m.ExpiryMillis > r.TTLMillis) {
		m.ExpiryMillis = r.TTLMillis
	}
	return m
}

// Republish gives restore what the site's broker retained before a restart, before any client
// changes it.
func (f *Forwarder) Republish(ctx context.Context, restore func(context.Context, client.Message) error) error {
	f.sequence.Lock()
	defer f.sequence.Unlock()
	now := f.Now()
	for _, m := range f.retained.All() {
		left, ok := m.ExpiresIn(now)
		if !ok {
			continue
		}
		out := client.Message{
			Topic: m.Topic, Payload: m.Data.Payload, QoS: m.Data.QoS, Retain: true, Expiry: left, ContentType: m.Data.ContentType,
			ResponseTopic: m.Data.ResponseTopic, CorrelationData: m.Data.CorrelationData,
		}
		for i := 0; i+1 < len(m.Data.Properties); i += 2 {
			out.Properties = append(out.Properties, client.Property{Key: m.Data.Properties[i], Value: m.Data.Properties[i+1]})
		}
		if err := restore(ctx, out); err != nil {
			return fmt.Errorf("restore retained message %s: %w", m.Topic, err)
		}
	}
	return nil
}
