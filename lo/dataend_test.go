package lo

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A streamEnd is what a CO's database would hold of one stream. Its fields are
// protected by the mutex of fakeCO.
type streamEnd struct {
	epoch    string
	seq      uint64
	events   []protocol.Event // in the order of their commit, with Seq
	last     protocol.Batch   // without its events
	probes   int
	retained map[string]string   // payloads, by topic
	marked   map[string]struct{} // not named since RetainedBegin; nil: there was none
}

// acceptData does what the CO's ingest does with a batch of machine data. The
// caller holds c.mu.
func (c *fakeCO) acceptData(ctx context.Context, site protocol.SiteID, b protocol.Batch) error {
	e := c.streams[b.Stream]
	if e == nil {
		e = &streamEnd{retained: map[string]string{}}
		if c.streams == nil {
			c.streams = map[string]*streamEnd{}
		}
		c.streams[b.Stream] = e
	}
	array := binary.BigEndian.AppendUint32([]byte{4<<5 | 26}, b.Count)
	var events []protocol.Event
	if b.Count == 0 {
		e.probes++
	} else if err := protocol.Unmarshal(append(array, b.Events...), &events); err != nil {
		c.t.Errorf("batch of %s: %v", b.Stream, err)
		return err
	}
	e.last = b
	e.last.Events = nil
	if b.Count > 0 && !c.hold {
		if b.First == b.Trimmed+1 && (e.epoch != b.Epoch || e.seq < b.Trimmed) {
			e.epoch, e.seq = b.Epoch, b.Trimmed
		}
		for i := range events {
			if events[i].Seq = b.First + uint64(i); e.epoch == b.Epoch && events[i].Seq == e.seq+1 {
				e.seq++
				e.commit(c.t, events[i])
			}
		}
	}
	ack := protocol.Ack{V: protocol.Version, Epoch: e.epoch, Seq: e.seq, Stream: b.Stream}
	return c.b.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.Ack, site), Payload: protocol.Marshal(&ack), QoS: 1})
}

func (e *streamEnd) commit(t *testing.T, event protocol.Event) {
	e.events = append(e.events, event)
	switch event.Kind { //nolint:exhaustive // the others are only counted
	case protocol.RetainedBegin:
		e.marked = map[string]struct{}{}
		for name := range e.retained {
			e.marked[name] = struct{}{}
		}
	case protocol.RetainedEnd:
		for name := range e.marked {
			delete(e.retained, name)
		}
		e.marked = nil
	case protocol.DataEvent:
		m := decoded(t, event)
		if !m.Retain {
			return
		}
		delete(e.marked, m.Topic)
		if e.retained[m.Topic] = string(m.Payload); len(m.Payload) == 0 {
			delete(e.retained, m.Topic)
		}
	}
}

func decoded(t *testing.T, e protocol.Event) protocol.DataMessage {
	t.Helper()
	var m protocol.DataMessage
	if err := protocol.Unmarshal(e.Body, &m); err != nil {
		t.Error(err)
	}
	return m
}

// stream returns a copy of what arrived of a rule's stream.
func (c *fakeCO) stream(rule string) streamEnd {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.streams[protocol.DataStream(rule)]
	if e == nil {
		return streamEnd{}
	}
	out := *e
	out.events, out.retained = slices.Clone(e.events), maps.Clone(e.retained)
	return out
}

// payloads returns what a stream delivered on topics with a prefix, as topic=payload.
func (c *fakeCO) payloads(rule, prefix string) []string {
	var out []string
	for _, e := range c.stream(rule).events {
		if e.Kind != protocol.DataEvent {
			continue
		}
		if m := decoded(c.t, e); strings.HasPrefix(m.Topic, prefix) {
			out = append(out, m.Topic+"="+string(m.Payload))
		}
	}
	return out
}

// count returns how many events of a kind a stream delivered.
func (c *fakeCO) count(rule string, kind protocol.EventKind) int {
	n := 0
	for _, e := range c.stream(rule).events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// rules is a desired state of data rules only, whose batches the test can read.
func rules(generation uint64, of ...protocol.DataRule) protocol.SiteDesired {
	m := protocol.SiteDesired{V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: generation}, Data: slices.Clone(of)}
	for i := range m.Data {
		m.Data[i].Uncompressed = true
		if m.Data[i].QoS == 0 {
			m.Data[i].QoS = 1
		}
	}
	return m
}

// inForce waits until an LO has adopted the desired state of a generation.
func inForce(t *testing.T, l *LO, m protocol.SiteDesired) {
	t.Helper()
	eventually(t, "the rules are in force", func() bool {
		held, ok := l.desired.Current()
		return ok && held.Position == m.Position &&
			string(protocol.Marshal(l.data.Rules())) == string(protocol.Marshal(m.Data))
	})
}

// An app is a client of the site's broker.
type app struct {
	t   *testing.T
	c   *client.Client
	got chan client.Message
}

// startApp connects a workload to the site's broker.
func startApp(t *testing.T, l *LO, name string, filters ...string) *app {
	t.Helper()
	a := &app{t: t, got: make(chan client.Message, 1024)}
	o := client.Options{
		URLs: []string{"tcp://" + l.MQTTAddr()}, ClientID: name + "@s1", Username: name + "@s1", MaxBackoff: 50 * time.Millisecond, Logger: logger(t),
		Handle: func(_ context.Context, m client.Message) error {
			a.got <- m
			return nil
		},
	}
	for _, f := range filters {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: f, QoS: 1})
	}
	up := make(chan struct{}, 16)
	o.OnUp = func(context.Context, string) { up <- struct{}{} }
	var err error
	if a.c, err = client.New(o); err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, a.c)
	select {
	case <-up:
	case <-time.After(patience):
		t.Fatal("the app did not connect")
	}
	return a
}

// publish sends a message of QoS 1 and fails the test unless it is acknowledged.
func (a *app) publish(m client.Message) {
	a.t.Helper()
	if m.Topic != "" && !strings.HasPrefix(m.Topic, "plc/") {
		m.Topic = topic.ForTail(topic.Data, "s1", m.Topic)
	}
	if err := a.try(m); err != nil {
		a.t.Fatalf("publish on %s: %v", m.Topic, err)
	}
}

func (a *app) try(m client.Message) error {
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	return a.c.Publish(ctx, m)
}

func text(name, payload string) client.Message {
	return client.Message{Topic: name, Payload: []byte(payload), QoS: 1}
}

// next returns the next message that the app received.
func (a *app) next() client.Message {
	a.t.Helper()
	select {
	case m := <-a.got:
		return m
	case <-time.After(patience):
		a.t.Fatal("no message")
		return client.Message{}
	}
}

// streamOf returns the status of the stream of a rule.
func streamOf(t *testing.T, l *LO, rule string) data.StreamStatus {
	t.Helper()
	for _, stream := range l.data.Status() {
		if stream.Rule == rule {
			return stream
		}
	}
	t.Fatalf("no stream of rule %s", rule)
	return data.StreamStatus{}
}

// linked waits until the streams know that the link is up, or down.
func linked(t *testing.T, l *LO, up bool) {
	t.Helper()
	eventually(t, "the streams know the state of the link", func() bool {
		return !slices.ContainsFunc(l.data.Status(), func(stream data.StreamStatus) bool { return stream.Connected != up })
	})
}
