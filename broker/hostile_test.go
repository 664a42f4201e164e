package broker_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

// Each test here is an attack: what a client that means harm, or is broken, can send.
// It shows that only the attacker's connection suffers.

// A lines collects log lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// has reports whether one line contains all words.
func (l *lines) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.SplitSeq(l.buf.String(), "\n") {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

// longest is the length of the longest line.
func (l *lines) longest() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.SplitSeq(l.buf.String(), "\n") {
		n = max(n, len(line))
	}
	return n
}

// count is how many lines contain a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// logged makes a broker log everything to l.
func (l *lines) logged(o *broker.Options) {
	o.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A SUBSCRIBE whose last filter has no options byte is answered with 0x81, counted,
// and shown at debug. The broker and its other clients go on.
func TestSubscribeWithoutOptions(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, log.logged)
	canary := guest(t, b, "canary")
	for id, packet := range map[string]string{
		"a": "\x82\x0c\x00\x01\x00\x00\x07line1/a",
		"b": "\x82\x0e\x00\x01\x00\x00\x01a\x00\x00\x05line1",
	} {
		r := guest(t, b, id)
		if _, err := r.conn.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
		r.wantCode(packets.Disconnect, packets.ErrMalformedPacket.Code)
		r.wantEnd()
	}
	canary.ping()
	if n := metric(t, reg, "refused_total", "packet", "0x81"); n != 2 {
		t.Errorf("%v bad packets counted, want 2", n)
	}
	if !log.has("level=DEBUG", "SUBSCRIBE", "0001000007"+"6c696e65312f61") {
		t.Errorf("the log does not show the packet:\n%s", log.buf.String())
	}
}

// panics is a Take that panics on the topic "boom", as broken code would.
func panics(_ context.Context, _ access.Identity, m broker.Message) error {
	if m.Topic == "boom" {
		panic("broken code")
	}
	return nil
}

// A panic while a packet is served ends the connection of that packet and no other.
func TestPanicEndsOneConnection(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) { o.Accept = panics; log.logged(o) })
	canary := guest(t, b, "canary")
	canary.subscribe("#", 1)
	r := guest(t, b, "bad")
	r.publish("boom", "x", 1, 1)
	r.wantCode(packets.Disconnect, packets.ErrMalformedPacket.Code)
	r.wantEnd()
	r = guest(t, b, "bad")
	r.publish("t", "x", 1, 1)
	r.wantCode(packets.Puback, 0)
	canary.want(packets.Publish)
	if n := metric(t, reg, "refused_total", "packet", "panic"); n != 1 {
		t.Errorf("%v panics counted, want 1", n)
	}
	if !log.has("level=ERROR", "panic", "broken code") {
		t.Errorf("the log does not show the panic:\n%s", log.buf.String())
	}
}

// The log shows the first bytes of a bad CONNECT, but no password.
func TestBadConnectIsLoggedWithoutPassword(t *testing.T) {
	t.Parallel()
	var log lines
	b, _ := start(t, free{}, log.logged)
	r := dialRaw(t, b.Addr("main"))
	r.write(wire(0x10, "\x00\x04MQTT\x04\xc2\x00\x3c"+text("c")+text("u")+text("secret")+"trailing"))
	r.wantEnd()
	until(t, "the packet is in the log", func() bool { return log.has("level=DEBUG", "CONNECT", "body=00044d51545404c2003c") })
	if log.has("736563726574") || log.has("secret") {
		t.Error("the password is in the log")
	}
}

