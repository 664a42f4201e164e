package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		os.Exit(serveChild())
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must come: a busy machine takes its time.
const patience = time.Minute

// free is an Access for tests that are not about access: everybody may do everything.
type free struct{}

func (free) Connect(i access.ConnectInfo) (access.Identity, error) {
	return access.Identity{Name: i.Username}, nil
}
func (free) MayPublish(access.Identity, string) bool   { return true }
func (free) MaySubscribe(access.Identity, string) bool { return true }

// testLog writes to the test's log.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// start runs a broker with one TCP listener "main", changed by edit.
func start(t *testing.T, access broker.Access, edit func(*broker.Options)) (*broker.Broker, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	o := broker.Options{
		Name: "test", Access: access, Logger: testLog(t), Registerer: reg,
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	}
	if edit != nil {
		edit(&o)
	}
	b, err := broker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b)
	return b, reg
}

// A box collects messages.
type box struct{ c chan broker.Message }

func newBox() *box { return &box{make(chan broker.Message, 10_000)} }

func (b *box) accept(_ context.Context, m broker.Message) error {
	b.c <- m
	return nil
}

func (b *box) next(t *testing.T) broker.Message {
	t.Helper()
	select {
	case m := <-b.c:
		return m
	case <-time.After(patience):
		t.Fatal("no message came")
		return broker.Message{}
	}
}

// until waits for a condition.
var until = testpart.Eventually

// join connects a client of ours and waits until it is up.
func join(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	o.Logger = testLog(t)
	return clienttest.Join(t, o)
}

func tcpURL(b *broker.Broker) []string { return []string{"tcp://" + b.Addr("main")} }

