package co_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// startOn starts a CO with a database and a repo that outlive it.
func startOn(t *testing.T, url, remote string) *bench {
	t.Helper()
	b := &bench{t: t, from: make(chan client.Message, 100), remote: remote}
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote = t.TempDir(), url, "127.0.0.1:0", "127.0.0.1:0", remote
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	if b.co, err = co.New(o); err != nil {
		t.Fatal(err)
	}
	if err := b.co.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	b.connect()
	return b
}

func (b *bench) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.co.Stop(ctx); err != nil {
		b.t.Error(err)
	}
}

// watch connects an application of the CO's broker that gets the data of site plant.
func (b *bench) watch(name string) <-chan client.Message {
	b.t.Helper()
	got := make(chan client.Message, 1000)
	c, err := client.New(client.Options{
		URLs: []string{"tcp://" + b.co.MQTTAddr()}, ClientID: name + "@plant", Username: name + "@plant",
		Subscriptions: []client.Subscription{{Filter: topic.ForTail(topic.Data, "plant", "#"), QoS: 1}},
		Handle:        func(_ context.Context, m client.Message) error { got <- m; return nil },
		OnUp:          func(context.Context, string) { got <- client.Message{Topic: "connected"} },
		Logger:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := c.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = c.Stop(ctx)
	})
	return got
}

// until collects messages until one has the payload last, or until the client is
// connected where last is empty.
func (b *bench) until(got <-chan client.Message, last string) []client.Message {
	b.t.Helper()
	var list []client.Message
	deadline := time.After(time.Minute)
	for {
		select {
		case m := <-got:
			if m.Topic != "connected" {
				list = append(list, m)
			}
			if string(m.Payload) == last || last == "" && m.Topic == "connected" {
				return list
			}
		case <-deadline:
			b.t.Fatalf("no message %q, only %v", last, list)
		}
	}
}

// data sends messages of rule temps as one batch, and waits for their Ack.
func (b *bench) data(first uint64, events ...protocol.Event) {
	b.t.Helper()
	batch := protocol.Batch{V: 1, Epoch: "e", First: first, Count: uint32(len(events)), Stream: "data/temps", SentMillis: 1_700_000_001_000}
	for _, e := range events {
		e.UnixMillis = 1_700_000_000_123
		batch.Events = append(batch.Events, protocol.Marshal(e)...)
	}
	b.publish(topic.Up, batch, false)
	var ack protocol.Ack
	if err := protocol.Unmarshal(b.next(topic.Ack).Payload, &ack); err != nil || ack.Stream != "data/temps" || ack.Seq != first+uint64(len(events))-1 {
		b.t.Fatalf("ack %+v, %v", ack, err)
	}
}

func dataEvent(m protocol.DataMessage) protocol.Event {
	m.V = 1
	return protocol.Event{Kind: protocol.DataEvent, Body: protocol.Marshal(m)}
}

