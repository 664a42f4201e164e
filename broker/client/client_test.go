package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 15 * time.Second

type free struct{}

func (free) Connect(i access.ConnectInfo) (access.Identity, error) {
	if i.Username == "nobody" {
		return access.Identity{}, protocol.Errorf(protocol.Denied, "nobody may not connect")
	}
	return access.Identity{Name: i.Username}, nil
}
func (free) MayPublish(_ access.Identity, name string) bool     { return name != "forbidden" }
func (free) MaySubscribe(_ access.Identity, filter string) bool { return filter != "forbidden" }

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// serve runs a broker on an address, "" for any.
func serve(t *testing.T, addr string, receive func(context.Context, access.Identity, broker.Message) error) (b *broker.Broker, stop func()) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	b, err := broker.New(broker.Options{
		Access: free{}, Accept: receive, Logger: testLog(t),
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: addr}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b, testpart.Start(t, b)
}

// A probe is a client and what happened to it.
type probe struct {
	*client.Client
	up   chan string
	down chan error
	got  chan client.Message
}

func begin(t *testing.T, o client.Options) *probe {
	t.Helper()
	p := &probe{up: make(chan string, 100), down: make(chan error, 100), got: make(chan client.Message, 10_000)}
	o.Logger = testLog(t)
	if o.Username == "" {
		o.Username = "c"
	}
	o.ClientID = o.Username
	o.OnUp = func(_ context.Context, s string) { p.up <- s }
	o.OnDown = func(err error) { p.down <- err }
	if o.Handle == nil {
		o.Handle = func(_ context.Context, m client.Message) error { p.got <- m; return nil }
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	p.Client = c
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *probe) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s does not happen", what)
		panic("unreachable")
	}
}

func to(b *broker.Broker) []string { return []string{"tcp://" + b.Addr("main")} }

func wantKind(t *testing.T, err error, want protocol.Kind) {
	t.Helper()
	if err == nil || protocol.KindOf(err) != want {
		t.Errorf("got %v (kind %s), want an error of kind %s", err, protocol.KindOf(err), want)
	}
}

