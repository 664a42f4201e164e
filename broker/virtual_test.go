package broker_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/internal/random"
)

// TestVirtualTime runs a broker and a client over a network in memory, in virtual
// time: a cut is noticed by both ends after 1.5 times the keep-alive, to the
// millisecond, and the client is back soon after it ends.
func TestVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, ctx := memnet.New(1), t.Context()
		wills := make(chan time.Time, 1)
		b, err := broker.New(broker.Options{
			Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "broker:1883"}}, Listen: n.Host("broker").Listen,
			Access: free{}, Logger: slog.New(slog.DiscardHandler),
			Accept: func(_ context.Context, _ access.Identity, m broker.Message) error {
				if m.Topic == "will" {
					wills <- time.Now()
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		ups, downs := make(chan string, 8), make(chan time.Time, 8)
		c, err := client.New(client.Options{
			URLs: []string{"tcp://broker:1883"}, ClientID: "c", KeepAlive: 20 * time.Second, Logger: slog.New(slog.DiscardHandler),
			Dial: n.Host("client").DialContext, Random: random.Seeded(1),
			Will:   func(string) *client.Message { return &client.Message{Topic: "will", QoS: 1, Payload: []byte{1}} },
			OnUp:   func(_ context.Context, session string) { ups <- session },
			OnDown: func(error) { downs <- time.Now() },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if session, want := <-ups, random.Seeded(1).Text("session/c"); session != want {
			t.Errorf("session %s, want %s of the seed", session, want)
		}
		cut := time.Now()
		n.Path("broker", "client").Cut()
		for what, at := range map[string]time.Time{"the client": <-downs, "the broker": <-wills} {
			if after := at.Sub(cut); after < 29*time.Second || after > 31*time.Second {
				t.Errorf("%s noticed the cut after %s: want 1.5 times the keep-alive of 20s", what, after)
			}
		}
		n.Path("broker", "client").Restore()
		restored := time.Now()
		<-ups
		if took := time.Since(restored); took > 35*time.Second {
			t.Errorf("the client was back %s after the cut: want at most the longest wait and an attempt", took)
		}
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := b.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}
