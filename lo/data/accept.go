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
	"github.com/colonyfleet/colony/protocol/datarule"
	"github.com/colonyfleet/colony/protocol/topic"
)

// Accept is called for each message of machine data that a client of the site's
// broker publishes, before it is acknowledged; node is the client if it is one. A
// message that is to be kept is on disk when it returns nil: one of QoS 1 or 2, one
// of QoS 0 where its rule says so, and each that the broker retains, because what
// is retained here and at the CO must come to be the same. It fails with kind Unavailable where there is no room,
// and Invalid for a message that can never be taken.
func (d *Forwarder) Accept(ctx context.Context, node protocol.NodeID, m client.Message) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	rule, remote, ok := d.table.Load().Up(m.Topic)
	if !ok && !m.Retain {
		return nil // stays at the site, for whoever subscribed
	}
	if err := checkText(m); err != nil {
		return err
	}
	var l *stream
	if ok {
		if l = d.streams[rule.Name]; l == nil || l.draining {
			return protocol.Errorf(protocol.Unavailable, "data rule %s has no queue now: %s", rule.Name, cmp.Or(d.fault, "the site's local orchestrator stops"))
		}
	}
	if max := 1<<16 - 1; ok && len(topic.ForTail(topic.Data, d.o.Site, remote)) > max {
		return protocol.Errorf(protocol.Invalid, "topic of %d bytes: with what data rule %s puts before it at the CO it is longer than MQTT's %d", len(m.Topic), rule.Name, max)
	}
	msg := messageOf(m)
	if m.Retain || rule.Sample.Mode != protocol.SampleAll {
		one := d.oneTopic(m.Topic)
		one.Lock()
		defer one.Unlock()
	}
	if m.Retain {
		return d.acceptRetained(ctx, l, retained.Message{Topic: m.Topic, UnixMillis: d.Now().UnixMilli(), Node: node, Data: msg})
	}
	keep := m.QoS > 0 || rule.KeepQoS0
	if !keep && !d.up.Load() {
		l.counts.offline.Add(1)
		return nil
	}
	err := l.accept(ctx, m.Topic, node, outgoing(rule, remote, msg), keep)
	if err == nil {
		l.count(msg)
	} else if m.QoS > 0 {
		return err
	}
	// QoS 0 promises nothing to the CO: the site goes on with its message, and it is
	// counted as refused.
	return nil
}

// oneTopic is the lock of a topic, and of some others.
func (d *Forwarder) oneTopic(name string) *sync.Mutex {
	return &d.topics[maphash.String(d.seed, name)%uint64(len(d.topics))]
}

// acceptRetained stores a message that the broker will retain, or a deletion, and
// puts it into the queue of its rule, where l is not nil. The caller holds mu for
// reading.
func (d *Forwarder) acceptRetained(ctx context.Context, l *stream, m retained.Message) error {
	// A sender that goes away in the middle must not leave it open whether the queue
	// has what the store has.
	ctx = context.WithoutCancel(ctx)
	if l != nil {
		if err := l.markStale(); err != nil {
			return err
		}
	}
	d.order.RLock()
	defer d.order.RUnlock()
	before, had := d.retained.Get(m.Topic)
	if !had {
		before = retained.Message{Topic: m.Topic}
	}
	if had || len(m.Data.Payload) > 0 {
		if _, err := d.retained.Put(m); err != nil {
			return err
		}
	}
	if l == nil {
		return nil
	}
	_, remote, _ := d.table.Load().Up(m.Topic)
	body := event(l.queue.Now().UnixMilli(), m.Node, outgoing(&l.rule, remote, m.Data))
	if err := l.forward(ctx, m.Topic, m.Data.Payload, body, true); err != nil {
		// The sender is told that it was not taken, so a restart must not find it.
		if _, undo := d.retained.Put(before); undo != nil {
			d.log.ErrorContext(ctx, "retained message was refused, but may come back with a restart", "topic", m.Topic, "err", undo)
		}
		return err
	}
	l.count(m.Data)
	return nil
}

