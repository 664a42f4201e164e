package inbound_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co/inbound"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// receivers write down what each gets.
func receivers(got *[]string, err error) inbound.Receivers {
	of := func(what string) func(context.Context, protocol.SiteID, []byte) error {
		return func(_ context.Context, site protocol.SiteID, payload []byte) error {
			*got = append(*got, what+" "+string(site)+" "+string(payload))
			return err
		}
	}
	return inbound.Receivers{
		Batch: of("batch"), Presence: of("presence"),
		DownAck: func(site protocol.SiteID, payload []byte) error {
			return of("ack")(context.Background(), site, payload)
		},
		Data: func(ctx context.Context, to topic.Topic, m client.Message) error {
			return of("data")(ctx, to.Site, m.Payload)
		},
		Connected: func(context.Context) { *got = append(*got, "connected") },
	}
}

// TestEachToItsPart sends a message of each kind.
func TestEachToItsPart(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	var got []string
	r := inbound.New()
	r.Open(receivers(&got, refused))
	from := access.Identity{Site: "plant"}
	for _, c := range []struct {
		topic, want string
		err         error
	}{
		{topic.ForSite(topic.Up, "plant"), "batch plant x", refused},
		{topic.ForSite(topic.SiteOnline, "plant"), "presence plant x", refused},
		{topic.ForSite(topic.DownAck, "plant"), "ack plant x", refused},
		{topic.ForTail(topic.In, "home", "lamp"), "data home x", refused},
		{topic.ForSite(topic.Ack, "plant"), "", nil},
	} {
		got = nil
		if err := r.Accept(t.Context(), from, client.Message{Topic: c.topic, Payload: []byte("x")}); !errors.Is(err, c.err) {
			t.Errorf("%s: error %v, want %v", c.topic, err, c.err)
		}
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: received as %q, want by nobody", c.topic, got)
		case c.want != "" && (len(got) != 1 || got[0] != c.want):
			t.Errorf("%s: received as %q, want %q", c.topic, got, c.want)
		}
	}
	if err := r.Accept(t.Context(), from, client.Message{Topic: "lamp"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a topic that is not Colony's: error %v, want one of kind %s", err, protocol.Invalid)
	}
}

// TestBeforeThePartsAreThere has messages wait for the parts that they are for.
func TestBeforeThePartsAreThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		r := inbound.New()
		m := client.Message{Topic: topic.ForSite(topic.Up, "plant"), Payload: []byte("x")}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := r.Accept(ended, access.Identity{Site: "plant"}, m); protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a message whose time is up: error %v, want one of kind %s", err, protocol.Unavailable)
		}
		r.Connected(ended)
		done := make(chan error, 1)
		go func() {
			r.Connected(t.Context())
			done <- r.Accept(t.Context(), access.Identity{Site: "plant"}, m)
		}()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("received before the parts are there: %q", got)
		}
		r.Open(receivers(&got, nil))
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(got) != 2 || got[0] != "connected" || got[1] != "batch plant x" {
			t.Errorf("received %q, want the connection and the batch", got)
		}
	})
}