// metric sums a counter or gauge over the series whose labels contain all of the given values.
func metric(t *testing.T, reg *prometheus.Registry, name string, values ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "colony_broker_"+name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for _, v := range values {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetValue() == v
				}
				if !found {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func TestEveryTransport(t *testing.T) {
	t.Parallel()
	server, clientTLS := testTLS(t)
	socket := filepath.Join(t.TempDir(), "mqtt.sock")
	b, _ := start(t, free{}, func(o *broker.Options) {
		o.Listeners = append(o.Listeners,
			broker.Listener{Name: "tls", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "ws", Network: broker.WS, Address: "127.0.0.1:0"},
			broker.Listener{Name: "wss", Network: broker.WS, Address: "127.0.0.1:0", TLS: server},
			broker.Listener{Name: "unix", Network: broker.Unix, Address: socket})
	})
	for name, url := range map[string]string{
		"tcp": "tcp://" + b.Addr("main"), "tls": "tls://" + b.Addr("tls"), "ws": "ws://" + b.Addr("ws") + "/mqtt",
		"wss": "wss://" + b.Addr("wss") + "/mqtt", "unix": "unix://" + socket,
	} {
		t.Run(name, func(t *testing.T) {
			got := newBox()
			c := join(t, client.Options{
				URLs: []string{url}, Username: "c-" + name, TLS: clientTLS, Handle: got.accept,
				Subscriptions: []client.Subscription{{Filter: "t/" + name + "/#", QoS: 1}},
			})
			want := broker.Message{
				Topic: "t/" + name + "/x", Payload: []byte(strings.Repeat("p", 100_000)), QoS: 1, Expiry: time.Minute,
				ContentType: "application/cbor", ResponseTopic: "t/answer", CorrelationData: []byte{0, 1},
				Properties: []broker.Property{{Key: "k", Value: "1"}, {Key: "k", Value: "2"}},
			}
			if err := c.Publish(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got.next(t)); diff != "" {
				t.Errorf("message (-sent +received):\n%s", diff)
			}
		})
	}
}

func TestOwnPublish(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	ctx := t.Context()
	for _, topic := range []string{"a", "a/b", "a/b/c", "x"} {
		if err := b.Publish(ctx, broker.Message{Topic: topic, Payload: []byte(topic), QoS: 1, Retain: true}); err != nil {
			t.Fatal(err)
		}
	}
	var topics []string
	for _, m := range b.Retained("a/#") {
		topics = append(topics, m.Topic)
	}
	if diff := cmp.Diff(map[string]bool{"a": true, "a/b": true, "a/b/c": true}, set(topics)); diff != "" {
		t.Errorf("retained under a/# (-want +got):\n%s", diff)
	}
	if err := b.Publish(ctx, broker.Message{Topic: "a/b", Retain: true}); err != nil {
		t.Fatal(err)
	}
	if left := b.Retained("a/b"); len(left) != 0 {
		t.Errorf("after clearing, %v is retained", left)
	}
	got := newBox()
	join(t, client.Options{URLs: tcpURL(b), Username: "c", Handle: got.accept, Subscriptions: []client.Subscription{{Filter: "x", QoS: 1}}})
	if diff := cmp.Diff(broker.Message{Topic: "x", Payload: []byte("x"), QoS: 1, Retain: true}, got.next(t)); diff != "" {
		t.Errorf("replay (-want +got):\n%s", diff)
	}
	if err := b.Publish(ctx, broker.Message{Topic: "x", Payload: []byte("2"), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(broker.Message{Topic: "x", Payload: []byte("2"), QoS: 1}, got.next(t)); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
	for _, topic := range []string{"", "a/#", "+", "$SYS/x"} {
		if err := b.Publish(ctx, broker.Message{Topic: topic}); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("publish to %q: got %v, want an error of kind invalid", topic, err)
		}
	}
}

func set(ss []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range ss {
		m[s] = true
	}
	return m
}

// Three thousand retained topics at once: more than the owner of a broker keeps per
// subscriber, and more than mochi's queue holds.
func TestReplayIsComplete(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, nil)
	const n = 3000
	for i := range n {
		topic := "r/" + fmt.Sprint(i)
		if err := b.Publish(t.Context(), broker.Message{Topic: topic, Payload: make([]byte, 200), Retain: true, QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for qos := range byte(2) {
		got := newBox()
		join(t, client.Options{URLs: tcpURL(b), Username: fmt.Sprint("c", qos), Handle: got.accept, Subscriptions: []client.Subscription{{Filter: "r/#", QoS: qos}}})
		seen := map[string]bool{}
		for len(seen) < n {
			seen[got.next(t).Topic] = true
		}
	}
	if d := metric(t, reg, "dropped_total"); d != 0 {
		t.Errorf("%v dropped, want none", d)
	}
}

func TestStopNotifiesClients(t *testing.T) {
	t.Parallel()
	var wills sync.Map
	b, reg := start(t, free{}, func(o *broker.Options) {
		o.Accept = func(_ context.Context, _ access.Identity, m broker.Message) error {
			wills.Store(m.Topic, true)
			return nil
		}
	})
	r := dialRaw(t, b.Addr("main"))
	r.mustConnect("c", func(p *packets.Packet) {
		p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload = true, "will", []byte("x")
	})
	idle := dialRaw(t, b.Addr("main")) // never says CONNECT
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if p := r.want(packets.Disconnect); p.ReasonCode != packets.ErrServerShuttingDown.Code {
		t.Errorf("DISCONNECT with 0x%02x, want 0x8b", p.ReasonCode)
	}
	r.wantEnd()
	idle.wantEnd()
	if _, sent := wills.Load("will"); sent {
		t.Error("the will was sent though only the broker stopped")
	}
	if err := b.Publish(t.Context(), broker.Message{Topic: "x"}); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("publish after Stop: got %v, want an error of kind unavailable", err)
	}
	if families, err := reg.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics stay registered after Stop", len(families))
	}
}

func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	_, err := broker.New(broker.Options{Listeners: []broker.Listener{
		{Name: "a", Network: "tcp"}, {Name: "a", Network: "quic"}, {Name: "b", Network: broker.TLS},
	}, Limits: limits.Limits{Unacknowledged: 1 << 20}})
	if protocol.KindOf(err) != protocol.Invalid {
		t.Fatalf("got %v, want an error of kind invalid", err)
	}
	for _, part := range []string{"no access control", "no logger", "want one of its own", `"quic"`, "without a certificate", "unacknowledged"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not mention %q", err, part)
		}
	}
}

func TestStartFailsOnUsedAddress(t *testing.T) {
	t.Parallel()
	b, _ := start(t, free{}, nil)
	other, err := broker.New(broker.Options{
		Name: "other", Access: free{}, Logger: testLog(t),
		Listeners: []broker.Listener{
			{Name: "free", Network: broker.WS, Address: "127.0.0.1:0"},
			{Name: "main", Network: broker.TCP, Address: b.Addr("main")},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "listener main") {
		t.Errorf("got %v, want an error that names the listener", err)
	}
	if err := other.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
