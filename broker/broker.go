// Package broker is the MQTT 5 and 3.1.1 broker that the Central and the Local
// Orchestrator embed. It owns nothing: what it retains is in memory, and its
// owner publishes it again after a restart. Sessions end with their connection,
// and MQTT 5 clients are told so in CONNACK.
//
// The protocol engine is mochi. What mochi lacks, or gets wrong in a way that
// could lose or leak something of Colony's, is put right around it: see conn.go
// for the connections, hook.go and session.go for identity, wills, flow control
// and the Take function, and DESIGN.md for what cannot be reached from outside.
package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/protocol"
)

// pendingWrites is the length of mochi's queue between a message's publisher and
// the goroutine that encodes it for one subscriber. That goroutine never waits
// for the network. Messages of QoS 1 and 2 take half of the places, and publishers
// wait for one; QoS 0 finds the rest. Each place costs 8 bytes for each connection.
const pendingWrites = 256

// spareInflight is by how much mochi's own cap on unacknowledged messages, above
// which it drops them unseen, lies over ours, at which the client is disconnected.
const spareInflight = 1024

// ownPublisher is the origin of what Publish sends. No client can have this id.
const ownPublisher = "$colony"

// A Broker serves MQTT on its listeners. Its methods may be called concurrently.
type Broker struct {
	o       Options
	log     *slog.Logger
	metrics *metrics

	server *mqtt.Server
	self   *mqtt.Client // in whose name Publish sends

	ctx    context.Context // ends when Stop begins
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections, and what closes them

	buffered atomic.Int64 // bytes that wait in all write buffers

	mu        sync.Mutex // protects what follows
	state     state
	endpoints map[string]*endpoint
	conns     map[*conn]struct{}
	sessions  map[string]*session // by client id
	perName   map[string]int      // sessions by name of identity
}

type state int

const (
	created state = iota
	running
	stopped
)

// New returns a broker that is not started. The error lists every fault of o.
func New(o Options) (*Broker, error) {
	if err := o.Validate(); err != nil {
		return nil, &protocol.Error{Kind: protocol.Invalid, Message: "broker " + o.Name + ": " + err.Error(), Err: err}
	}
	o.Limits.defaults()
	fill(&o.SysInterval, 30*time.Second)
	b := &Broker{
		o:         o,
		log:       o.Logger.With("component", "broker", "broker", o.Name),
		endpoints: make(map[string]*endpoint),
		conns:     make(map[*conn]struct{}),
		sessions:  make(map[string]*session),
		perName:   make(map[string]int),
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.server = mqtt.New(&mqtt.Options{
		Capabilities:           capabilities(o.Limits),
		SysTopicResendInterval: max(1, int64(o.SysInterval/time.Second)),
		// A packet that is larger than the buffer is read past it.
		ClientNetReadBufferSize: 1 << 10,
		Logger:                  slog.New(onlyErrors{b.log.Handler()}),
	})
	b.self = b.server.NewClient(nil, mqtt.LocalListener, ownPublisher, true)
	b.self.Properties.ProtocolVersion = 5 // so that a message may expire
	if err := b.server.AddHook(&hook{b: b}, nil); err != nil {
		return nil, fmt.Errorf("add broker hook: %w", err)
	}
	b.metrics = newMetrics(b)
	return b, nil
}

// capabilities sets mochi up. Its defaults are not ours: it deletes retained
// messages after a day, remembers clients for ever and takes packets of any size.
func capabilities(l Limits) *mqtt.Capabilities {
	c := mqtt.NewDefaultServerCapabilities()
	c.MaximumMessageExpiryInterval = 0 // retained state stays until its owner clears it
	c.MaximumSessionExpiryInterval = 0
	c.MaximumClientWritesPending = pendingWrites
	c.MaximumPacketSize = l.PacketBytes
	c.MaximumInflight = uint16(l.Unacknowledged + spareInflight)
	c.TopicAliasMaximum = 0 // mochi checks access before it resolves an alias
	c.Compatibilities.NoInheritedPropertiesOnAck = true
	return c
}

// Start opens the listeners and serves them until Stop. It returns when clients
// can connect. A broker is started once.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != created {
		return protocol.Errorf(protocol.Conflict, "broker %s: started twice", b.o.Name)
	}
	for _, l := range b.o.Listeners {
		e, err := b.open(ctx, l)
		if err == nil {
			err = b.server.AddListener(e)
		}
		if err != nil {
			for _, e := range b.endpoints {
				e.close()
			}
			b.state = stopped
			return fmt.Errorf("broker %s: listener %s: %w", b.o.Name, l.Name, err)
		}
		b.endpoints[l.Name] = e
		b.log.InfoContext(ctx, "broker listens", "listener", l.Name, "network", l.Network, "address", e.Address())
	}
	if err := b.metrics.register(b.o.Registerer); err != nil {
		for _, e := range b.endpoints {
			e.close()
		}
		b.state = stopped
		return fmt.Errorf("broker %s: register metrics: %w", b.o.Name, err)
	}
	if err := b.server.Serve(); err != nil {
		return fmt.Errorf("broker %s: serve: %w", b.o.Name, err)
	}
	b.state = running
	return nil
}

