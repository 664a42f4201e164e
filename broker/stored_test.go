package broker_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/protocol"
)

// stored makes a broker store sessions in a directory of the test.
func stored(t *testing.T, l sessions.Limits) func(*broker.Options) {
	dir := t.TempDir()
	return func(o *broker.Options) { o.Sessions = broker.Sessions{Dir: dir, Limits: l} }
}

// restart stops a broker and starts another one in its place, with the same edit.
func restart(t *testing.T, b *broker.Broker, edit func(*broker.Options)) (*broker.Broker, *prometheus.Registry) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	return start(t, free{}, edit)
}

// lasting makes CONNECT ask for a session of so many seconds, which it goes on with.
func lasting(seconds uint32) func(*packets.Packet) {
	return func(p *packets.Packet) {
		p.Connect.Clean = false
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = seconds, true
	}
}

// dialStored connects with a session, and checks whether there was one.
func dialStored(t *testing.T, b *broker.Broker, id string, present bool, edit func(*packets.Packet)) *raw {
	t.Helper()
	return dialAs(t, b, 5, id, present, edit)
}

func dialAs(t *testing.T, b *broker.Broker, version byte, id string, present bool, edit func(*packets.Packet)) *raw {
	t.Helper()
	r := dialRaw(t, b.Addr("main"))
	r.version = version
	if ack := r.mustConnect(id, edit); ack.SessionPresent != present {
		t.Fatalf("session present %v, want %v", ack.SessionPresent, present)
	}
	return r
}

// leave ends a connection without DISCONNECT, and waits until the broker has noticed.
func leave(t *testing.T, reg *prometheus.Registry, all ...*raw) {
	t.Helper()
	before := metric(t, reg, "clients_connected")
	for _, r := range all {
		_ = r.conn.Close()
	}
	until(t, "the broker notices the end of a connection", func() bool { return metric(t, reg, "clients_connected") <= before-float64(len(all)) })
}

func (r *raw) ack(kind byte, id uint16) {
	r.t.Helper()
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: kind, Qos: truth(kind == packets.Pubrel)}, PacketID: id})
}

func truth(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// wantMessage expects a PUBLISH.
func (r *raw) wantMessage(payload string, dup bool) packets.Packet {
	r.t.Helper()
	p := r.want(packets.Publish)
	if string(p.Payload) != payload || p.FixedHeader.Dup != dup {
		r.t.Fatalf("got %q, DUP %v, want %q and %v", p.Payload, p.FixedHeader.Dup, payload, dup)
	}
	return p
}

// A session outlives its connection, and the broker: subscriptions with their options, what came while
// the client was away, and what it had not acknowledged, in order. [MQTT-3.1.2-5]
// [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-4.4.0-1] [MQTT-4.1.0-1]
func TestSessionSurvives(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{4, 5} {
		edit := stored(t, sessions.Limits{})
		b, reg := start(t, free{}, edit)
		r := dialAs(t, b, version, "c", false, lasting(3600))
		r.subscribeAs(packets.Subscription{Filter: "t/#", Qos: 1, Identifier: 7, RetainAsPublished: true})
		put(t, b, broker.Message{Topic: "t/1", Payload: []byte("1"), QoS: 1})
		first := r.wantMessage("1", false)
		leave(t, reg, r)
		for i := 2; i < 5; i++ {
			put(t, b, broker.Message{Topic: "t/1", Payload: fmt.Append(nil, i), QoS: 1, Retain: i == 3})
		}
		put(t, b, broker.Message{Topic: "t/0", Payload: []byte("QoS 0")}) // is not stored
		b, reg = restart(t, b, edit)
		if n := metric(t, reg, "session_messages"); n != 4 {
			t.Errorf("%v messages are stored, want 4", n)
		}
		put(t, b, broker.Message{Topic: "t/1", Payload: []byte("5"), QoS: 2})
		r = dialAs(t, b, version, "c", true, lasting(3600))
		if p := r.wantMessage("1", true); p.PacketID != first.PacketID {
			t.Errorf("packet id %d, want %d as before", p.PacketID, first.PacketID)
		}
		for i := 2; i < 6; i++ {
			p := r.wantMessage(fmt.Sprint(i), false)
			if version == 5 && (p.FixedHeader.Retain != (i == 3) || !slices.Equal(p.Properties.SubscriptionIdentifier, []int{7})) {
				t.Errorf("message %d: retain %v, identifiers %v", i, p.FixedHeader.Retain, p.Properties.SubscriptionIdentifier)
			}
			r.ack(packets.Puback, p.PacketID)
		}
		r.ack(packets.Puback, first.PacketID)
		put(t, b, broker.Message{Topic: "t/1", Payload: []byte("live"), QoS: 1})
		r.ack(packets.Puback, r.wantMessage("live", false).PacketID)
		put(t, b, broker.Message{Topic: "t/0", Payload: []byte("live")})
		r.wantMessage("live", false)
		r.ping()
		leave(t, reg, r)
		b, _ = restart(t, b, edit)
		r = dialAs(t, b, version, "c", true, lasting(3600))
		r.ping() // and nothing before its answer
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 9, Filters: packets.Subscriptions{{Filter: "t/#"}},
		})
		r.want(packets.Unsuback)
		b, reg = restart(t, b, edit)
		if n := metric(t, reg, "subscriptions"); n != 0 {
			t.Errorf("%v subscriptions are there after UNSUBSCRIBE", n)
		}
		dialAs(t, b, version, "c", true, lasting(3600))
	}
}

