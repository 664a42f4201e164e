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
