//go:build !race

package broker_test

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/internal/impair"
)

// What is here runs without the race detector, in a step of its own of scripts/test: in
// paho.golang 0.23.0 a new connection writes what a Publish of the connection before it
// still reads (State.ConAckReceived and State.AddToSession in paho/session/state).

// pahoLasting connects autopaho with a session of one hour over a link, with what it subscribes to.
func pahoLasting(t *testing.T, address, id string, subscribe *paho.Subscribe, receive func([]byte)) *autopaho.ConnectionManager {
	t.Helper()
	first := true
	c := autopaho.ClientConfig{
		ServerUrls: []*url.URL{{Scheme: "tcp", Host: address}}, KeepAlive: 30, SessionExpiryInterval: 3600, ConnectUsername: id,
		ReconnectBackoff: autopaho.NewConstantBackoff(20 * time.Millisecond),
		OnConnectionUp: func(cm *autopaho.ConnectionManager, _ *paho.Connack) {
			if subscribe != nil && first { // once: then the session has it
				first = false
				if _, err := cm.Subscribe(context.Background(), subscribe); err != nil {
					t.Error(err)
				}
			}
		},
		ClientConfig: paho.ClientConfig{
			ClientID: id,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
				if receive != nil {
					receive(r.Packet.Payload)
				}
				return true, nil
			}},
		},
	}
	return pahoConnect(t, c)
}

// A publisher and a subscriber with sessions of an hour, and a link that is cut 20 times while 20,000
// messages are under way: all arrive, in the order in which the broker got them.
//
// autopaho may forget until its next connection what it sends while one ends; so there is one more cut
// if nothing comes for a while, and the order that is asked for is that of the broker's input.
func TestLinkCuts(t *testing.T) {
	t.Parallel()
	const messages, cuts = 20_000, 20
	var in, out ledger
	edit := stored(t, sessions.Limits{})
	b, reg := start(t, free{}, func(o *broker.Options) {
		edit(o)
		o.Accept = func(_ context.Context, _ access.Identity, m broker.Message) error {
			in.note(m.Payload)
			return nil
		}
	})
	link, err := impair.Listen(b.Addr("main"), impair.Profile{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	pahoLasting(t, link.Addr(), "sub", &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "t", QoS: 1}}}, out.note)
	until(t, "the subscription is there", func() bool { return metric(t, reg, "subscriptions") == 1 })
	pub := pahoLasting(t, link.Addr(), "pub", nil, nil)
	for i := range messages { // its queue and its session send them, over as many connections as that takes
		m := &paho.Publish{Topic: "t", QoS: 1, Payload: strconv.AppendInt(nil, int64(i), 10)}
		if err := pub.PublishViaQueue(t.Context(), &autopaho.QueuePublish{Publish: m}); err != nil {
			t.Fatal(err)
		}
	}
	for cut := 1; cut <= cuts; cut++ {
		await(t, longPatience, func() bool { return out.count() >= cut*messages/(cuts+2) })
		link.Reset()
	}
	last, since, quiet := 0, time.Now(), time.Second
	await(t, longPatience, func() bool {
		if n := out.count(); n > last {
			last, since = n, time.Now()
		} else if time.Since(since) > quiet {
			since, quiet = time.Now(), 2*quiet // a slow machine needs longer for what the cut leads to
			link.Reset()
		}
		return last >= messages
	})
	if got := out.first(); len(got) != messages || !slices.Equal(got, in.first()) {
		t.Errorf("%d of %d messages came, in another order than that of the broker's input", len(got), messages)
	}
	if n := metric(t, reg, "connects_total"); n < cuts {
		t.Errorf("%v connects for %d cuts", n, cuts)
	}
}

// await waits for a condition for as long as most.
func await(t *testing.T, most time.Duration, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(most); !holds(); {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Error("it takes too long")
			return
		}
	}
}