// Clean Start ends a session, and so does a session expiry of 0, in CONNECT or in DISCONNECT. A client that
// asked for none cannot ask in DISCONNECT. [MQTT-3.1.2-4] [MQTT-3.1.2-23] [MQTT-3.14.2-2]
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{Expiry: time.Hour})
	b, reg := start(t, free{}, edit)
	begin := func(present bool, seconds uint32) *raw {
		t.Helper()
		r := dialStored(t, b, "c", present, lasting(seconds))
		r.subscribe("t", 1)
		return r
	}
	leave(t, reg, begin(false, 60))
	leave(t, reg, begin(true, 0))
	r := begin(false, 60)
	leave(t, reg, r)
	r = dialStored(t, b, "c", false, func(p *packets.Packet) { lasting(60)(p); p.Connect.Clean = true })
	put(t, b, broker.Message{Topic: "t", Payload: []byte("x"), QoS: 1})
	r.ping() // the subscription has ended
	leave(t, reg, r)
	r = begin(true, 60)
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, Properties: packets.Properties{SessionExpiryInterval: 0, SessionExpiryIntervalFlag: true},
	})
	r.wantEnd()
	until(t, "the session ends", func() bool { return metric(t, reg, "sessions") == 0 && metric(t, reg, "subscriptions") == 0 })
	r = begin(false, 1)
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, Properties: packets.Properties{SessionExpiryInterval: 1000, SessionExpiryIntervalFlag: true},
	})
	r.wantEnd()
	until(t, "the connection ends", func() bool { return metric(t, reg, "clients_connected") == 0 })
	r = begin(true, 1)
	leave(t, reg, r)
	until(t, "a session of one second expires", func() bool { return metric(t, reg, "sessions_expired_total") == 1 })
	if n := metric(t, reg, "subscriptions"); n != 0 {
		t.Errorf("%v subscriptions of an expired session", n)
	}
	r = dialRaw(t, b.Addr("main"))
	ack := r.mustConnect("long", lasting(math.MaxUint32)) // CONNACK names what it gets. [MQTT 5, 3.2.2.3.2]
	if got := ack.Properties.SessionExpiryInterval; got != 3600 {
		t.Errorf("session expiry %d s, want the limit of 3600", got)
	}
	put(t, b, broker.Message{Topic: "t", Payload: []byte("x"), QoS: 1})
	if n := metric(t, reg, "session_messages"); n != 0 {
		t.Errorf("%v messages for nobody", n)
	}
}

// A client that asks for no session pays for none, and a client of another identity does not get one.
func TestSessionBelongsToItsIdentity(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	guest(t, b, "plain").subscribe("t", 1)
	if n := metric(t, reg, "sessions"); n != 0 {
		t.Errorf("%v sessions are stored for a client that asks for none", n)
	}
	leave(t, reg, dialStored(t, b, "c", false, lasting(60)))
	r := dialRaw(t, b.Addr("main"))
	if ack := r.connect("c", func(p *packets.Packet) { lasting(60)(p); p.Connect.Username = []byte("thief") }); ack.ReasonCode != packets.ErrClientIdentifierNotValid.Code {
		t.Errorf("a foreign client: CONNACK with 0x%02x, want 0x85", ack.ReasonCode)
	}
	r = dialRaw(t, b.Addr("main"))
	if ack := r.connect("c", func(p *packets.Packet) { p.Connect.Username = []byte("thief") }); ack.ReasonCode != packets.ErrClientIdentifierNotValid.Code {
		t.Errorf("a foreign client with Clean Start: CONNACK with 0x%02x, want 0x85", ack.ReasonCode)
	}
	dialStored(t, b, "c", true, lasting(60))
}

