package broker_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// Faults of mochi v2.7.9, each shown on a bare mochi. They are the reasons of
// docs/adr/0002-broker-engine.md, by which Colony uses its codec only and has
// sessions, subscriptions and retained messages of its own. Of the code that they
// run, none but that of TestMochiCodec, the last, is in any of Colony's programs.
// A release of mochi in which one fails has fixed a fault: then one of the reasons
// does not hold any more, and the page says what it would take to go back; after TestMochiCodec,
// connect.go can be made simpler.

// allow lets everybody do everything.
type allow struct{ mqtt.HookBase }

func (allow) ID() string { return "allow" }

func (allow) Provides(what byte) bool {
	return what == mqtt.OnConnectAuthenticate || what == mqtt.OnACLCheck
}
func (allow) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }
func (allow) OnACLCheck(*mqtt.Client, string, bool) bool              { return true }

// bareMochi runs mochi with its defaults, changed by edit.
func bareMochi(t *testing.T, edit func(*mqtt.Capabilities)) (s *mqtt.Server, addr string) {
	t.Helper()
	c := mqtt.NewDefaultServerCapabilities()
	if edit != nil {
		edit(c)
	}
	s = mqtt.New(&mqtt.Options{Capabilities: c, InlineClient: true, Logger: slog.New(slog.DiscardHandler)})
	if err := s.AddHook(new(allow), nil); err != nil {
		t.Fatal(err)
	}
	l := listeners.NewTCP(listeners.Config{ID: "main", Address: "127.0.0.1:0"})
	if err := s.AddListener(l); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, l.Address()
}

func bareGuest(t *testing.T, addr, id string, edit func(*packets.Packet)) *raw {
	t.Helper()
	r := dialRaw(t, addr)
	r.mustConnect(id, edit)
	return r
}

// counts reads what comes until PINGRESP, and returns the number of messages.
func counts(r *raw) (n int) {
	r.t.Helper()
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for {
		p, err := r.next()
		if err != nil || p.FixedHeader.Type == packets.Pingresp {
			return n
		}
		if p.FixedHeader.Type == packets.Publish {
			n++
		}
	}
}

// [MQTT-4.7.1-2] [MQTT-4.7.2-1] Ours: TestRetainedByWildcard, TestTree, TestMatches.
func TestMochiWildcards(t *testing.T) {
	t.Parallel()
	s, _ := bareMochi(t, nil)
	retained := func(filter string) map[string]bool {
		got := map[string]bool{}
		for _, p := range s.Topics.Messages(filter) {
			got[p.TopicName] = true
		}
		return got
	}
	if err := s.Publish("a/b", []byte("x"), true, 0); err != nil {
		t.Fatal(err)
	}
	if got := retained("a/b/#"); len(got) != 0 {
		t.Errorf("a/b/# finds %v now", got)
	}
	if err := s.Publish("$other/x", []byte("x"), true, 0); err != nil {
		t.Fatal(err)
	}
	if got := retained("#"); !got["$other/x"] {
		t.Errorf("# finds only %v now", got)
	}
	s.Topics.Subscribe("c", packets.Subscription{Filter: "line/+/#"})
	if got := s.Topics.Subscribers("line/1").Subscriptions; len(got) != 0 {
		t.Errorf("line/+/# matches line/1 now: %v", got)
	}
	for _, filter := range []string{"a#", "a+/b"} {
		if !mqtt.IsValidFilter(filter, false) {
			t.Errorf("%s is refused now", filter)
		}
	}
	if !s.Topics.Unsubscribe("line/+/#", "somebody else") {
		t.Error("UNSUBACK says now who has no subscription. [MQTT-3.11.3-1]")
	}
}

// [MQTT-3.3.2-5]: the publisher's word is not asked. Ours: TestRetained, TestMessageExpiry.
func TestMochiForgetsRetained(t *testing.T) {
	t.Parallel()
	if d := mqtt.NewDefaultServerCapabilities().MaximumMessageExpiryInterval; d != 24*60*60 {
		t.Errorf("retained messages vanish after %d s now", d)
	}
}

