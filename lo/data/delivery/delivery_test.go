package delivery

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// publish is a Broker.
type publish func(ctx context.Context, m client.Message) error

// Publish implements Broker.
func (p publish) Publish(ctx context.Context, m client.Message) error { return p(ctx, m) }

// TestSweepIsRepeated has the site's broker refuse a deletion: the next try must
// still know of it.
func TestSweepIsRepeated(t *testing.T) {
	t.Parallel()
	store, err := retained.Open(t.TempDir(), retained.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // of the test
	busy := errors.New("busy")
	var cleared []string
	r := Site{Store: store, Now: time.Now, Broker: publish(func(_ context.Context, m client.Message) error {
		if busy != nil {
			return busy
		}
		cleared = append(cleared, m.Topic)
		return nil
	})}
	if err := r.Put(t.Context(), "data/set", []downlink.Delivery{delivery("a", time.Minute)}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sweep(t.Context(), "data/set", nil); !errors.Is(err, busy) {
		t.Errorf("sweep: %v", err)
	}
	busy = nil
	if err := r.Sweep(t.Context(), "data/set", nil); err != nil || !slices.Equal(cleared, []string{"a"}) || len(r.Streams()) != 0 {
		t.Errorf("second sweep: %v, cleared %v, left %v", err, cleared, r.Streams())
	}
}

// TestRetainedByTheClockOfTheStore counts the time of a message by the clock that
// looks at it later, wherever the machine's clock was set to.
func TestRetainedByTheClockOfTheStore(t *testing.T) {
	t.Parallel()
	clock := func() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }
	store, err := retained.Open(t.TempDir(), retained.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // of the test
	r := Site{Store: store, Now: clock}
	if err := r.Put(t.Context(), "data/set", []downlink.Delivery{delivery("a", time.Minute)}); err != nil {
		t.Fatal(err)
	}
	m, ok := store.Get("a")
	if left, _ := m.ExpiresIn(clock()); !ok || left != time.Minute {
		t.Errorf("there %t, %s left", ok, left)
	}
}

func delivery(topic string, expiry time.Duration) downlink.Delivery {
	return downlink.Delivery{Stream: "data/set", Expiry: expiry, DataMessage: protocol.DataMessage{V: 1, Topic: topic, Payload: []byte("1"), Retain: true}}
}

// sweeps is a record of what is retained that is asked to forget.
type sweeps struct{ streams []string }

// Put implements downlink.Retained.
func (s *sweeps) Put(context.Context, string, []downlink.Delivery) error { return nil }

// Streams implements downlink.Retained.
func (s *sweeps) Streams() []string { return []string{"data/set"} }

// Sweep implements downlink.Retained.
func (s *sweeps) Sweep(_ context.Context, stream string, _ map[string]bool) error {
	s.streams = append(s.streams, stream)
	return nil
}

// TestInvalidRulesDeleteNothing has rules that are not valid leave what those before
// brought down.
func TestInvalidRulesDeleteNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "down")
	synctest.Test(t, func(t *testing.T) {
		s := &sweeps{}
		d, err := downlink.Open(downlink.Options{Dir: dir, Site: "s1", Retained: s})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		for _, step := range []struct {
			rule protocol.DataRule
			want []string
		}{
			{protocol.DataRule{Name: "set", Down: true, QoS: 1, Topics: []string{"#"}}, nil},
			{protocol.DataRule{Name: "other", Down: true, QoS: 1, Topics: []string{"#/x"}}, nil},
			{protocol.DataRule{Name: "other", Down: true, QoS: 1, Topics: []string{"#"}}, []string{"data/set"}},
		} {
			SetRules(d, protocol.SiteDesired{V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 1}, Data: []protocol.DataRule{step.rule}})
			synctest.Wait()
			if diff := cmp.Diff(step.want, s.streams); diff != "" {
				t.Errorf("with %+v deleted (-want +got):\n%s", step.rule, diff)
			}
		}
		cancel()
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestMessage checks the user properties of a message for the site: a client of
// the CO cannot set those that only Colony sets.
func TestMessage(t *testing.T) {
	t.Parallel()
	got := message(downlink.Delivery{
		DataMessage: protocol.DataMessage{V: 1, Topic: "plc/set", Properties: []string{"unit", "C", "colony-seq", "9", "unit", "F"}},
		Stream:      "data/set", Seq: 3, AcceptedMillis: 1_700_000_000_123,
	})
	want := []client.Property{
		{Key: "colony-time", Value: "2023-11-14T22:13:20.123Z"},
		{Key: "colony-stream", Value: "data/set"},
		{Key: "colony-seq", Value: "3"},
		{Key: "unit", Value: "C"},
		{Key: "unit", Value: "F"},
	}
	if diff := cmp.Diff(want, got.Properties); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
}