// A connection that is refused, as the client id has a stored session of another identity, does not have the client id meanwhile:
// the client whose session it is connects at any moment.
func TestRefusedHoldsNothing(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	leave(t, reg, dialStored(t, b, "c", false, lasting(60)))
	connects, ends := metric(t, reg, "connects_total"), metric(t, reg, "disconnects_total")
	stop, thieves := make(chan struct{}), sync.WaitGroup{}
	end := sync.OnceFunc(func() { close(stop); thieves.Wait() })
	defer end()
	for range 4 {
		thieves.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := dialRaw(t, b.Addr("main"))
				r.connect("c", func(p *packets.Packet) { lasting(60)(p); p.Connect.Username = []byte("thief") })
				_ = r.conn.Close()
			}
		})
	}
	const times = 100
	for range times {
		r := dialStored(t, b, "c", true, lasting(60))
		_ = r.conn.Close()
	}
	end()
	until(t, "all connections have ended", func() bool { return metric(t, reg, "clients_connected") == 0 })
	until(t, "each end is counted", func() bool { return metric(t, reg, "disconnects_total") >= ends+times })
	if c, e := metric(t, reg, "connects_total")-connects, metric(t, reg, "disconnects_total")-ends; c != times || e != times {
		t.Errorf("%v connects and %v ends are counted, want %d: those who are refused have neither", c, e, times)
	}
}

// A new connection of the same client takes the session over from one that is still there. [MQTT-3.1.4-3]
func TestSessionTakeover(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, stored(t, sessions.Limits{}))
	old := dialStored(t, b, "c", false, lasting(60))
	old.subscribe("t", 1)
	put(t, b, broker.Message{Topic: "t", Payload: []byte("1"), QoS: 1})
	old.wantMessage("1", false)
	r := dialStored(t, b, "c", true, lasting(60))
	r.ack(packets.Puback, r.wantMessage("1", true).PacketID)
	old.wantCode(packets.Disconnect, packets.ErrSessionTakenOver.Code)
	put(t, b, broker.Message{Topic: "t", Payload: []byte("2"), QoS: 1})
	r.wantMessage("2", false)
}

// QoS 2 from a client and to it, with a restart of the broker in each state: each message comes once.
// [MQTT-4.3.3-1] to [MQTT-4.3.3-13]
func TestExactlyOnceOverRestarts(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{4, 5} {
		edit := stored(t, sessions.Limits{})
		b, _ := start(t, free{}, edit)
		from := dialAs(t, b, version, "from", false, lasting(3600))
		to := dialAs(t, b, version, "to", false, lasting(3600))
		to.subscribe("t", 2)
		again := func() {
			b, _ = restart(t, b, edit)
			from = dialAs(t, b, version, "from", true, lasting(3600))
			to = dialAs(t, b, version, "to", true, lasting(3600))
		}
		from.publish("t", "once", 2, 5)
		from.want(packets.Pubrec)
		id := to.wantMessage("once", false).PacketID
		again()
		to.wantMessage("once", true)
		p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 2, Dup: true}, TopicName: "t", Payload: []byte("once"), PacketID: 5}
		from.send(p)
		from.want(packets.Pubrec)
		to.ack(packets.Pubrec, id)
		to.want(packets.Pubrel)
		again()
		if p := to.want(packets.Pubrel); p.PacketID != id {
			t.Errorf("PUBREL of %d, want %d", p.PacketID, id)
		}
		from.ack(packets.Pubrel, 5)
		from.wantCode(packets.Pubcomp, 0)
		to.ack(packets.Pubcomp, id)
		to.ping()
		again()
		from.ack(packets.Pubrel, 5)
		if p := from.want(packets.Pubcomp); version == 5 && p.ReasonCode != packets.ErrPacketIdentifierNotFound.Code {
			t.Errorf("PUBCOMP of a packet id that is free: 0x%02x, want 0x92", p.ReasonCode)
		}
		from.publish("t", "next", 2, 5) // the id is free
		from.want(packets.Pubrec)
		to.wantMessage("next", false)
		to.ack(packets.Pubrec, 999)
		if p := to.want(packets.Pubrel); version == 5 && p.ReasonCode != packets.ErrPacketIdentifierNotFound.Code {
			t.Errorf("PUBREL of an unknown packet id: 0x%02x, want 0x92", p.ReasonCode)
		}
	}
}