// [MQTT-3.3.4-9]: a client that names a Receive Maximum of 10 does not get all messages, however
// well it acknowledges. (It can also lock the server's loop for ever.) Ours: TestReceiveMaximum.
func TestMochiReceiveMaximum(t *testing.T) {
	t.Parallel()
	s, addr := bareMochi(t, nil)
	r := bareGuest(t, addr, "sub", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 10 })
	r.subscribe("t", 1)
	const n = 200
	for range n {
		if err := s.Publish("t", []byte("x"), false, 1); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for {
		p, err := r.within(time.Second)
		if err != nil {
			break
		}
		got++
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: p.PacketID})
	}
	if got >= n {
		t.Errorf("all %d came", n)
	}
}

// [MQTT-4.8.2-5]: a member of a group that is away is given messages that another could have had.
// Ours: no session outlives its connection, so no member is away. TestSharedSubscriptions.
func TestMochiSharesWithTheAbsent(t *testing.T) {
	t.Parallel()
	s, addr := bareMochi(t, nil)
	lasting := func(p *packets.Packet) {
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 3600, true
	}
	here, away := bareGuest(t, addr, "here", lasting), bareGuest(t, addr, "away", lasting)
	here.subscribe("$share/g/t", 1)
	away.subscribe("$share/g/t", 1)
	_ = away.conn.Close()
	until(t, "away leaves", func() bool { c, ok := s.Clients.Get("away"); return ok && c.Closed() })
	const n = 200
	for range n {
		if err := s.Publish("t", []byte("x"), false, 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := counts(here); got == n {
		t.Error("the member that is there got all")
	}
}

// [MQTT-3.1.2-8] [MQTT-3.1.3-10]: a will loses its content type, response topic and correlation data; it may
// go to $SYS, and to a wildcard. Ours: TestWill, TestMessageProperties, TestConnectRefusals.
func TestMochiWills(t *testing.T) {
	t.Parallel()
	_, addr := bareMochi(t, nil)
	sub := bareGuest(t, addr, "sub", nil)
	sub.subscribe("will", 0)
	c := bareGuest(t, addr, "c", withWill("will", "x"))
	_ = c.conn.Close()
	p := sub.want(packets.Publish)
	if diff := cmp.Diff(packets.Properties{User: []packets.UserProperty{{Key: "k", Val: "v"}}, MessageExpiryInterval: 86400}, p.Properties); diff != "" {
		t.Errorf("a will has other properties now (-before +now):\n%s", diff)
	}
	for _, topic := range []string{"$SYS/broker/x", "a/+"} {
		if ack := dialRaw(t, addr).connect("w", withWill(topic, "x")); ack.ReasonCode != 0 {
			t.Errorf("a will on %s is refused now with 0x%02x", topic, ack.ReasonCode)
		}
	}
}

// [MQTT-4.5.0-1]: what is acknowledged is dropped where a subscriber's queue is full; for a client that is away that
// is at 8,192 messages. Ours: TestPublishersAreSlowed, TestReplayHasFlowControl; no subscriber is away.
func TestMochiDropsAcknowledged(t *testing.T) {
	t.Parallel()
	s, addr := bareMochi(t, func(c *mqtt.Capabilities) { c.MaximumInflight = 20 })
	r := bareGuest(t, addr, "away", func(p *packets.Packet) {
		p.Connect.Clean = false
		p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 3600, true
	})
	r.subscribe("t", 1)
	_ = r.conn.Close()
	until(t, "away leaves", func() bool { c, ok := s.Clients.Get("away"); return ok && c.Closed() })
	pub := bareGuest(t, addr, "pub", nil)
	for id := range uint16(50) {
		pub.publish("t", "x", 1, id+1)
		pub.wantCode(packets.Puback, 0)
	}
	c, _ := s.Clients.Get("away")
	if n := c.State.Inflight.Len(); n != 20 {
		t.Errorf("%d of 50 acknowledged messages are kept for a client that is away, 20 before", n)
	}
	if d := mqtt.NewDefaultServerCapabilities().MaximumInflight; d != 8192 {
		t.Errorf("the default is %d now", d)
	}
}

// Of two functions that subscribe with one number to filters that overlap, one is not called. The owner of our broker
// gets messages through Take, once each, and subscribes to nothing.
func TestMochiInlineSubscriptions(t *testing.T) {
	t.Parallel()
	s, _ := bareMochi(t, nil)
	calls := map[string]int{}
	for _, filter := range []string{"a/b", "a/+"} {
		err := s.Subscribe(filter, 1, func(*mqtt.Client, packets.Subscription, packets.Packet) { calls[filter]++ })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Publish("a/b", []byte("x"), false, 0); err != nil {
		t.Fatal(err)
	}
	if n := calls["a/b"] + calls["a/+"]; n != 1 {
		t.Errorf("%d functions were called, 1 of 2 before", n)
	}
}

// [MQTT-3.1.4-3]: a client that knows a client id takes the session and what is queued in it. Ours:
// TestForeignTakeover.
func TestMochiForeignTakeover(t *testing.T) {
	t.Parallel()
	s, addr := bareMochi(t, nil)
	lasting := func(user string) func(*packets.Packet) {
		return func(p *packets.Packet) {
			p.Connect.Clean, p.Connect.Username = false, []byte(user)
			p.Properties.SessionExpiryInterval, p.Properties.SessionExpiryIntervalFlag = 3600, true
		}
	}
	owner := bareGuest(t, addr, "c", lasting("owner"))
	owner.subscribe("secret", 1)
	_ = owner.conn.Close()
	until(t, "the owner leaves", func() bool { c, ok := s.Clients.Get("c"); return ok && c.Closed() })
	if err := s.Publish("secret", []byte("x"), false, 1); err != nil {
		t.Fatal(err)
	}
	thief := bareGuest(t, addr, "c", lasting("thief"))
	if p := thief.want(packets.Publish); p.TopicName != "secret" {
		t.Errorf("got %s", p.TopicName)
	}
}

// What the codec gets wrong: the reasons why package packet stands before it, and why its
// Validate functions are not used.
func TestMochiCodec(t *testing.T) {
	t.Parallel()
	decode := func(p *packets.Packet, body string, decode func([]byte) error) (outcome string) {
		defer func() {
			if recover() != nil {
				outcome = "panics"
			}
		}()
		p.ProtocolVersion, p.FixedHeader.Remaining = 5, len(body)
		if decode([]byte(body)) != nil {
			return "refuses"
		}
		return "accepts"
	}
	var sub, connect, publish, bye packets.Packet
	connect.FixedHeader.Type, publish.FixedHeader.Type, sub.FixedHeader.Type, bye.FixedHeader.Type = packets.Connect, packets.Publish, packets.Subscribe, packets.Disconnect
	const head, tail = "\x00\x04MQTT\x05\x02\x00\x3c", "\x00\x01c"
	for _, c := range []struct{ what, got, want string }{
		{"SUBSCRIBE without options", decode(&sub, "\x00\x01\x00\x00\x07line1/a", sub.SubscribeDecode), "panics"},
		{"CONNECT with trailing bytes", decode(&connect, head+"\x00"+tail+"x", connect.ConnectDecode), "accepts"},
		{"a property twice", decode(&connect, head+"\x0a\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01"+tail, connect.ConnectDecode), "accepts"},
		{"payload format 2", decode(&publish, "\x00\x01t\x02\x01\x02x", publish.PublishDecode), "accepts"},
	} {
		if c.got != c.want {
			t.Errorf("%s: the codec %s, want %s", c.what, c.got, c.want)
		}
	}
	if decode(&bye, "\x04", bye.DisconnectDecode); bye.ReasonCode != 0 {
		t.Error("the codec sees the reason of a DISCONNECT of one byte")
	}
	empty := packets.Packet{ProtocolVersion: 5, Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), WillFlag: true, WillTopic: "t"}}
	if code := empty.ConnectValidate(); code.Code == 0 {
		t.Error("an empty will is accepted")
	}
	noPassword := packets.Packet{ProtocolVersion: 5, Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), PasswordFlag: true}}
	if code := noPassword.ConnectValidate(); code.Code == 0 {
		t.Error("an empty password is accepted")
	}
}

// A will of no bytes is one too.
func TestEmptyWill(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	watcher := guest(t, b, "watcher")
	watcher.subscribe("will", 0)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) { p.Connect.WillFlag, p.Connect.WillTopic = true, "will" })
	_ = r.conn.Close()
	if p := watcher.want(packets.Publish); len(p.Payload) != 0 {
		t.Errorf("got %q, want the empty will", p.Payload)
	}
}
