package co_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// slowApplication subscribes to the data of all sites and reads n bytes of it in each
// tenth of a second; 0: none at all.
func (b *bench) slowApplication(n int64) {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.co.MQTTAddr())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		b.t.Fatal(err)
	}
	connect := packets.NewControlPacket(packets.CONNECT)
	c := connect.Content.(*packets.Connect)
	c.ProtocolName, c.ProtocolVersion, c.ClientID, c.UsernameFlag, c.Username, c.CleanStart = "MQTT", 5, "slow@*", true, "slow@*", true
	subscribe := packets.NewControlPacket(packets.SUBSCRIBE)
	s := subscribe.Content.(*packets.Subscribe)
	s.PacketID, s.Subscriptions = 1, []packets.SubOptions{{Topic: topic.ForTail(topic.Data, "+", "#"), QoS: 0}}
	for _, p := range []*packets.ControlPacket{connect, subscribe} {
		if _, err := p.WriteTo(conn); err != nil {
			b.t.Fatal(err)
		}
		if _, err := packets.ReadPacket(conn); err != nil {
			b.t.Fatal(err)
		}
	}
	if n == 0 {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := io.CopyN(io.Discard, conn, n); err != nil {
				return
			}
		}
	}()
	b.t.Cleanup(func() { _ = conn.Close(); <-ended })
}

// TestSlowApplicationHoldsUpNoEvents has a site send much data to an application that
// hardly reads it, or not at all. The site's events, and those of another, arrive as
// ever, and so does the data in the end.
func TestSlowApplicationHoldsUpNoEvents(t *testing.T) {
	for name, rate := range map[string]int64{"stuck": 0, "slow": 40 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.slowApplication(rate)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			sites := map[protocol.SiteID]*client.Client{"plant": b.site}
			acks := map[protocol.SiteID]chan protocol.Ack{"plant": make(chan protocol.Ack, 1000), "mill": make(chan protocol.Ack, 1000)}
			up := make(chan struct{}, 1)
			mill, err := client.New(client.Options{
				URLs: []string{"tcp://" + b.co.MQTTAddr()}, ClientID: "mill", Username: "mill",
				Subscriptions: []client.Subscription{{Filter: topic.ForSite(topic.Ack, "mill"), QoS: 1}},
				Handle: func(_ context.Context, m client.Message) error {
					var a protocol.Ack
					err := protocol.Unmarshal(m.Payload, &a)
					acks["mill"] <- a
					return err
				},
				OnUp: func(context.Context, string) {
					select {
					case up <- struct{}{}:
					default: // it was up before
					}
				},
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := mill.Start(ctx); err != nil {
				t.Fatal(err)
			}
			select {
			case <-up:
			case <-ctx.Done():
				t.Fatal("site mill did not connect")
			}
			t.Cleanup(func() { _ = mill.Stop(context.WithoutCancel(ctx)) })
			sites["mill"] = mill
			data := make(chan protocol.Ack, 1000)
			go func() { // what comes for plant, until the test ends
				for {
					select {
					case <-ctx.Done():
						return
					case m := <-b.from:
						var a protocol.Ack
						if p, err := topic.Parse(m.Topic); err != nil || p.Kind != topic.Ack || protocol.Unmarshal(m.Payload, &a) != nil {
							continue
						}
						if a.Stream != "" {
							data <- a
						} else {
							acks["plant"] <- a
						}
					}
				}
			}()
			// 16 batches of 50 messages of 20 KB in each of two streams, far more than the
			// application accepts, each stream with four batches on their way.
			const batches, each = 16, 50
			sent, committed, sentAt := map[string]uint64{}, map[string]uint64{}, map[string]time.Time{}
			send := func(stream string) {
				batch := protocol.Batch{V: 1, Epoch: "e", First: sent[stream]*each + 1, Count: each, Stream: stream, SentMillis: 1_700_000_000_000}
				for range each {
					batch.Events = append(batch.Events, protocol.Marshal(dataEvent(protocol.DataMessage{Topic: "t", Payload: make([]byte, 20<<10)}))...)
				}
				sent[stream]++
				sentAt[stream] = time.Now()
				go func() {
					_ = b.site.Publish(ctx, client.Message{Topic: topic.ForSite(topic.Up, "plant"), Payload: protocol.Marshal(batch), QoS: 1})
				}()
			}
			events := map[protocol.SiteID]uint64{}
			var dataTimes []time.Duration
			eventTimes := map[protocol.SiteID][]time.Duration{}
			for _, stream := range []string{"data/a", "data/b"} {
				send(stream)
			}
			for committed["data/a"]+committed["data/b"] < 2*batches*each {
				for site, c := range sites {
					events[site]++
					began := time.Now()
					batch := protocol.Batch{V: 1, Epoch: "e", First: events[site], Count: 1, Events: protocol.Marshal(protocol.Event{
						UnixMillis: 1, Kind: protocol.NodeOnlineEvent, Node: "n1", Body: protocol.Marshal(protocol.Presence{V: 1, Online: true}),
					})}
					if err := c.Publish(ctx, client.Message{Topic: topic.ForSite(topic.Up, site), Payload: protocol.Marshal(batch), QoS: 1}); err != nil {
						t.Fatalf("event %d of %s: %v", events[site], site, err)
					}
					select {
					case a := <-acks[site]:
						if a.Seq != events[site] {
							t.Fatalf("ack of %s: %d, want %d", site, a.Seq, events[site])
						}
					case <-ctx.Done():
						t.Fatalf("no ack for event %d of %s", events[site], site)
					}
					eventTimes[site] = append(eventTimes[site], time.Since(began))
				}
				select {
				case a := <-data:
					committed[a.Stream] = a.Seq
					dataTimes = append(dataTimes, time.Since(sentAt[a.Stream]))
					if sent[a.Stream] < batches {
						send(a.Stream)
					}
				case <-time.After(50 * time.Millisecond):
				}
				if ctx.Err() != nil {
					t.Fatalf("of the data only %v arrived", fmt.Sprint(committed))
				}
			}
			// Data is always on its way. Events that waited for it would take about as long,
			// however fast the machine is.
			ofData := median(dataTimes)
			for site, times := range eventTimes {
				t.Logf("%d events of %s, the median took %s; the median of the data %s", len(times), site, median(times), ofData)
				if median(times) > ofData/2 {
					t.Errorf("the median event of %s took %s, want less than half of the data's %s", site, median(times), ofData)
				}
			}
		})
	}
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}