// The Receive Maximum of each connection is kept, also for what is sent again. [MQTT-3.3.4-9]
func TestReceiveMaximumOnResume(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	with := func(maximum uint16) func(*packets.Packet) {
		return func(p *packets.Packet) { lasting(60)(p); p.Properties.ReceiveMaximum = maximum }
	}
	r := dialStored(t, b, "c", false, with(5))
	r.subscribe("t", 1)
	for i := range 10 {
		put(t, b, broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1})
	}
	for i := range 5 {
		r.wantMessage(fmt.Sprint(i), false)
	}
	r.ping()
	leave(t, reg, r)
	r = dialStored(t, b, "c", true, with(2))
	for i := range 10 {
		p := r.wantMessage(fmt.Sprint(i), i < 5)
		if i == 1 {
			r.ping() // and no third one
			r.ack(packets.Puback, p.PacketID-1)
		}
		if i > 0 {
			r.ack(packets.Puback, p.PacketID)
		}
	}
}

// A will waits for its delay or the end of its session, also over a restart of the broker, and is not sent to
// a client that comes back. [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.3-9]
func TestWillDelay(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	watch := func() *raw {
		r := guest(t, b, "watch")
		r.subscribe("will/#", 1)
		return r
	}
	w := watch()
	will := func(id string, present bool, expiry, delay uint32) *raw {
		return dialStored(t, b, id, present, func(p *packets.Packet) {
			lasting(expiry)(p)
			p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload, p.Connect.WillQos = true, "will/"+id, []byte(id), 1
			p.Connect.WillProperties = packets.Properties{WillDelayInterval: delay, ContentType: "text/plain"}
		})
	}
	leave(t, reg, will("now", false, 3600, 0))
	w.wantMessage("now", false)
	leave(t, reg, will("second", false, 3600, 1))
	if p := w.wantMessage("second", false); p.Properties.ContentType != "text/plain" {
		t.Errorf("will with content type %q", p.Properties.ContentType)
	}
	leave(t, reg, will("session", false, 1, 3600)) // [MQTT-3.1.3-9]
	w.wantMessage("session", false)
	leave(t, reg, will("back", false, 3600, 3600))
	r := will("back", true, 3600, 0)
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	r.wantEnd()
	leave(t, reg, will("clean", false, 3600, 3600))
	dialStored(t, b, "clean", false, func(p *packets.Packet) { p.Connect.Clean = true }) // ends the session
	w.wantMessage("clean", false)
	leave(t, reg, will("later", false, 3600, 2))
	b, _ = restart(t, b, edit)
	w = watch()
	w.wantMessage("later", false)
	w.ping() // and no other one
}

// Messages age while they wait for a client that is away. [MQTT-3.3.2-5] [MQTT-3.3.2-6]
func TestExpiryWhileAway(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("t", 1)
	leave(t, reg, r)
	for i, life := range []time.Duration{time.Second, time.Hour, 0} {
		put(t, b, broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1, Expiry: life})
	}
	<-time.After(1100 * time.Millisecond) // the first one's time passes
	b, reg = restart(t, b, edit)
	r = dialStored(t, b, "c", true, lasting(3600))
	if p := r.wantMessage("1", false); p.Properties.MessageExpiryInterval == 0 || p.Properties.MessageExpiryInterval > 3599 {
		t.Errorf("%d s are left of an hour", p.Properties.MessageExpiryInterval)
	}
	if p := r.wantMessage("2", false); p.Properties.MessageExpiryInterval != 0 {
		t.Errorf("%d s are left of for ever", p.Properties.MessageExpiryInterval)
	}
	if n := metric(t, reg, "dropped_total", "expired"); n != 1 {
		t.Errorf("%v expired messages counted, want 1", n)
	}
}

