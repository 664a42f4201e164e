package external_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/broker/external"
	"github.com/colonyfleet/colony/internal/mosquittotest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// testLog writes to the test's log.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// A box collects messages.
type box struct{ c chan client.Message }

func newBox() *box { return &box{make(chan client.Message, 10_000)} }

func (b *box) accept(_ context.Context, m client.Message) error {
	b.c <- m
	return nil
}

func (b *box) next(t *testing.T) client.Message {
	t.Helper()
	select {
	case m := <-b.c:
		return m
	case <-time.After(patience):
		t.Fatal("no message came")
		return client.Message{}
	}
}

// join connects a client of ours and waits until it is up.
func join(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	o.Logger = testLog(t)
	return clienttest.Join(t, o)
}

// until waits for a condition.
var until = testpart.Eventually

var coSources = []external.Source{
	{Filter: "colony/v1/+/up", Delivery: external.Stream},
	{Filter: "colony/v1/+/online", Delivery: external.State},
	{Filter: "colony/v1/+/in/#", Delivery: external.Retained},
}

// external connects to m and waits for the connection.
func connect(t testing.TB, m *mosquittotest.Broker, id string, accept func(context.Context, access.Identity, client.Message) error, up func(context.Context)) *external.Broker {
	t.Helper()
	e, err := external.New(external.Options{
		URLs: []string{"tcp://" + m.Addr}, ClientID: id, Sources: coSources, Accept: accept, OnUp: up, Logger: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, e) })
	until(t, id+" is connected", e.Up)
	return e
}

