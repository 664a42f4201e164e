package co

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol/topic"
)

// TestUnretain has the broker forget what it retains for sites, and nothing else.
func TestUnretain(t *testing.T) {
	t.Parallel()
	b, err := broker.New(broker.Options{Name: "co", Access: access.CO{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{topic.ForTail(topic.In, "plant", "a/b"), topic.ForTail(topic.In, "other", "a"), topic.ForSite(topic.SiteDesired, "plant")} {
		if err := b.Publish(t.Context(), broker.Message{Topic: name, Payload: []byte("x"), Retain: true}); err != nil {
			t.Fatal(err)
		}
	}
	c := &CO{broker: b, log: slog.New(slog.DiscardHandler), retainer: notify.New()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.unretain(ctx)
	}()
	c.retainer.Notify()
	deadline, tick := time.After(10*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for len(b.Retained("colony/v1/#")) > 1 {
		select {
		case <-deadline:
			t.Fatalf("still retained: %v", b.Retained("colony/v1/#"))
		case <-tick.C:
		}
	}
	if got := b.Retained("colony/v1/plant/desired"); len(got) != 1 {
		t.Errorf("the desired state of the site: %v", got)
	}
	cancel()
	<-done
	if err := b.Stop(context.WithoutCancel(ctx)); err != nil {
		t.Error(err)
	}
}