// What was sent and not acknowledged comes again when its time is up, with DUP and an expiry of 0, by which a client
// can tell it; and no more than its Receive Maximum of it. Without a session nothing comes again. [MQTT-4.4.0-1]
func TestExpiredCommandIsMarked(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	one := func(p *packets.Packet) {
		lasting(3600)(p)
		p.Properties.ReceiveMaximum = 1
	}
	r := dialStored(t, b, "c", false, one)
	r.subscribe("t", 1)
	passing := guest(t, b, "passing")
	passing.subscribe("t", 1)
	for _, payload := range []string{"sent", "waits"} {
		put(t, b, broker.Message{Topic: "t", Payload: []byte(payload), QoS: 1, Expiry: time.Second, Retain: true})
		passing.want(packets.Publish)
	}
	r.wantMessage("sent", false)
	leave(t, reg, r)
	_ = passing.conn.Close()
	until(t, "the time of both is up", func() bool { return len(b.Retained("t")) == 0 })
	r = dialStored(t, b, "c", true, one)
	head := make([]byte, 17) // topic, packet id, expiry, payload
	if _, err := io.ReadFull(r.r, head); err != nil {
		t.Fatal(err)
	}
	if want := "\x3a\x0f" + text("t") + string(head[5:7]) + "\x05\x02\x00\x00\x00\x00sent"; string(head) != want {
		t.Errorf("got % x, want % x: DUP, QoS 1, the expiry 0", head, want)
	}
	r.acknowledge(packets.Puback, uint16(head[5])<<8|uint16(head[6]), 0)
	r.ping() // the other one was never sent
	passing = guest(t, b, "passing")
	passing.ping()
}

// Above its bound a session loses its oldest messages, counted with the reason; its publishers are not
// slowed. What a client may not receive any more, or has no room for, it does not get.
func TestSessionBounds(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{Messages: 10, Sessions: 2}))
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("t", 1)
	leave(t, reg, r)
	pub := guest(t, b, "pub")
	for i := range 25 {
		pub.publish("t", fmt.Sprint(i), 1, uint16(i+1))
		pub.wantCode(packets.Puback, 0)
	}
	pub.publish("t", strings.Repeat("x", 1000), 1, 100)
	pub.wantCode(packets.Puback, 0)
	if n := metric(t, reg, "dropped_total", sessions.DroppedSession); n != 16 {
		t.Errorf("%v messages dropped, want 16", n)
	}
	r = dialStored(t, b, "c", true, func(p *packets.Packet) { lasting(3600)(p); p.Properties.MaximumPacketSize = 500 })
	for i := 16; i < 25; i++ {
		r.wantMessage(fmt.Sprint(i), false)
	}
	r.ping()
	if n := metric(t, reg, "dropped_total", "packet_too_large"); n != 1 {
		t.Errorf("%v too large messages counted, want 1", n)
	}
	dialStored(t, b, "d", false, lasting(3600))
	third := dialRaw(t, b.Addr("main"))
	if ack := third.connect("e", lasting(3600)); ack.ReasonCode != packets.ErrQuotaExceeded.Code || !strings.Contains(ack.Properties.ReasonString, "sessions") {
		t.Errorf("a third session: 0x%02x %q, want 0x97", ack.ReasonCode, ack.Properties.ReasonString)
	}
	dialStored(t, b, "e", false, lasting(0))
}

// revocable is an access control that changes.
type revocable struct {
	free
	denied func(topic string) bool
}

func (r revocable) MaySubscribe(_ access.Identity, topic string) bool { return !r.denied(topic) }

func (r revocable) MayPublish(_ access.Identity, topic string) bool { return !r.denied(topic) }

// A last will that waits is not sent where its client may not publish any more.
func TestRevokedWill(t *testing.T) {
	t.Parallel()
	var denied syncString
	var log lines
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, revocable{denied: denied.is}, func(o *broker.Options) { edit(o); log.logged(o) })
	watch := guest(t, b, "watch")
	watch.subscribe("will/#", 0)
	for _, id := range []string{"a", "b"} {
		leave(t, reg, dialStored(t, b, id, false, func(p *packets.Packet) {
			lasting(3600)(p)
			p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload = true, "will/"+id, []byte(id)
			p.Connect.WillProperties = packets.Properties{WillDelayInterval: 3600}
		}))
	}
	denied.set("will/a")
	for _, id := range []string{"a", "b"} { // the end of a session sends the will that waits
		if err := b.Disconnect(id, true); err != nil {
			t.Fatal(err)
		}
	}
	if p := watch.want(packets.Publish); p.TopicName != "will/b" {
		t.Errorf("got %s", p.TopicName)
	}
	if !log.has("last will not sent", "client=a", "topic=will/a") {
		t.Error("the log says nothing of the will that was not sent")
	}
}

