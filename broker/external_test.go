package broker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
)

// A mosquitto is a real broker of somebody else's, which keeps its sessions.
type mosquitto struct {
	addr, config string
	cmd          *exec.Cmd
}

func newMosquitto(t *testing.T) *mosquitto {
	t.Helper()
	if _, err := exec.LookPath("mosquitto"); err != nil {
		t.Fatal("mosquitto is not installed: run scripts/setup --with-test-peers as root")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mosquitto{addr: free.Addr().String(), config: filepath.Join(t.TempDir(), "mosquitto.conf")}
	_, port, err := net.SplitHostPort(m.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n", port)
	if err := os.WriteFile(m.config, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	t.Cleanup(func() { m.kill(t) })
	return m
}

func (m *mosquitto) start(t *testing.T) {
	t.Helper()
	m.cmd = exec.Command("mosquitto", "-c", m.config)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "mosquitto listens", func() bool {
		c, err := net.Dial("tcp", m.addr)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	})
}

func (m *mosquitto) kill(t *testing.T) {
	t.Helper()
	if m.cmd == nil {
		return
	}
	if err := m.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = m.cmd.Wait() // it was killed
	m.cmd = nil
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(patience); !holds(); {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("still not: %s", what)
		}
	}
}

var coSources = []broker.Source{
	{Filter: "colony/v1/+/up", Delivery: broker.Stream},
	{Filter: "colony/v1/+/online", Delivery: broker.State},
	{Filter: "colony/v1/+/in/#", Delivery: broker.Kept},
}

// external connects to m and waits for the connection.
func external(t *testing.T, m *mosquitto, id string, take func(context.Context, broker.Identity, broker.Message) error, up func(context.Context)) *broker.External {
	t.Helper()
	e, err := broker.NewExternal(broker.ExternalOptions{
		URLs: []string{"tcp://" + m.addr}, ClientID: id, Sources: coSources, Take: take, OnUp: up, Logger: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopExternal(t, e) })
	until(t, id+" is connected", e.Up)
	return e
}

func stopExternal(t *testing.T, e *broker.External) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// Two replicas share the batches; each batch is taken by one of them, and each
// replica knows of each site's presence (MQTT 5, section 4.8.2).
func TestExternalShares(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t)
	boxes := [2]*box{newBox(), newBox()}
	for i, b := range boxes {
		external(t, m, fmt.Sprintf("co-%d", i), func(ctx context.Context, from broker.Identity, msg broker.Message) error {
			if from.Site != "plant" {
				t.Errorf("message of site %q", from.Site)
			}
			return b.take(ctx, msg)
		}, nil)
	}
	site := join(t, client.Options{URLs: []string{"tcp://" + m.addr}, ClientID: "plant"})
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

// A Kept message is held by the broker while nobody is connected, and then until
// it is taken, in order (MQTT 5, section 3.1.2.11.2).
func TestExternalKeeps(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t)
	first := external(t, m, "co", func(context.Context, broker.Identity, broker.Message) error { return nil }, nil)
	stopExternal(t, first)
	app := join(t, client.Options{URLs: []string{"tcp://" + m.addr}, ClientID: "app"})
	want := []string{"1", "2", "3"}
	for _, p := range want {
		send(t, app, client.Message{Topic: "colony/v1/plant/in/set", Payload: []byte(p), QoS: 1})
	}
	fails := 2
	got := newBox()
	external(t, m, "co", func(ctx context.Context, _ broker.Identity, msg broker.Message) error {
		if fails--; fails >= 0 {
			return protocol.Errorf(protocol.Unavailable, "not now")
		}
		return got.take(ctx, msg)
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
func TestExternalTriesStateAgain(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t)
	got, tried := newBox(), map[string]bool{}
	var mu sync.Mutex
	e := external(t, m, "co", func(ctx context.Context, _ broker.Identity, msg broker.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if !tried[string(msg.Payload)] {
			tried[string(msg.Payload)] = true
			return protocol.Errorf(protocol.Unavailable, "no database")
		}
		return got.take(ctx, msg)
	}, nil)
	site := join(t, client.Options{URLs: []string{"tcp://" + m.addr}, ClientID: "plant"})
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

// After the broker was killed the program is connected again, is told so, and its
// subscriptions are there.
func TestExternalComesBack(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t)
	ups, got := make(chan struct{}, 16), newBox()
	e := external(t, m, "co", func(ctx context.Context, _ broker.Identity, msg broker.Message) error { return got.take(ctx, msg) },
		func(context.Context) { ups <- struct{}{} })
	<-ups
	m.kill(t)
	until(t, "loss noticed", func() bool { return !e.Up() })
	if err := e.Publish(t.Context(), broker.Message{Topic: "colony/v1/plant/ack", QoS: 1}); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("publish while the broker is away: %v", err)
	}
	m.start(t)
	select {
	case <-ups:
	case <-time.After(patience):
		t.Fatal("not connected again")
	}
	until(t, "both connections are back", e.Up)
	site := join(t, client.Options{URLs: []string{"tcp://" + m.addr}, ClientID: "plant"})
	send(t, site, client.Message{Topic: "colony/v1/plant/up", Payload: []byte("batch"), QoS: 1})
	if p := string(got.next(t).Payload); p != "batch" {
		t.Errorf("got %q", p)
	}
}

func TestExternalRefusesFaults(t *testing.T) {
	t.Parallel()
	if _, err := broker.NewExternal(broker.ExternalOptions{Logger: testLog(t)}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("without Take: %v", err)
	}
	take := func(context.Context, broker.Identity, broker.Message) error { return nil }
	if _, err := broker.NewExternal(broker.ExternalOptions{Take: take, Logger: testLog(t), ClientID: "co"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("without a URL: %v", err)
	}
}

func send(t *testing.T, c *client.Client, m client.Message) {
	t.Helper()
	if err := c.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}