// count counts a message that was taken.
func (l *stream) count(m protocol.DataMessage) {
	l.counts.accepted.Add(1)
	l.counts.bytes.Add(uint64(len(m.Payload)))
}

// maxProperties is how many user properties a message may have. More than 32,768
// nobody could decode, see protocol.Unmarshal.
const maxProperties = 1024

// checkText refuses what no message of the protocol can carry.
func checkText(m client.Message) error {
	if len(m.Properties) > maxProperties {
		return protocol.Errorf(protocol.Invalid, "message on %q with %d user properties: the limit is %d", m.Topic, len(m.Properties), maxProperties)
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

// messageOf is a message as it was published, but for its topic.
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

// outgoing is the message as a rule delivers it.
func outgoing(r *protocol.DataRule, remote string, m protocol.DataMessage) protocol.DataMessage {
	m.Topic, m.QoS = remote, min(m.QoS, r.QoS)
	if m.Retain && len(m.Payload) == 0 {
		m.ExpiryMillis = 0 // however late, it deletes
		return m
	}
	if r.TTLMillis > 0 && (m.ExpiryMillis == 0 || m.ExpiryMillis > r.TTLMillis) {
		m.ExpiryMillis = r.TTLMillis
	}
	return m
}

// mirrored returns what is retained under the lane; the times are those of this
// machine's clock.
func (l *stream) mirrored() ([]protocol.Event, error) {
	table, now := l.forwarder.table.Load(), l.forwarder.Now()
	var out []protocol.Event
	var size int64
	for _, m := range l.forwarder.retained.Stream("") {
		r, remote, ok := table.Up(m.Topic)
		if !ok || r.Name != l.rule.Name {
			continue
		}
		msg := outgoing(r, remote, m.Data)
		if age := now.UnixMilli() - m.UnixMillis; msg.ExpiryMillis > 0 && age >= 0 && uint64(age) >= msg.ExpiryMillis {
			continue // for the CO its time is up, and a message that expires is a reason for another list
		}
		e := protocol.Event{UnixMillis: m.UnixMillis, Kind: protocol.DataEvent, Node: m.Node, Body: protocol.Marshal(&msg)}
		if n := len(e.Body) + eventHead; n <= l.largest() {
			out, size = append(out, e), size+int64(n)
		} else {
			l.forwarder.log.Error("retained message is too large for the queue of its data rule; the CO does not get it", "rule", r.Name, "topic", m.Topic, "bytes", n)
		}
	}
	if most := l.maxBytes() / 2; size > most {
		why := fmt.Sprintf("data rule %s: what the site retains under it takes %d bytes, and a queue can hold a list of %d at most, so that the CO may go on with what is stale: raise maxBytes of the rule above %d",
			l.rule.Name, size, most, 2*size)
		l.unlisted.Store(&why)
		return nil, protocol.Errorf(protocol.Invalid, "%s", why)
	}
	l.unlisted.Store(nil)
	return out, nil
}

// eventHead is more than an event takes beside its body and what the journal adds.
const eventHead = 128

// mapping returns for each rule what is retained under it, from where to where.
func (d *Forwarder) mapping(table *datarule.Table) map[string][]string {
	out := map[string][]string{}
	for _, m := range d.retained.Stream("") {
		if r, remote, ok := table.Up(m.Topic); ok {
			out[r.Name] = append(out[r.Name], m.Topic+"\x00"+remote)
		}
	}
	return out
}

// Republish gives the site's broker what it retained before a restart, before any client
// changes it.
func (d *Forwarder) Republish(ctx context.Context, publish func(context.Context, client.Message) error) error {
	d.order.Lock()
	defer d.order.Unlock()
	now := d.Now()
	for _, m := range d.retained.All() {
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
		if err := publish(ctx, out); err != nil {
			return fmt.Errorf("publish retained message %s: %w", m.Topic, err)
		}
	}
	return nil
}