// A client id that another identity has, with a connection or a session, is refused. The log says whose it is and what to
// do, the client does not read it. The operator ends the session, and the client id is free.
func TestHeldClientID(t *testing.T) {
	t.Parallel()
	var log lines
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, func(o *broker.Options) { edit(o); log.logged(o) })
	as := func(user string) func(*packets.Packet) {
		return func(p *packets.Packet) {
			lasting(3600)(p)
			p.Connect.UsernameFlag, p.Connect.Username = true, []byte(user)
		}
	}
	refused := func(what ...string) {
		t.Helper()
		ack := dialRaw(t, b.Addr("main")).connect("c", as("claimant"))
		if ack.ReasonCode != 0x85 || strings.Contains(ack.Properties.ReasonString, "holder") || !strings.Contains(ack.Properties.ReasonString, "another identity") {
			t.Errorf("CONNACK 0x%02x %q, want 0x85 without the name of who has it", ack.ReasonCode, ack.Properties.ReasonString)
		}
		if !log.has(append(what, "connect refused", "holder")...) {
			t.Errorf("the log does not say %q", what)
		}
	}
	r := dialStored(t, b, "c", false, as("holder"))
	refused("in use by holder")
	leave(t, reg, r)
	refused("a session of holder", "kick --session")
	if err := b.Disconnect("c", false); protocol.KindOf(err) != protocol.NotFound || !strings.Contains(err.Error(), "session of holder") || !strings.Contains(err.Error(), "--session") {
		t.Errorf("a client that is away: %v", err)
	}
	if err := b.Disconnect("c", true); err != nil {
		t.Fatal(err)
	}
	r = dialStored(t, b, "c", false, as("claimant"))
	for _, away := range []bool{false, true} {
		for _, endSession := range []bool{false, true} {
			if err := b.DisconnectOf("holder", "c", endSession); protocol.KindOf(err) != protocol.NotFound {
				t.Errorf("a client that another identity has, away %v: %v", away, err)
			}
		}
		if !away {
			r.ping()
			leave(t, reg, r)
		}
	}
	r = dialStored(t, b, "c", true, as("claimant"))
	if err := b.DisconnectOf("claimant", "c", true); err != nil {
		t.Error(err)
	}
	r.wantCode(packets.Disconnect, packets.ErrAdministrativeAction.Code)
	if left := b.Clients(); len(left) > 0 {
		t.Errorf("%+v is left", left)
	}
}

// What a client may not subscribe to any more it does not get, though it is in its session.
func TestRevokedWhileAway(t *testing.T) {
	t.Parallel()
	var denied syncString
	b, reg := start(t, revocable{denied: denied.is}, stored(t, sessions.Limits{}))
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("t/#", 1)
	leave(t, reg, r)
	for _, topic := range []string{"t/a", "t/b"} {
		put(t, b, broker.Message{Topic: topic, Payload: []byte(topic), QoS: 1})
	}
	denied.set("t/a")
	put(t, b, broker.Message{Topic: "t/a", Payload: []byte("later"), QoS: 1})
	r = dialStored(t, b, "c", true, lasting(3600))
	r.wantMessage("t/b", false)
	r.ping()
	if n := metric(t, reg, "dropped_total", "access"); n != 2 {
		t.Errorf("%v messages counted as refused, want 2", n)
	}
}

// A shared subscription gives a message to a member with a connection, and only if there is none it is
// stored for one that is away. [MQTT-4.8.2-4] [MQTT-4.8.2-5] [MQTT-4.8.2-6]
func TestSharedWithAbsent(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	away := dialStored(t, b, "away", false, lasting(3600))
	away.subscribe("$share/g/t", 1)
	leave(t, reg, away)
	put(t, b, broker.Message{Topic: "t", Payload: []byte("stored"), QoS: 1})
	for _, id := range []string{"plain", "stored"} {
		r := dialStored(t, b, id, false, lasting(uint32(len(id)-len("plain"))*60))
		r.subscribe("$share/g/t", 1)
		for range 4 {
			put(t, b, broker.Message{Topic: "t", Payload: []byte("live"), QoS: 1})
			r.ack(packets.Puback, r.wantMessage("live", false).PacketID)
		}
		leave(t, reg, r)
	}
	if n := metric(t, reg, "session_messages"); n != 1 {
		t.Errorf("%v messages are stored, want the first", n)
	}
	away = dialStored(t, b, "away", true, lasting(3600))
	away.wantMessage("stored", false)
}