func TestReconnect(t *testing.T) {
	t.Parallel()
	b, stop := serve(t, "", nil)
	addr := b.Addr("main")
	p := begin(t, client.Options{
		URLs: []string{"tcp://127.0.0.1:1", "tcp://" + addr}, MaxBackoff: 100 * time.Millisecond, // the first never answers
		Subscriptions: []client.Subscription{{Filter: "t", QoS: 1}},
	})
	first := await(t, p.up, "the first link")
	if !p.Up() {
		t.Error("Up is false while the link is up")
	}
	stop()
	await(t, p.down, "the end of the link")
	if p.Up() {
		t.Error("Up is true while the link is down")
	}
	begun := time.Now()
	wantKind(t, p.Publish(t.Context(), client.Message{Topic: "x", QoS: 1}), protocol.Unavailable)
	if d := time.Since(begun); d > time.Second {
		t.Errorf("publish without a link took %s to fail", d)
	}
	b, _ = serve(t, addr, nil)
	if second := await(t, p.up, "the second link"); second == first {
		t.Error("both links have the same session")
	}
	if err := b.Publish(t.Context(), broker.Message{Topic: "t", Payload: []byte("again"), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if m := await(t, p.got, "a message"); string(m.Payload) != "again" {
		t.Errorf("got %q", m.Payload)
	}
}

func TestRefusedConnect(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, "", nil)
	for _, o := range []client.Options{
		{Username: "nobody"},
		{Username: "c", Subscriptions: []client.Subscription{{Filter: "forbidden", QoS: 1}}},
	} {
		o.URLs, o.MaxBackoff = to(b), time.Millisecond
		p := begin(t, o)
		wantKind(t, p.Publish(t.Context(), client.Message{Topic: "t"}), protocol.Unavailable)
		p.stop(t)
		if len(p.up) != 0 || len(p.down) != 0 {
			t.Errorf("%s: OnUp %d and OnDown %d times, want never", o.Username, len(p.up), len(p.down))
		}
	}
}

// TestRefusedWithWhatWasBefore checks that an attempt which began with the certificate of before says nothing of the one
// after it: what it meets may be that of before.
func TestRefusedWithWhatWasBefore(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.NotFoundHandler()) // it admits no MQTT client
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	dials, refused := make(chan func(), 1), make(chan int, 10)
	dialled := 0 // the attempts follow one another
	p := begin(t, client.Options{
		URLs: []string{"tls://" + s.Listener.Addr().String()}, MaxBackoff: time.Millisecond,
		TLS: s.Client().Transport.(*http.Transport).TLSClientConfig,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dialled++; dialled == 1 {
				(<-dials)()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		Proof: client.Proof{Refused: func() {
			select {
			case refused <- dialled:
			default:
			}
		}},
	})
	dials <- p.Reconnect // as it is called with each new certificate
	if first := await(t, refused, "a refusal"); first != 2 {
		t.Errorf("attempt %d is the first that is said to be refused, want 2", first)
	}
}

// The broker has no acknowledgement while Handle runs; one that fails in a way
// that may pass gets the retained message again.
func TestHandleBeforeAcknowledgement(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, "", nil)
	proxy := newProxy(t, b.Addr("main"))
	var calls atomic.Int32
	handled := make(chan string, 100)
	p := begin(t, client.Options{
		URLs: []string{"tcp://" + proxy.addr}, MaxBackoff: 10 * time.Millisecond,
		Subscriptions: []client.Subscription{{Filter: "#", QoS: 1}},
		Handle: func(_ context.Context, m client.Message) error {
			if acks := proxy.acks.Load(); acks != int32(len(handled)) {
				t.Errorf("%d acknowledgements before %s is handled, want %d", acks, m.Topic, len(handled))
			}
			if calls.Add(1) == 1 {
				return protocol.Errorf(protocol.Unavailable, "disk full")
			}
			handled <- m.Topic
			if m.Topic == "bad" {
				return protocol.Errorf(protocol.Invalid, "not CBOR")
			}
			return nil
		},
	})
	await(t, p.up, "the link")
	if err := b.Publish(t.Context(), broker.Message{Topic: "t", Payload: []byte("x"), QoS: 1, Retain: true}); err != nil {
		t.Fatal(err)
	}
	if err := await(t, p.down, "the end of the link"); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("OnDown got %v", err)
	}
	await(t, p.up, "the next link")
	proxy.awaitAcks(t, 1)
	for i, topic := range []string{"bad", "good"} { // a refused message does not end the link
		if err := b.Publish(t.Context(), broker.Message{Topic: topic, QoS: 1}); err != nil {
			t.Fatal(err)
		}
		proxy.awaitAcks(t, int32(i)+2)
	}
	for _, want := range []string{"t", "bad", "good"} {
		if got := await(t, handled, want); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if len(p.down) != 0 {
		t.Error("a refused message ended the link")
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, "", nil)
	p := begin(t, client.Options{URLs: to(b), Subscriptions: []client.Subscription{{Filter: "#", QoS: 1}}})
	await(t, p.up, "the link")
	const each = 300
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range each {
				if err := p.Publish(t.Context(), client.Message{Topic: fmt.Sprint("t/", w), Payload: fmt.Append(nil, i), QoS: 1}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for range 8 * each {
		m := await(t, p.got, "a message")
		if string(m.Payload) != fmt.Sprint(next[m.Topic]) {
			t.Fatalf("%s: got %s, want %d", m.Topic, m.Payload, next[m.Topic])
		}
		next[m.Topic]++
	}
}

func TestWill(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, "", nil)
	watcher := begin(t, client.Options{URLs: to(b), Username: "watcher", Subscriptions: []client.Subscription{{Filter: "will", QoS: 1}}})
	await(t, watcher.up, "the watcher's link")
	proxy := newProxy(t, b.Addr("main"))
	p := begin(t, client.Options{
		URLs: []string{"tcp://" + proxy.addr}, MaxBackoff: 10 * time.Millisecond,
		Will: func(session string) *client.Message {
			return &client.Message{Topic: "will", Payload: []byte(session), QoS: 1, ContentType: protocol.ContentType}
		},
	})
	first := await(t, p.up, "the link")
	proxy.cut()
	if m := await(t, watcher.got, "the will"); string(m.Payload) != first || m.ContentType != protocol.ContentType {
		t.Errorf("got %q of type %q, want %q", m.Payload, m.ContentType, first)
	}
	await(t, p.up, "the next link")
	p.stop(t) // an orderly end: no will
	if err := b.Publish(t.Context(), broker.Message{Topic: "will", Payload: []byte("end"), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if m := await(t, watcher.got, "the last message"); string(m.Payload) != "end" {
		t.Errorf("a will was sent after an orderly end: %q", m.Payload)
	}
}

// A proxy that goes on taking bytes and passes none on, as a link does whose
// far end has ended.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	const keepAlive = time.Second
	b, _ := serve(t, "", nil)
	proxy := newProxy(t, b.Addr("main"))
	p := begin(t, client.Options{URLs: []string{"tcp://" + proxy.addr}, KeepAlive: keepAlive, MaxBackoff: 10 * time.Millisecond})
	await(t, p.up, "the link")
	idle := time.After(3 * keepAlive)
	select {
	case err := <-p.down:
		t.Fatalf("an idle link was given up: %v", err)
	case <-idle:
	}
	proxy.swallow.Store(true)
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- p.Publish(t.Context(), client.Message{Topic: "t", QoS: 1}) }()
	err := await(t, p.down, "noticing a half-open link")
	if d := time.Since(begun); d > keepAlive*3/2+500*time.Millisecond {
		t.Errorf("noticed after %s, want 1.5 × the keep-alive of %s", d, keepAlive)
	}
	wantKind(t, err, protocol.Unavailable)
	wantKind(t, await(t, done, "the end of publish"), protocol.Unavailable)
	proxy.swallow.Store(false)
	await(t, p.up, "the next link")
}

// A handler that is slow and a queue that is full do not cost the link.
func TestSlowHandleKeepsTheLink(t *testing.T) {
	t.Parallel()
	const keepAlive = 500 * time.Millisecond
	b, _ := serve(t, "", nil)
	leave := make(chan struct{})
	var n atomic.Int32
	p := begin(t, client.Options{
		URLs: to(b), KeepAlive: keepAlive, ReceiveMaximum: 2, Subscriptions: []client.Subscription{{Filter: "t", QoS: 0}},
		Handle: func(context.Context, client.Message) error { <-leave; n.Add(1); return nil },
	})
	await(t, p.up, "the link")
	for range 20 {
		if err := b.Publish(t.Context(), broker.Message{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-p.down:
		t.Fatalf("the link was given up: %v", err)
	case <-time.After(5 * keepAlive):
	}
	close(leave)
	for deadline := time.After(patience); n.Load() < 20; {
		select {
		case <-deadline:
			t.Fatalf("%d of 20 messages handled", n.Load())
		case <-time.After(time.Millisecond):
		}
	}
}

func TestWriteDeadline(t *testing.T) {
	t.Parallel()
	b, _ := serve(t, "", nil)
	proxy := newProxy(t, b.Addr("main"))
	p := begin(t, client.Options{URLs: []string{"tcp://" + proxy.addr}, WriteTimeout: 200 * time.Millisecond, KeepAlive: time.Minute, MaxBackoff: time.Minute})
	await(t, p.up, "the link")
	proxy.stall.Store(true) // reads nothing more, so the TCP buffers fill
	var err error
	for range 100 {
		if err = p.Publish(t.Context(), client.Message{Topic: "t", Payload: make([]byte, 1<<20)}); err != nil {
			break
		}
	}
	wantKind(t, err, protocol.Unavailable)
	await(t, p.down, "the end of the link")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []client.Options{
		{},
		{ClientID: "c", Logger: testLog(t), URLs: []string{"http://x"}},
		{ClientID: "c", Logger: testLog(t), URLs: []string{"unix://x"}},
		{ClientID: "c", Logger: testLog(t), URLs: []string{"tcp://x"}, Subscriptions: []client.Subscription{{Filter: "t"}}},
	} {
		_, err := client.New(o)
		wantKind(t, err, protocol.Invalid)
	}
	c, err := client.New(client.Options{ClientID: "c", Logger: testLog(t), URLs: []string{"tcp://x", "unix:///s", "wss://h/p"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("stop before start: %v", err)
	}
}

// A proxy stands between a client and a broker and spoils the link. It counts
// the PUBACK packets of the client, each of which comes in a segment of its own.
type proxy struct {
	addr    string
	swallow atomic.Bool // take bytes, pass none on
	stall   atomic.Bool // take no bytes
	acks    atomic.Int32
	acked   chan struct{}
	mu      sync.Mutex
	open    []net.Conn
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), acked: make(chan struct{}, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, near, far)
			p.mu.Unlock()
			wg.Go(func() { p.forward(far, near, true) })
			wg.Go(func() { p.forward(near, far, false) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) forward(dst, src net.Conn, up bool) {
	defer func() { _, _ = dst.Close(), src.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		if p.swallow.Load() {
			continue
		}
		if up && buf[0] == 0x40 {
			p.acks.Add(1)
			p.acked <- struct{}{}
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
		if up && p.stall.Load() {
			_, _ = io.ReadFull(dst, make([]byte, 1<<30)) // until cut
			return
		}
	}
}

// cut kills all connections without a good-bye.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}

func (p *proxy) awaitAcks(t *testing.T, n int32) {
	t.Helper()
	for p.acks.Load() < n {
		await(t, p.acked, "an acknowledgement")
	}
}

// picky refuses subscriptions to filters that begin with later.
type picky struct{ free }

func (picky) MaySubscribe(_ access.Identity, filter string) bool {
	return !strings.HasPrefix(filter, "later")
}

// TestOptionalSubscription connects to a broker that refuses a subscription which may be missing, and one that may not.
func TestOptionalSubscription(t *testing.T) {
	t.Parallel()
	b, err := broker.New(broker.Options{
		Access: picky{}, Logger: testLog(t), Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b)
	p := begin(t, client.Options{URLs: to(b), Subscriptions: []client.Subscription{{Filter: "later/+", QoS: 1, Optional: true}, {Filter: "t"}}})
	await(t, p.up, "the link")
	if p.Subscribed("later/+") || !p.Subscribed("t") || p.Subscribed("other") {
		t.Error("it has the subscription that was refused, or not the other one")
	}
	if err := p.Publish(t.Context(), client.Message{Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	await(t, p.got, "the message")
	p.stop(t)
	if p.Subscribed("t") {
		t.Error("it is subscribed without a link")
	}
}
