package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/broker/client/clienttest"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/internal/testpart"
)

// proved accepts the identity that each client claims.
type proved struct{ free }

func (proved) Connect(i access.ConnectInfo) (access.Identity, error) {
	return access.Identity{Name: i.Username, Device: true}, nil
}

// matching has a broker, and a client with filters for which a topic without subscribers takes many steps. Its network is
// virtual. rate is limits.matchRate.
func matching(t *testing.T, rate int) (n *memnet.Network, reg *prometheus.Registry, deep string, join func(user, id string, subscribe ...client.Subscription) *client.Client) {
	const levels, filters = 80, 500
	n, reg = memnet.New(1), prometheus.NewRegistry()
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "broker:1883"}}, Listen: n.Host("broker").Listen,
		Access: proved{}, Logger: slog.New(slog.DiscardHandler), Registerer: reg,
		Limits: limits.Limits{PublishLimits: limits.PublishLimits{MatchRate: rate}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop(context.Background()) }) // its clients have left
	join = func(user, id string, subscribe ...client.Subscription) *client.Client {
		return clienttest.Join(t, client.Options{
			URLs: []string{"tcp://broker:1883"}, Username: user, ClientID: id, Logger: slog.New(slog.DiscardHandler), Subscriptions: subscribe,
			Dial: n.Host(id).DialContext, Handle: newBox().accept,
		})
	}
	var parts []client.Subscription
	for i := range filters { // they part at each of the first levels, and no topic matches them
		var f strings.Builder
		for l := range levels {
			f.WriteString(string("a+"[i>>(l%9)&1]) + "/")
		}
		parts = append(parts, client.Subscription{Filter: f.String() + "zz"})
	}
	join("subscriber", "subscriber", parts...)
	return n, reg, strings.Repeat("a/", levels) + "yy", join
}

// TestMatchRate has an account publish to topics without subscribers that take many steps: its connections are read as fast as its share
// allows, and another account's as before. In virtual time nothing else takes any time.
func TestMatchRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const messages = 50
		_, reg, deep, join := matching(t, 0)
		publish := func(c *client.Client, topic string) time.Duration {
			begun := time.Now()
			for range messages {
				if err := c.Publish(t.Context(), broker.Message{Topic: topic, QoS: 1}); err != nil {
					t.Error(err)
				}
			}
			return time.Since(begun)
		}
		one, other := join("guilty", "one"), join("innocent", "other")
		alone := publish(one, deep)
		if least := 100 * time.Millisecond; alone < least {
			t.Errorf("%d messages that are compared with many filters took %s, want %s at least", messages, alone, least)
		}
		two := join("guilty", "two")
		both := make(chan time.Duration)
		for _, c := range []*client.Client{one, two} {
			go func() { both <- publish(c, deep) }()
		}
		if took := publish(other, "b"); took > 10*time.Millisecond {
			t.Errorf("meanwhile %d messages of another account took %s", messages, took)
		}
		if took := max(<-both, <-both); took < 2*alone {
			t.Errorf("two connections of one account took %s, want %s at least: twice as long as one", took, 2*alone)
		}
		if waited := metric(t, reg, "publish_wait_seconds_total", "match"); waited == 0 {
			t.Error("that they waited is not counted")
		}
	})
}

// TestMatchRateOfOverlappingFilters has many clients get each message by several filters of theirs: that costs its publisher nothing.
func TestMatchRateOfOverlappingFilters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const subscribers, messages = 200, 300
		_, reg, _, join := matching(t, 0)
		for i := range subscribers {
			join("subscriber", fmt.Sprint("s", i), client.Subscription{Filter: "line/#"}, client.Subscription{Filter: "line/+"}, client.Subscription{Filter: "+/1"}, client.Subscription{Filter: "line/1"})
		}
		c, begun := join("innocent", "publisher"), time.Now()
		for range messages {
			if err := c.Publish(t.Context(), broker.Message{Topic: "line/1", QoS: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if waited := metric(t, reg, "publish_wait_seconds_total", "match"); waited > 0 {
			t.Errorf("%d messages took %s, of which %g s were waited for what it takes to match them, want none", messages, time.Since(begun), waited)
		}
	})
}

// overlapping has twenty clients with filters that overlap, so that each is a step for each filter but the first, and returns what publishes
// a message and says how long that took.
func overlapping(t *testing.T, join func(user, id string, subscribe ...client.Subscription) *client.Client) (publish func(c *client.Client, topic string) time.Duration) {
	var often []client.Subscription
	for i := range 7 {
		often = append(often, client.Subscription{Filter: strings.Repeat("+/", i) + "#"})
	}
	for i := range 20 {
		join("subscriber", fmt.Sprint("subscriber ", i), often...)
	}
	return func(c *client.Client, topic string) time.Duration {
		begun := time.Now()
		if err := c.Publish(t.Context(), broker.Message{Topic: topic, QoS: 1}); err != nil {
			t.Error(err)
		}
		return time.Since(begun)
	}
}