func stop(t testing.TB, e *external.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// Two replicas share the batches; each batch is taken by one of them, and each
// replica knows of each site's presence (MQTT 5, section 4.8.2).
func TestShares(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	boxes := [2]*box{newBox(), newBox()}
	for i, b := range boxes {
		connect(t, m, fmt.Sprintf("co-%d", i), func(ctx context.Context, from access.Identity, msg client.Message) error {
			if from.Site != "plant" {
				t.Errorf("message of site %q", from.Site)
			}
			return b.accept(ctx, msg)
		}, nil)
	}
	site := join(t, client.Options{URLs: []string{"tcp://" + m.Addr}, ClientID: "plant"})
	send(t, site, client.Message{Topic: "colony/v1/plant/online", Payload: []byte("here"), QoS: 1, Retain: true})
	const batches = 40
	for i := range batches {
		send(t, site, client.Message{Topic: "colony/v1/plant/up", Payload: fmt.Appendf(nil, "%d", i), QoS: 1})
	}
	seen := map[string]int{}
	online := 0
	for range batches + len(boxes) {
		var got client.Message
		select {
		case got = <-boxes[0].c:
		case got = <-boxes[1].c:
		case <-time.After(patience):
			t.Fatalf("only %d batches and %d presences came", len(seen), online)
		}
		if got.Topic == "colony/v1/plant/online" {
			online++
			continue
		}
		seen[string(got.Payload)]++
	}
	if online != len(boxes) || len(seen) != batches {
		t.Errorf("%d presences for %d replicas, %d different batches of %d", online, len(boxes), len(seen), batches)
	}
}

// A Kept message is held by the broker while no client is connected, and then until it is taken, in
// order (MQTT 5, section 3.1.2.11.2).
func TestKeeps(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	first := connect(t, m, "co", func(context.Context, access.Identity, client.Message) error { return nil }, nil)
	stop(t, first)
	app := join(t, client.Options{URLs: []string{"tcp://" + m.Addr}, ClientID: "app"})
	want := []string{"1", "2", "3"}
	for _, p := range want {
		send(t, app, client.Message{Topic: "colony/v1/plant/in/set", Payload: []byte(p), QoS: 1})
	}
	fails := 2
	got := newBox()
	connect(t, m, "co", func(ctx context.Context, _ access.Identity, msg client.Message) error {
		if fails--; fails >= 0 {
			return protocol.Errorf(protocol.Unavailable, "not now")
		}
		return got.accept(ctx, msg)
	}, nil)
	var have []string
	for range want {
		have = append(have, string(got.next(t).Payload))
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// The last State message of a topic is tried until it is taken; one that a newer
// one replaced is not. A Stream message is not tried again, and what is refused
// for one does not end the connection.
func TestTriesStateAgain(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	got, tried := newBox(), map[string]bool{}
	var mu sync.Mutex
	e := connect(t, m, "co", func(ctx context.Context, _ access.Identity, msg client.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if !tried[string(msg.Payload)] {
			tried[string(msg.Payload)] = true
			return protocol.Errorf(protocol.Unavailable, "no database")
		}
		return got.accept(ctx, msg)
	}, nil)
	site := join(t, client.Options{URLs: []string{"tcp://" + m.Addr}, ClientID: "plant"})
	send(t, site, client.Message{Topic: "colony/v1/plant/up", Payload: []byte("batch"), QoS: 1})
	send(t, site, client.Message{Topic: "colony/v1/plant/online", Payload: []byte("old"), QoS: 1, Retain: true})
	send(t, site, client.Message{Topic: "colony/v1/plant/online", Payload: []byte("new"), QoS: 1, Retain: true})
	if p := string(got.next(t).Payload); p != "new" && p != "old" {
		t.Errorf("took %q", p)
	} else if p == "old" { // it was tried before the newer one came
		if p := string(got.next(t).Payload); p != "new" {
			t.Errorf("took %q after the old one", p)
		}
	}
	if !e.Up() {
		t.Error("the connection ended")
	}
}

// After the broker was killed the program is connected again, is called for it, and its
// subscriptions are there.
func TestComesBack(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	ups, got := make(chan struct{}, 16), newBox()
	e := connect(t, m, "co", func(ctx context.Context, _ access.Identity, msg client.Message) error { return got.accept(ctx, msg) },
		func(context.Context) { ups <- struct{}{} })
	<-ups
	m.Kill()
	until(t, "loss noticed", func() bool { return !e.Up() })
	if err := e.Publish(t.Context(), client.Message{Topic: "colony/v1/plant/ack", QoS: 1}); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("publish while the broker is away: %v", err)
	}
	m.Again()
	select {
	case <-ups:
	case <-time.After(patience):
		t.Fatal("not connected again")
	}
	until(t, "both connections are back", e.Up)
	site := join(t, client.Options{URLs: []string{"tcp://" + m.Addr}, ClientID: "plant"})
	send(t, site, client.Message{Topic: "colony/v1/plant/up", Payload: []byte("batch"), QoS: 1})
	if p := string(got.next(t).Payload); p != "batch" {
		t.Errorf("got %q", p)
	}
}

// A list arrives whole and in order, also where the broker has room for fewer than
// it holds, and beside the messages of others. [MQTT-4.6.0-6]
func TestPublishAll(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	e := connect(t, m, "co", func(context.Context, access.Identity, client.Message) error { return nil }, nil)
	got := newBox()
	join(t, client.Options{
		URLs: []string{"tcp://" + m.Addr}, ClientID: "app", Handle: got.accept, Subscriptions: []client.Subscription{{Filter: "data/#", QoS: 1}},
	})
	const n, lists = 300, 2
	var all sync.WaitGroup
	for l := range lists {
		all.Go(func() {
			list := make([]client.Message, n)
			for i := range list {
				list[i] = client.Message{Topic: fmt.Sprintf("data/%d", l), Payload: fmt.Appendf(nil, "%d", i), QoS: byte(1 + i%2)}
			}
			list[7].Topic, list[9].Topic = "data/#", ""
			refused := []int{}
			if err := e.PublishAll(t.Context(), list, func(i int, err error) {
				refused = append(refused, i)
				if protocol.KindOf(err) != protocol.Invalid {
					t.Errorf("message %d: %v", i, err)
				}
			}); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]int{7, 9}, refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if list[1].QoS != 2 {
				t.Error("the caller's list was changed")
			}
		})
	}
	all.Wait()
	next := map[string]int{}
	for range lists * (n - 2) {
		msg := got.next(t)
		i := next[msg.Topic]
		if i == 7 || i == 9 {
			i++
		}
		if string(msg.Payload) != fmt.Sprint(i) {
			t.Fatalf("%s: got %s, want %d", msg.Topic, msg.Payload, i)
		}
		next[msg.Topic] = i + 1
	}
}

// What a list costs with an answer awaited for each message, and without.
func BenchmarkPublish(b *testing.B) {
	m := mosquittotest.Start(b)
	e := connect(b, m, "co", func(context.Context, access.Identity, client.Message) error { return nil }, nil)
	list := make([]client.Message, 500)
	for i := range list {
		list[i] = client.Message{Topic: "colony/v1/plant/data/line/1", Payload: make([]byte, 200), QoS: 1}
	}
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			for i := range list {
				if err := e.Publish(b.Context(), list[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(len(list)*b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if err := e.PublishAll(b.Context(), list, func(_ int, err error) { b.Error(err) }); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(list)*b.N)/b.Elapsed().Seconds(), "msg/s")
	})
}

func TestRefusesFaults(t *testing.T) {
	t.Parallel()
	if _, err := external.New(external.Options{Logger: testLog(t)}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("without Take: %v", err)
	}
	accept := func(context.Context, access.Identity, client.Message) error { return nil }
	if _, err := external.New(external.Options{Accept: accept, Logger: testLog(t), ClientID: "co"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("without a URL: %v", err)
	}
}

func send(t *testing.T, c *client.Client, m client.Message) {
	t.Helper()
	if err := c.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// TestUnfit has one of two replicas be unable to take anything for a while: the other one gets
// every batch, and the first one its share again later.
func TestUnfit(t *testing.T) {
	t.Parallel()
	m := mosquittotest.Start(t)
	boxes := [2]*box{newBox(), newBox()}
	var away atomic.Bool
	first, err := external.New(external.Options{
		URLs: []string{"tcp://" + m.Addr}, ClientID: "co-1", Sources: coSources, Logger: testLog(t),
		Accept: func(ctx context.Context, _ access.Identity, msg client.Message) error {
			return boxes[0].accept(ctx, msg)
		},
		Fit: func(ctx context.Context) error {
			if away.Load() {
				<-ctx.Done() // as a connection that nothing comes over
				return ctx.Err()
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, first) })
	connect(t, m, "co-2", func(ctx context.Context, _ access.Identity, msg client.Message) error {
		return boxes[1].accept(ctx, msg)
	}, nil)
	until(t, "co-1 is connected", first.Up)
	site := join(t, client.Options{URLs: []string{"tcp://" + m.Addr}, ClientID: "plant"})
	batches := func(n int) {
		for i := range n {
			send(t, site, client.Message{Topic: "colony/v1/plant/up", Payload: fmt.Appendf(nil, "%d", i), QoS: 1})
		}
	}
	away.Store(true)
	until(t, "co-1 has left", func() bool { return !first.Up() })
	batches(20)
	for range 20 {
		boxes[1].next(t)
	}
	if n := len(boxes[0].c); n > 0 {
		t.Errorf("%d batches went to a replica that had left", n)
	}
	away.Store(false)
	until(t, "co-1 is connected again", first.Up)
	batches(20)
	boxes[0].next(t)
}