// Stop closes the listeners, disconnects every client with the reason "server
// shutting down", and waits for all of them, or for ctx, after which connections
// are cut. Last wills are not sent: the clients are as alive as before, and what
// the broker retains goes with it.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	was := b.state
	b.state = stopped
	open := make([]*conn, 0, len(b.conns))
	for c := range b.conns {
		open = append(open, c)
	}
	b.mu.Unlock()
	b.cancel()
	if was != running {
		return nil
	}
	for _, e := range b.endpoints { // written by Start only
		e.close()
	}
	for _, c := range open {
		b.disconnect(c, packets.ErrServerShuttingDown)
	}
	done := make(chan struct{})
	go func() { // ends at the latest when the last Take returns
		b.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("stop broker %s: %w", b.o.Name, ctx.Err())
		for _, c := range open {
			c.abort("stop")
		}
		select {
		case <-done:
		case <-time.After(linger):
			return fmt.Errorf("%w; a Take function has not returned", err)
		}
	}
	b.metrics.unregister(b.o.Registerer)
	// Only now: mochi's own way to close all clients takes a lock twice and can
	// block for good while a client connects.
	return errors.Join(err, b.server.Close())
}

// Addr returns the address that a listener got, host:port or a path, or "" if
// there is no listener of that name or the broker is not started.
func (b *Broker) Addr(listener string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.endpoints[listener]; e != nil {
		return e.Address()
	}
	return ""
}

// Publish sends m to the subscribers, and retains it if it says so, without
// access control and without Take. It does not wait for the subscribers. The
// payload must not be changed afterwards.
func (b *Broker) Publish(ctx context.Context, m Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.Topic == "" || strings.ContainsAny(m.Topic, "+#\x00") || m.Topic[0] == '$' {
		return protocol.Errorf(protocol.Invalid, "publish to %q: want a topic without wildcards that does not begin with $", m.Topic)
	}
	if m.QoS > 2 {
		return protocol.Errorf(protocol.Invalid, "publish to %s: QoS %d: want 0, 1 or 2", m.Topic, m.QoS)
	}
	b.mu.Lock()
	serving := b.state == running
	b.mu.Unlock()
	if !serving {
		return protocol.Errorf(protocol.Unavailable, "publish to %s: broker %s is not running", m.Topic, b.o.Name)
	}
	return b.inject(m)
}