// Where a member of a shared subscription without a session lags behind, a message is stored for one with a
// session: sent past its queue it would have the packet id of another message. [MQTT-2.2.1-3]
func TestSharedWithOneThatLags(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, func(o *broker.Options) {
		stored(t, sessions.Limits{})(o)
		o.Limits.WriteBuffer = 64 << 10
	})
	slow := dialRaw(t, b.Addr("main"))
	slow.mustConnect("slow", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 })
	slow.subscribe("$share/g/t", 1)
	slow.subscribe("fill", 1)
	s := dialStored(t, b, "s", false, lasting(3600))
	s.subscribe("$share/g/t", 1)
	s.subscribe("own", 1)
	put(t, b, broker.Message{Topic: "own", Payload: []byte("own"), QoS: 1})
	used := map[uint16]bool{s.wantMessage("own", false).PacketID: true}
	for range 3 { // one is sent, and the others wait for its acknowledgement
		put(t, b, broker.Message{Topic: "fill", Payload: make([]byte, 20_000), QoS: 1})
	}
	for i := range 6 {
		put(t, b, broker.Message{Topic: "t", Payload: fmt.Append(nil, i), QoS: 1})
		p := s.wantMessage(fmt.Sprint(i), false)
		if used[p.PacketID] {
			t.Errorf("message %d has packet id %d of one that is not acknowledged", i, p.PacketID)
		}
		used[p.PacketID] = true
	}
	if n := metric(t, reg, "session_messages"); n != 7 {
		t.Errorf("%v messages are stored, want all 7", n)
	}
	for id := range used {
		s.ack(packets.Puback, id)
	}
	until(t, "all is acknowledged", func() bool { return metric(t, reg, "session_messages") == 0 })
}

// What the owner restores before a start is retained, and not stored again for a session that got it.
func TestRestore(t *testing.T) {
	t.Parallel()
	m := broker.Message{Topic: "t", Payload: []byte("retained"), QoS: 1, Retain: true}
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("#", 1)
	put(t, b, m)
	r.ack(packets.Puback, r.wantMessage("retained", false).PacketID)
	until(t, "all is acknowledged", func() bool { return metric(t, reg, "session_messages") == 0 })
	leave(t, reg, r)
	if err := b.Restore(t.Context(), m); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("restored after the start: %v", err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	reg = prometheus.NewRegistry()
	o := broker.Options{
		Name: "test", Access: free{}, Logger: testLog(t), Registerer: reg,
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	}
	edit(&o)
	again, err := broker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Restore(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := again.Restore(t.Context(), broker.Message{Topic: "t", Payload: []byte("not retained")}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("restored what is not retained: %v", err)
	}
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if n := metric(t, reg, "session_messages"); n != 0 {
		t.Errorf("%v messages are stored for the session, want none", n)
	}
	fresh := dialStored(t, again, "fresh", false, nil)
	fresh.subscribe("t", 0)
	fresh.wantMessage("retained", false)
}

// What is retained comes to a new subscription of a session through its queue: all of it, also if the
// connection ends in between.
func TestReplayToSession(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, stored(t, sessions.Limits{}))
	const topics = 3000
	for i := range topics {
		put(t, b, broker.Message{Topic: fmt.Sprint("r/", i), Payload: []byte("x"), Retain: true, QoS: 1})
	}
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("r/#", 1)
	seen := make(map[string]bool)
	for range 100 {
		p := r.want(packets.Publish)
		seen[p.TopicName] = p.FixedHeader.Retain
		r.ack(packets.Puback, p.PacketID)
	}
	leave(t, reg, r)
	r = dialStored(t, b, "c", true, lasting(3600))
	for len(seen) < topics {
		p := r.want(packets.Publish)
		seen[p.TopicName] = p.FixedHeader.Retain
		r.ack(packets.Puback, p.PacketID)
	}
	for topic, retained := range seen {
		if !retained {
			t.Errorf("%s came without RETAIN", topic)
		}
	}
}

// plc lets everybody in as a device: one may subscribe to everything, and receives what is below its name.
type plc struct{ free }

func (plc) Connect(i access.ConnectInfo) (access.Identity, error) {
	return access.Identity{Name: i.Username, Device: true}, nil
}

func (plc) MaySubscribe(id access.Identity, topic string) bool {
	return strings.ContainsAny(topic, "+#") || strings.HasPrefix(topic, id.Name+"/")
}

// What is retained, and a device with a session may not receive, is not stored for it: it is not dropped then either.
func TestReplayStoresWhatMayBeReceived(t *testing.T) {
	t.Parallel()
	b, reg := start(t, plc{}, stored(t, sessions.Limits{}))
	for i := range 100 {
		put(t, b, broker.Message{Topic: fmt.Sprint("other/", i), Payload: []byte("x"), Retain: true, QoS: 1})
	}
	put(t, b, broker.Message{Topic: "c/last", Payload: []byte("own"), Retain: true, QoS: 1})
	r := dialStored(t, b, "c", false, lasting(3600))
	r.subscribe("#", 1)
	if p := r.wantMessage("own", false); p.PacketID != 1 {
		t.Errorf("it has packet id %d: others were stored before it", p.PacketID)
	}
	if n := metric(t, reg, "dropped_total"); n != 0 {
		t.Errorf("%v messages count as dropped", n)
	}
}

// A subscriber with a session that reads nothing is neither disconnected nor waited for: what it does
// not take stays in the log, and a healthy one gets everything.
func TestSlowSubscriberWithSession(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, func(o *broker.Options) {
		stored(t, sessions.Limits{})(o)
		o.Limits.WriteBuffer = 64 << 10
	})
	slow := dialStored(t, b, "slow", false, lasting(3600))
	slow.subscribe("t", 1)
	healthy := dialStored(t, b, "healthy", false, lasting(3600))
	healthy.subscribe("t", 1)
	const messages = 2000
	received := make(chan int)
	go func() {
		n := 0
		for ; n < messages; n++ {
			p, err := healthy.next()
			if err != nil || p.FixedHeader.Type != packets.Publish {
				break
			}
			healthy.ack(packets.Puback, p.PacketID)
		}
		received <- n
	}()
	payload := make([]byte, 1000)
	for range messages {
		put(t, b, broker.Message{Topic: "t", Payload: payload, QoS: 1})
	}
	if n := <-received; n != messages {
		t.Errorf("the healthy subscriber got %d of %d", n, messages)
	}
	if n := metric(t, reg, "publish_waits_total"); n != 0 {
		t.Errorf("publishers waited %v times", n)
	}
	for range messages {
		slow.ack(packets.Puback, slow.want(packets.Publish).PacketID)
	}
}