func brief(list []client.Message) string {
	var out []string
	for _, m := range list {
		text := strings.TrimPrefix(m.Topic, "colony/v1/plant/data/") + "=" + string(m.Payload)
		if m.Retain {
			text += "!"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestDataToTheClientsOfTheCO follows machine data from a batch of a site to a
// subscriber of the CO's broker, and what is retained over a restart of the CO.
func TestDataToTheClientsOfTheCO(t *testing.T) {
	t.Parallel()
	url, remote := pgtest.New(t), filepath.Join(t.TempDir(), "remote.git")
	if err := git.InitBare(t.Context(), remote, "main"); err != nil {
		t.Fatal(err)
	}
	b := startOn(t, url, remote)
	viewer := b.watch("viewer")
	b.until(viewer, "")
	b.data(1,
		dataEvent(protocol.DataMessage{
			Topic: "line1/temp", Payload: []byte("20.5"), QoS: 1, ExpiryMillis: 61_877 /* 61 s are left */, ContentType: "text/plain",
			ResponseTopic: "colony/v1/plant/in/answer", CorrelationData: []byte{7},
			Properties: []string{"unit", "C", "colony-time", "a lie", "unit", "F"},
		}),
		dataEvent(protocol.DataMessage{Topic: "bad/#", Payload: []byte("x")}),
		dataEvent(protocol.DataMessage{Topic: "line1/state", Payload: []byte("on"), QoS: 1, Retain: true}),
		dataEvent(protocol.DataMessage{Topic: "line2/state", Payload: []byte("on"), QoS: 1, Retain: true, Properties: []string{"a", "b"}}),
		dataEvent(protocol.DataMessage{Topic: "line3/state", Payload: []byte("on"), QoS: 1, Retain: true, ExpiryMillis: 86_400_000}),
		dataEvent(protocol.DataMessage{Topic: "line2/state", QoS: 1, Retain: true}),
		dataEvent(protocol.DataMessage{Topic: "end", Payload: []byte("1"), QoS: 0}),
	)
	list := b.until(viewer, "1")
	if got := brief(list); got != "line1/temp=20.5 line1/state=on! line2/state=on! line3/state=on! line2/state=! end=1" {
		t.Errorf("a subscriber got %s", got)
	}
	want := client.Message{
		Topic: "colony/v1/plant/data/line1/temp", Payload: []byte("20.5"), QoS: 1, Expiry: 61 * time.Second, ContentType: "text/plain",
		ResponseTopic: "colony/v1/plant/in/answer", CorrelationData: []byte{7},
		Properties: []client.Property{
			{Key: "colony-time", Value: "2023-11-14T22:13:20.123Z"},
			{Key: "colony-stream", Value: "data/temps"},
			{Key: "colony-seq", Value: "1"},
			{Key: "unit", Value: "C"},
			{Key: "unit", Value: "F"},
		},
	}
	if diff := cmp.Diff(want, list[0]); diff != "" {
		t.Error(diff)
	}
	var feed struct {
		Items []struct{ Kind, Message string }
	}
	b.call("GET", "/api/v1/events?site=plant&kind=anomaly", nil, &feed)
	if got := fmt.Sprint(feed); !strings.Contains(got, `rule temps: topic "bad/#": want a topic name without wildcards`) {
		t.Errorf("the feed says %s", got)
	}

	b.stop()
	b = startOn(t, url, remote)
	late := b.watch("late")
	list = b.until(late, "")
	b.data(8, dataEvent(protocol.DataMessage{Topic: "end", Payload: []byte("2"), QoS: 1}))
	list = append(list, b.until(late, "2")...)
	if len(list) != 3 || brief(list) != "line1/state=on! line3/state=on! end=2" && brief(list) != "line3/state=on! line1/state=on! end=2" {
		t.Fatalf("after a restart a subscriber got %s", brief(list))
	}
	for _, m := range list[:2] {
		if strings.HasSuffix(m.Topic, "line3/state") && (m.Expiry > 24*time.Hour || m.Expiry < 23*time.Hour) {
			t.Errorf("%s holds for %s", m.Topic, m.Expiry)
		}
	}
	b.data(9, protocol.Event{Kind: protocol.RetainedBegin}, dataEvent(protocol.DataMessage{Topic: "line3/state", Payload: []byte("off"), QoS: 1, Retain: true}),
		protocol.Event{Kind: protocol.RetainedEnd}, dataEvent(protocol.DataMessage{Topic: "end", Payload: []byte("3"), QoS: 1}))
	if got := brief(b.until(late, "3")); got != "line3/state=off! line1/state=! end=3" {
		t.Errorf("a sweep came as %s", got)
	}
	last := b.watch("last")
	list = b.until(last, "")
	b.data(13, dataEvent(protocol.DataMessage{Topic: "end", Payload: []byte("4"), QoS: 1}))
	if got := brief(append(list, b.until(last, "4")...)); got != "line3/state=off! end=4" {
		t.Errorf("after the sweep a subscriber got %s", got)
	}
}
