package exchange_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co/data/exchange"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A fakeBroker holds what it was given, and refuses the topic refuse.
type fakeBroker struct {
	away      error
	refuse    string
	published []client.Message

	mu       sync.Mutex // protects retained
	retained map[string]client.Message
}

func (b *fakeBroker) PublishAll(_ context.Context, list []client.Message, refused func(int, error)) error {
	if b.away != nil {
		return b.away
	}
	for i, m := range list {
		if m.Topic == b.refuse {
			refused(i, errors.New("refused"))
			continue
		}
		b.published = append(b.published, m)
	}
	return nil
}

func (b *fakeBroker) Retained(string) (list []client.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.retained {
		list = append(list, m)
	}
	return list
}

func (b *fakeBroker) Publish(_ context.Context, m client.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Retain && len(m.Payload) == 0 {
		delete(b.retained, m.Topic)
	}
	return nil
}

func (b *fakeBroker) retain(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retained[name] = client.Message{Topic: name}
}

type fakeDownlink struct {
	err  error
	site protocol.SiteID
	got  []protocol.DataMessage
}

func (d *fakeDownlink) Accept(_ context.Context, site protocol.SiteID, m protocol.DataMessage) error {
	d.site, d.got = site, append(d.got, m)
	return d.err
}

func TestMessagesOfASiteForClients(t *testing.T) {
	t.Parallel()
	b := &fakeBroker{refuse: topic.ForTail(topic.Data, "plant", "bad")}
	e := exchange.New(exchange.Options{Broker: b})
	err := e.Deliver(t.Context(), []fleet.Delivery{
		{
			Site: "plant", Stream: "data/temps", Seq: 7, Time: time.UnixMilli(1_700_000_000_123).UTC(), ExpiresIn: time.Minute,
			Message: protocol.DataMessage{
				Topic: "a/b", Payload: []byte("1"), QoS: 1, Retain: true, ContentType: "text/plain", ResponseTopic: "r", CorrelationData: []byte{1},
				Properties: []string{"unit", "C", "colony-time", "a lie", "unit", "F", "colony-time-unsynced", "true"},
			},
		},
		{Site: "plant", Stream: "data/temps", Seq: 8, Message: protocol.DataMessage{Topic: "bad"}},
		{Site: "plant", Stream: "data/temps", Seq: 9, Message: protocol.DataMessage{Topic: "c"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Message{
		{
			Topic: "colony/v1/plant/data/a/b", Payload: []byte("1"), QoS: 1, Retain: true, Expiry: time.Minute, ContentType: "text/plain",
			ResponseTopic: "r", CorrelationData: []byte{1}, Properties: []client.Property{
				{Key: "colony-time", Value: "2023-11-14T22:13:20.123Z"},
				{Key: "colony-time-unsynced", Value: "true"},
				{Key: "colony-stream", Value: "data/temps"},
				{Key: "colony-seq", Value: "7"},
				{Key: "unit", Value: "C"},
				{Key: "unit", Value: "F"},
			},
		},
		{Topic: "colony/v1/plant/data/c", Properties: []client.Property{{Key: "colony-stream", Value: "data/temps"}, {Key: "colony-seq", Value: "9"}}},
	}
	if diff := cmp.Diff(want, b.published); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if err := e.Deliver(t.Context(), nil); err != nil || len(b.published) != 2 {
		t.Errorf("nothing to deliver: error %v, %d messages published, want none and 2", err, len(b.published))
	}
	b.away = errors.New("away")
	err = e.Deliver(t.Context(), []fleet.Delivery{{Site: "plant"}, {Site: "mill"}})
	if want := "deliver 2 messages of machine data, the first of site plant: away"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestMessageOfAClientForASite(t *testing.T) {
	t.Parallel()
	d := &fakeDownlink{}
	e := exchange.New(exchange.Options{Downlink: d})
	in, err := topic.Parse(topic.ForTail(topic.In, "plant", "x/y"))
	if err != nil {
		t.Fatal(err)
	}
	err = e.Accept(t.Context(), in, client.Message{
		Payload: []byte("1"), QoS: 1, Expiry: 1500 * time.Millisecond, ContentType: "text/plain", ResponseTopic: "r", CorrelationData: []byte{1},
		Properties: []client.Property{{Key: "a", Value: "b"}, {Key: "a", Value: "c"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []protocol.DataMessage{{
		V: protocol.Version, Topic: "x/y", Payload: []byte("1"), QoS: 1, ExpiryMillis: 1500, ContentType: "text/plain", ResponseTopic: "r",
		CorrelationData: []byte{1}, Properties: []string{"a", "b", "a", "c"},
	}}
	if diff := cmp.Diff(want, d.got); d.site != "plant" || diff != "" {
		t.Errorf("site %s, want plant; message (-want +got):\n%s", d.site, diff)
	}
	d.err = errors.New("away")
	if err := e.Accept(t.Context(), in, client.Message{Retain: true}); !errors.Is(err, d.err) {
		t.Errorf("error %v, want %v", err, d.err)
	}
}

// TestRetainedMessagesForSitesAreRemoved has the embedded broker forget what it
// retains for sites, once for many messages.
func TestRetainedMessagesForSitesAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, err := topic.Parse(topic.ForTail(topic.In, "plant", "x"))
		if err != nil {
			t.Fatal(err)
		}
		b := &fakeBroker{retained: map[string]client.Message{}}
		e := exchange.New(exchange.Options{Downlink: &fakeDownlink{}, Retainer: b})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.Run(ctx)
		}()
		for range 2 {
			for range 3 {
				if err := e.Accept(ctx, in, client.Message{Retain: true, Payload: []byte("1")}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			b.retain("x")
			<-time.After(3 * time.Second)
			synctest.Wait()
			if got := b.Retained(""); len(got) != 0 {
				t.Errorf("still retained: %v", got)
			}
		}
		cancel()
		<-done
	})
}

func TestRestoreTriesUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBroker{away: errors.New("away")}
		e := exchange.New(exchange.Options{Broker: b})
		tries := 0
		e.Restore(t.Context(), func(ctx context.Context, deliver func(context.Context, []fleet.Delivery) error) error {
			if tries++; tries == 3 {
				b.away = nil
			}
			return deliver(ctx, []fleet.Delivery{{Site: "plant", Message: protocol.DataMessage{Topic: "x"}}})
		})
		if tries != 3 || len(b.published) != 1 {
			t.Errorf("%d tries, %d messages published; want 3 and 1", tries, len(b.published))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Restore(ctx, func(context.Context, func(context.Context, []fleet.Delivery) error) error { return errors.New("away") })
	})
}

// TestOnlyMessagesForSitesAreRemoved has the embedded broker forget what it retains
// for sites, and nothing else.
func TestOnlyMessagesForSitesAreRemoved(t *testing.T) {
	t.Parallel()
	b, err := broker.New(broker.Options{Name: "co", Access: access.CO{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	forPlant := topic.ForTail(topic.In, "plant", "a/b")
	for _, name := range []string{forPlant, topic.ForTail(topic.In, "other", "a"), topic.ForSite(topic.SiteDesired, "plant")} {
		if err := b.Publish(t.Context(), client.Message{Topic: name, Payload: []byte("x"), Retain: true}); err != nil {
			t.Fatal(err)
		}
	}
	e := exchange.New(exchange.Options{Broker: b, Retainer: b, Downlink: &fakeDownlink{}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	in, err := topic.Parse(forPlant)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Accept(ctx, in, client.Message{Topic: forPlant, Payload: []byte("x"), Retain: true}); err != nil {
		t.Fatal(err)
	}
	deadline, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for len(b.Retained("colony/v1/#")) > 1 {
		select {
		case <-deadline:
			t.Fatalf("still retained: %v", b.Retained("colony/v1/#"))
		case <-tick.C:
		}
	}
	if got := b.Retained("colony/v1/plant/desired"); len(got) != 1 {
		t.Errorf("retained desired states of the site: %v, want one", got)
	}
	cancel()
	<-done
	if err := b.Stop(context.WithoutCancel(ctx)); err != nil {
		t.Error(err)
	}
}