// Refusals without end are all counted, and the log has a few of them and how many there were more.
func TestRefusalsInTheLog(t *testing.T) {
	t.Parallel()
	const refused = 200
	var log lines
	b, reg := start(t, access.Site("plant1"), log.logged)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("n1.plant1", nil)
	for i := range refused {
		r.publish("colony/denied", "x", 1, uint16(i+1))
		r.wantCode(packets.Puback, 0x87)
		if r.subscribe("#", 1) != 0x87 {
			t.Error("a forbidden filter is accepted")
		}
		if ack := dialRaw(t, b.Addr("main")).connect("stranger", nil); ack.ReasonCode != 0x87 {
			t.Errorf("CONNACK 0x%02x", ack.ReasonCode)
		}
	}
	ops := map[string]string{"publish": "publish refused", "subscribe": "subscribe refused", "connect": "connect refused"}
	for op := range ops {
		if n := metric(t, reg, "refused_total", op); n != refused {
			t.Errorf("%s: %v counted, want %d", op, n, refused)
		}
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for op, line := range ops {
		n := log.count(line)
		if n > 100 || n == 0 {
			t.Errorf("%d lines %q", n, line)
		}
		if !log.has("more was refused", "what="+op, "of=127.0.0.1") {
			t.Errorf("the log does not say how many more were refused: %s", op)
		}
	}
}

// TestLongTopicsAreShortened has the log and its summaries show the begin of a topic, whatever its length and why it was refused.
func TestLongTopicsAreShortened(t *testing.T) {
	t.Parallel()
	const length, refused = 60_000, 12 // more than the log shows of a kind
	var log lines
	b, _ := start(t, revocable{denied: func(topic string) bool { return strings.HasPrefix(topic, "denied") }}, func(o *broker.Options) {
		log.logged(o)
		o.Accept = func(_ context.Context, _ access.Identity, m broker.Message) error {
			return protocol.Errorf(protocol.Invalid, "not accepted: %s", m.Topic[:10])
		}
	})
	denied, unwanted := "denied"+strings.Repeat("x", length-6), "unwanted"+strings.Repeat("x", length-8)
	r := guest(t, b, "a")
	for i := range uint16(refused) {
		r.publish(denied, "", 1, 2*i+1)
		r.wantCode(packets.Puback, packets.ErrNotAuthorized.Code)
		r.publish(unwanted, "", 1, 2*i+2)
		r.want(packets.Puback)
	}
	if ack := dialRaw(t, b.Addr("main")).connect("b", withWill(denied, "")); ack.ReasonCode != packets.ErrNotAuthorized.Code {
		t.Errorf("a last will: CONNACK 0x%02x, want 0x87", ack.ReasonCode)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"publish refused", "message refused", "connect refused"} {
		if !log.has(what, "(60000 bytes)") {
			t.Errorf("%s: the log does not say how long the topic is", what)
		}
	}
	if !log.has("more was refused", "what=publish", "(60000 bytes)") {
		t.Error("the log does not say how much more was refused")
	}
	if n := log.longest(); n > 2000 {
		t.Errorf("a line of the log has %d bytes", n)
	}
}

// A quoter refuses what begins with "denied", in words that have all of it.
type quoter struct{ revocable }

func (q quoter) Connect(i access.ConnectInfo) (access.Identity, error) {
	if q.denied(i.Username) {
		return access.Identity{}, protocol.Errorf(protocol.Denied, "user %q may not connect", i.Username)
	}
	return q.revocable.Connect(i)
}

func (quoter) Refusal(_ access.Identity, filter string) string { return "not for you: " + filter }

func (quoter) PublishRefusal(_ access.Identity, topic string) string { return "not from you: " + topic }

// Whatever access control quotes, neither a line of the log nor what a client gets is long for it.
func TestLongQuotesAreShortened(t *testing.T) {
	t.Parallel()
	var log lines
	b, _ := start(t, quoter{revocable{denied: func(name string) bool { return strings.HasPrefix(name, "denied") }}}, log.logged)
	long := "denied" + strings.Repeat("x", 60_000)
	short := func(reason string) {
		t.Helper()
		if len(reason) > 200 {
			t.Errorf("a client gets a reason of %d bytes", len(reason))
		}
	}
	ack := dialRaw(t, b.Addr("main")).connect("c", func(p *packets.Packet) { p.Connect.Username = []byte(long) })
	if ack.ReasonCode != packets.ErrNotAuthorized.Code {
		t.Errorf("CONNACK 0x%02x, want 0x87", ack.ReasonCode)
	}
	short(ack.Properties.ReasonString)
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("a", nil)
	ack = r.subscribeAs(packets.Subscription{Filter: long, Qos: 1})
	if len(ack.ReasonCodes) != 1 || ack.ReasonCodes[0] != packets.ErrNotAuthorized.Code || ack.Properties.ReasonString == "" {
		t.Errorf("SUBACK %v with reason %q, want 0x87 with one", ack.ReasonCodes, ack.Properties.ReasonString)
	}
	short(ack.Properties.ReasonString)
	r.publish(long, "", 1, 1)
	ack = r.wantCode(packets.Puback, packets.ErrNotAuthorized.Code)
	short(ack.Properties.ReasonString)
	for _, what := range []string{"publish refused", "subscribe refused", "connect refused"} {
		if !log.has(what, " bytes)") {
			t.Errorf("%s: the log does not say how long the name is", what)
		}
	}
	if n := log.longest(); n > 2000 {
		t.Errorf("a line of the log has %d bytes", n)
	}
}