// An account that publishes each message over a connection of its own has no larger share, and owes no more than it would otherwise: another
// client of it, whose messages take somewhat more than the free steps, waits for two seconds at most, and cheap messages wait for nothing.
func TestMatchRateOfManyConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, deep, join := matching(t, 0)
		publish := overlapping(t, join)
		innocent := join("guilty", "innocent")
		const messages = 100
		begun, all := time.Now(), make(chan time.Duration)
		for i := range messages {
			c := join("guilty", fmt.Sprint(i))
			if i < messages/2 { // one after the other
				publish(c, deep)
			} else {
				go func() { all <- publish(c, deep) }()
			}
			if i == messages/2 {
				if took := time.Since(begun); took < 100*time.Millisecond {
					t.Errorf("%d messages, each over a connection of its own, took %s, want 100ms at least", messages/2, took)
				}
			}
		}
		synctest.Wait()
		if took := publish(innocent, "b"); took > 0 {
			t.Errorf("a cheap message of the account waited %s", took)
		}
		if took := publish(innocent, "a/a/a/a/a/a/a"); took == 0 || took > 2*time.Second {
			t.Errorf("a message that takes somewhat more steps waited %s, want up to 2s", took)
		}
		for range messages / 2 {
			if took := <-all; took > 2*time.Second {
				t.Errorf("a message waited %s", took)
			}
		}
	})
}

// Those of an account that wait are let go one after another, each when what the one before it took is paid: many connections take no more
// than one. A message of another client of the account that takes somewhat more than the free steps waits for two seconds at most, also behind them.
func TestMatchRateOfManyThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiting, rate = 40, 50_000
		_, _, deep, join := matching(t, rate)
		publish := overlapping(t, join)
		one := join("guilty", "one")
		publish(one, deep)
		publish(one, deep)
		alone := publish(one, deep)
		if alone < 20*time.Millisecond {
			t.Fatalf("one message is paid in %s: too soon for this test", alone)
		}
		all, done := make(chan time.Duration), make(chan time.Duration, waiting)
		for i := range waiting {
			c := join("guilty", fmt.Sprint(i))
			go func() { all <- publish(c, deep) }()
		}
		go func() {
			begun := time.Now()
			for range waiting {
				<-all
				done <- time.Since(begun)
			}
		}()
		innocent := join("guilty", "innocent")
		for range 5 {
			if took := publish(innocent, "a/a/a/a/a/a/a"); took == 0 || took > 2*time.Second {
				t.Errorf("a message that takes somewhat more steps waited %s, want up to 2s", took)
			}
		}
		for i := range waiting {
			took := <-done
			if least := time.Duration(i-1) * alone; took < least {
				t.Fatalf("%d of the messages that waited took %s, want %s at least", i+1, took, least)
			}
		}
	})
}

// What a client sends while its account is in debt, and does not wait for, is not matched; but what follows it is read: one that has said DISCONNECT has
// no last will.
func TestMatchRateOfWhoLeaves(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system does not say that a peer has left")
	}
	for _, version := range []byte{4, 5} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			b, reg := start(t, proved{}, func(o *broker.Options) { o.Limits.MatchRate = 1 })
			as := func(user string, will bool) func(*packets.Packet) {
				return func(p *packets.Packet) {
					p.Connect.Username = []byte(user)
					if will {
						p.Connect.WillFlag, p.Connect.WillTopic, p.Connect.WillPayload = true, "will", []byte("gone")
					}
				}
			}
			watcher, guilty := dialRaw(t, b.Addr("main")), dialRaw(t, b.Addr("main"))
			watcher.mustConnect("watcher", as("watcher", false))
			const levels = 60 // each is a node and a further subscription
			for i := range levels {
				watcher.subscribe(strings.Repeat("+/", i)+"#", 0)
			}
			deep := strings.Repeat("a/", levels) + "a"
			guilty.mustConnect("guilty", as("guilty", false))
			for id := uint16(1); metric(t, reg, "refused_total", "publish", "match_rate") == 0; id++ { // again where the debt was paid before
				guilty.publish(deep, "first", 1, id)
				guilty.want(packets.Puback)
				leaves := dialRaw(t, b.Addr("main"))
				leaves.version = version
				leaves.mustConnect("leaves", as("guilty", true))
				leaves.publish(deep, "left", 1, 1)
				leaves.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ProtocolVersion: version})
				if err := leaves.conn.Close(); err != nil {
					t.Fatal(err)
				}
				testpart.Eventually(t, "the client has left", func() bool { return len(b.Clients()) == 2 })
			}
			guilty.publish("end", "", 0, 0)
			for {
				p := watcher.want(packets.Publish)
				switch p.TopicName {
				case "will":
					t.Fatal("the last will of a client is sent that has said DISCONNECT")
				case "end":
					return
				}
			}
		})
	}
}