// The broker's memory of a session without subscriptions and messages is a few hundred bytes.
func TestIdleSessionMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("10,000 clients one after the other: the race detector makes them five times slower, and says nothing about memory")
	}
	t.Parallel()
	c := startChild(t, t.TempDir())
	const clients, limit = 2000, raceFactor * 2 << 10
	connect := func(from, to int) {
		for i := from; i < to; i++ {
			r := dialRaw(t, c.addr)
			r.mustConnect(fmt.Sprintf("client-%07d", i), lasting(3600))
			_ = r.conn.Close()
		}
	}
	connect(0, clients) // what connections leave behind is there now
	before := resident(t, c.cmd.Process.Pid)
	connect(clients, 5*clients)
	if each := (resident(t, c.cmd.Process.Pid) - before) / (4 * clients); each > limit {
		t.Errorf("%d bytes for each session, want at most %d", each, limit)
	} else {
		t.Logf("%d bytes for each session", each)
	}
}

// A syncString is a text that one goroutine sets and others compare.
type syncString struct{ v atomic.Pointer[string] }

func (s *syncString) set(v string) { s.v.Store(&v) }

func (s *syncString) is(v string) bool { p := s.v.Load(); return p != nil && *p == v }

// A session whose time was up while the broker was away is over for the first client that comes.
func TestExpiryWhileTheBrokerWasAway(t *testing.T) {
	t.Parallel()
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, edit)
	r := dialStored(t, b, "sub", false, lasting(1))
	if code := r.subscribe("t", 1); code != 1 {
		t.Fatalf("SUBACK %#x", code)
	}
	leave(t, reg, r)
	app := dialRaw(t, b.Addr("main"))
	app.mustConnect("app", nil)
	app.publish("t", "secret", 1, 1)
	app.want(packets.Puback)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	<-time.After(1500 * time.Millisecond)
	b, _ = start(t, free{}, edit)
	again := dialStored(t, b, "sub", false, lasting(60))
	again.ping() // and nothing else comes
}
