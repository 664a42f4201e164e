package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func TestPublishBlocksUntilAcknowledged(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	b, _ := serve(t, "", func(context.Context, access.Identity, broker.Message) error {
		entered <- struct{}{}
		<-leave
		return nil
	})
	p := begin(t, client.Options{URLs: to(b)})
	await(t, p.up, "the link")
	done := make(chan error, 1)
	go func() { done <- p.Publish(t.Context(), client.Message{Topic: "t", QoS: 1}) }()
	await(t, entered, "Take")
	select {
	case err := <-done:
		t.Errorf("publish returned (%v) before the acknowledgement", err)
	default:
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Publish(short, client.Message{Topic: "t", QoS: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	close(leave)
	if err := await(t, done, "the acknowledgement"); err != nil {
		t.Error(err)
	}
}

func TestPublishErrors(t *testing.T) {
	t.Parallel()
	b, stop := serve(t, "", func(ctx context.Context, _ access.Identity, m broker.Message) error {
		switch m.Topic {
		case "hang":
			<-ctx.Done()
			return ctx.Err()
		case "full":
			return protocol.Errorf(protocol.Unavailable, "the journal is full")
		case "odd":
			return protocol.Errorf(protocol.Invalid, "not CBOR")
		}
		return nil
	})
	p := begin(t, client.Options{URLs: to(b), MaxBackoff: 50 * time.Millisecond})
	await(t, p.up, "the link")
	for topic, kind := range map[string]protocol.Kind{
		"full": protocol.Unavailable, "odd": protocol.Invalid, "forbidden": protocol.Denied, "$SYS/x": protocol.Denied,
	} {
		wantKind(t, p.Publish(t.Context(), client.Message{Topic: topic, QoS: 1}), kind)
	}
	wantKind(t, p.Publish(t.Context(), client.Message{Topic: "t", Payload: make([]byte, 5<<20)}), protocol.Invalid)
	wantKind(t, p.Publish(t.Context(), client.Message{Topic: "t", QoS: 2}), protocol.Invalid)
	for _, topic := range []string{"", "a/+", "#", "a\x00", strings.Repeat("x", 1<<16)} {
		wantKind(t, p.Publish(t.Context(), client.Message{Topic: topic, QoS: 1}), protocol.Invalid)
	}
	if err := p.Publish(t.Context(), client.Message{Topic: "t", QoS: 1}); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Publish(t.Context(), client.Message{Topic: "hang", QoS: 1}) }()
	stop()
	wantKind(t, await(t, done, "the end of publish"), protocol.Unavailable)
}

// What the broker refuses shows as the client's state: it stays down and goes on trying.
// One message that is refused does not hold up the others of its list; one that
// may be taken later makes the list an error.
func TestPublishAll(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var received []string
	full := true
	b, stop := serve(t, "", func(ctx context.Context, _ access.Identity, m broker.Message) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.Topic == "full" && full:
			return protocol.Errorf(protocol.Unavailable, "the journal is full")
		case m.Topic == "odd":
			return protocol.Errorf(protocol.Invalid, "not CBOR")
		}
		received = append(received, m.Topic)
		return nil
	})
	p := begin(t, client.Options{URLs: to(b), MaxBackoff: 50 * time.Millisecond})
	await(t, p.up, "the link")
	var list []client.Message
	for _, topic := range []string{"1", "odd", "2", "#", "forbidden", "full", "3"} {
		list = append(list, client.Message{Topic: topic, QoS: 1})
	}
	list = append(list, client.Message{Topic: "4"}, client.Message{Topic: "huge", Payload: make([]byte, 5<<20), QoS: 1})
	publish := func(list []client.Message) (refused string, err error) {
		err = p.PublishAll(t.Context(), list, func(i int, err error) {
			refused += fmt.Sprint(i, protocol.KindOf(err), " ")
		})
		return refused, err
	}
	_, err := publish(list)
	wantKind(t, err, protocol.Unavailable)
	mu.Lock()
	received, full = nil, false
	mu.Unlock()
	refused, err := publish(list)
	if want := "1invalid 3invalid 4denied 8invalid "; refused != want || err != nil {
		t.Errorf("refused %q, %v, want %q", refused, err, want)
	}
	if err := p.Publish(t.Context(), client.Message{Topic: "last", QoS: 1}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	if got, want := strings.Join(received, " "), "1 2 full 3 4 last"; got != want {
		t.Errorf("taken %q, want %q", got, want)
	}
	mu.Unlock()
	if _, err := publish(nil); err != nil {
		t.Error(err)
	}
	stop()
	await(t, p.down, "the loss of the link")
	_, err = publish(list[:1])
	wantKind(t, err, protocol.Unavailable)
}

// A message that is too large for the broker does not take a place among those that
// may be under way. [MQTT-4.9.0-2]
func TestTooLargeUsesNoWindow(t *testing.T) {
	t.Parallel()
	b, err := broker.New(broker.Options{
		Access: free{}, Logger: testLog(t), Limits: limits.Limits{PacketBytes: 1000},
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b)
	p := begin(t, client.Options{URLs: to(b)})
	await(t, p.up, "the link")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range 1100 { // the broker's Receive Maximum is 1,024
		err := p.Publish(ctx, client.Message{Topic: "t", Payload: make([]byte, 1000), QoS: 1})
		if protocol.KindOf(err) != protocol.Invalid {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// A message that takes several keep-alives to cross a slow link arrives, either
// way, over one connection: neither end takes the other for dead meanwhile.
func TestLargeMessageOnASlowLink(t *testing.T) {
	t.Parallel()
	const rate = 20 << 10 // bytes per second
	body := make([]byte, 160<<10)
	took := make(chan int, 4)
	b, _ := serve(t, "", func(_ context.Context, _ access.Identity, m broker.Message) error {
		took <- len(m.Payload)
		return nil
	})
	slow, err := impair.Listen(b.Addr("main"), impair.Profile{Rate: rate, Queue: 4 << 10}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slow.Close() })
	p := begin(t, client.Options{
		URLs: []string{"tcp://" + slow.Addr()}, KeepAlive: 3 * time.Second, Subscriptions: []client.Subscription{{Filter: "down", QoS: 1}},
	})
	await(t, p.up, "the link")
	if err := p.Publish(t.Context(), client.Message{Topic: "up", Payload: body, QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if n := await(t, took, "the message at the broker"); n != len(body) {
		t.Errorf("%d bytes came", n)
	}
	if err := b.Publish(t.Context(), broker.Message{Topic: "down", Payload: body, QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if m := await(t, p.got, "the message at the client"); len(m.Payload) != len(body) {
		t.Errorf("%d bytes came", len(m.Payload))
	}
	select {
	case err := <-p.down:
		t.Errorf("the link broke: %v", err)
	default:
	}
}