func (b *Broker) inject(m Message) error {
	p := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: m.QoS, Retain: m.Retain},
		TopicName:   m.Topic,
		Payload:     m.Payload,
		PacketID:    uint16(m.QoS), // not used, but may not be 0 with QoS 1 and 2
		Properties: packets.Properties{
			MessageExpiryInterval: m.ExpirySeconds(),
			ContentType:           m.ContentType,
			ResponseTopic:         m.ResponseTopic,
			CorrelationData:       m.CorrelationData,
		},
	}
	for _, u := range m.Properties {
		p.Properties.User = append(p.Properties.User, packets.UserProperty{Key: u.Key, Val: u.Value})
	}
	if err := b.server.InjectPacket(b.self, p); err != nil {
		return protocol.Errorf(protocol.Internal, "publish to %s: %w", m.Topic, err)
	}
	return nil
}

// Retained returns the retained messages whose topics match a filter, in no
// order. Their owner uses it to clear those that it no longer wants.
func (b *Broker) Retained(filter string) []Message {
	found := b.server.Topics.Messages(filter)
	if parent, ok := strings.CutSuffix(filter, "/#"); ok && !strings.ContainsAny(parent, "+#") {
		found = append(found, b.server.Topics.Messages(parent)...) // a/# matches a, which mochi forgets
	}
	out := make([]Message, 0, len(found))
	for _, p := range found {
		m := messageOf(p)
		m.Retain = true
		out = append(out, m)
	}
	return out
}

// messageOf is a PUBLISH packet as a Message.
func messageOf(p packets.Packet) Message {
	m := Message{
		Topic: p.TopicName, Payload: p.Payload, QoS: p.FixedHeader.Qos, Retain: p.FixedHeader.Retain,
		Expiry:          time.Duration(p.Properties.MessageExpiryInterval) * time.Second,
		ContentType:     p.Properties.ContentType,
		ResponseTopic:   p.Properties.ResponseTopic,
		CorrelationData: p.Properties.CorrelationData,
	}
	m.Properties = propertiesOf(p.Properties.User)
	return m
}

func propertiesOf(user []packets.UserProperty) []Property {
	var out []Property
	for _, u := range user {
		out = append(out, Property{Key: u.Key, Value: u.Val})
	}
	return out
}

// track notes a new connection; false if there is no room for it, or the broker stops.
func (b *Broker) track(c *conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stopped || len(b.conns) >= b.o.Limits.Connections {
		return false
	}
	b.conns[c] = struct{}{}
	b.wg.Add(1) // under mu, so that Stop does not wait for none and miss this one
	return true
}

func (b *Broker) untrack(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	b.wg.Done()
}

// disconnect ends a connection for a reason, which an MQTT 5 client is told.
func (b *Broker) disconnect(c *conn, code packets.Code) {
	// Not by mochi: it may leave the packet in a buffer that it then forgets.
	if s := c.session.Load(); s != nil && s.v5 {
		p := packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: 5, ReasonCode: code.Code,
			Properties: packets.Properties{ReasonString: code.Reason},
		}
		var buf bytes.Buffer
		if err := p.DisconnectEncode(&buf); err == nil {
			_, _ = c.Write(buf.Bytes()) // a connection that is gone needs no reason
		}
	}
	if cl := c.client.Load(); cl != nil {
		cl.Stop(code)
	}
	_ = c.Close() // never fails
}

// onlyErrors passes mochi's errors to the broker's log. Below that level mochi
// logs whole packets, with payloads and passwords, and the hooks say the same better.
type onlyErrors struct{ slog.Handler }

func (h onlyErrors) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelError && h.Handler.Enabled(ctx, l)
}

func (h onlyErrors) WithAttrs(as []slog.Attr) slog.Handler {
	return onlyErrors{h.Handler.WithAttrs(as)}
}

func (h onlyErrors) WithGroup(name string) slog.Handler { return onlyErrors{h.Handler.WithGroup(name)} }

// clearSocket removes a Unix socket that a killed process left behind.
func clearSocket(path string) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close() // somebody serves it: Listen will say so
		return
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path) // Listen says what is wrong if this failed
	}
}
