package lo

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// startDown begins to receive what the CO's clients send to the site, once there is a
// link.
func (l *LO) startDown(ctx context.Context) error {
	publish := func(ctx context.Context, m broker.Message) error { return l.broker.Publish(ctx, m) }
	var err error
	l.down, err = downlink.Open(downlink.Options{
		Dir: filepath.Join(l.opts.StateDir, "down"), Site: l.opts.Site, Logger: l.log,
		Publish:  func(ctx context.Context, m downlink.Delivery) error { return publish(ctx, downMessage(m)) },
		Retained: downRetained{l.data.Retained(), l.data.Now, publish},
		Ack: func(ctx context.Context, payload []byte) error {
			return l.link.send(ctx, topic.ForSite(topic.DownAck, l.opts.Site), payload)
		},
	})
	if err != nil {
		return fmt.Errorf("open downlink: %w", err)
	}
	l.damaged(ctx, l.down.Damage())
	l.parts.OnStop("downlink", func(context.Context) error { return l.down.Close() })
	l.parts.Go("machine data for the site", func(ctx context.Context) {
		if err := l.down.Run(ctx); err != nil && ctx.Err() == nil {
			l.parts.Fail(fmt.Errorf("downlink: %w", err))
		}
	})
	if m, ok := l.desired.Current(); ok {
		directRules(l.down, m)
	}
	return nil
}

// downMessage is a message of the CO's clients as the site's broker gets it. Its
// user properties say when the CO accepted it, and name it, so that a subscriber can
// recognize a repetition.
func downMessage(m downlink.Delivery) broker.Message {
	out := broker.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Expiry: m.Expiry,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	pairs := stream.Stamp{Time: time.UnixMilli(m.AcceptedMillis), Stream: m.Stream, Seq: m.Seq}.Properties(m.Properties)
	for i := 0; i < len(pairs); i += 2 {
		out.Properties = append(out.Properties, broker.Property{Key: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// downRetained is what the site holds retained for the CO's clients: on disk in the
// store, and at the broker.
type downRetained struct {
	store   *retained.Store
	now     func() time.Time // the clock of the store
	publish func(ctx context.Context, m broker.Message) error
}

// Put implements downlink.Retained.
func (r downRetained) Put(_ context.Context, stream string, list []downlink.Delivery) error {
	now := r.now().UnixMilli()
	messages := make([]retained.Message, len(list))
	for i, m := range list {
		data := downData(m)
		messages[i] = retained.Message{Topic: m.Topic, Stream: stream, UnixMillis: now, Data: data}
	}
	_, err := r.store.Put(messages...)
	return err
}

// downData is what a restart of the LO must find of a message: as it is delivered,
// with what is left of its time.
func downData(m downlink.Delivery) protocol.DataMessage {
	out := m.DataMessage
	out.ExpiryMillis = uint64(m.Expiry.Milliseconds())
	out.Properties = nil
	for _, p := range downMessage(m).Properties {
		out.Properties = append(out.Properties, p.Key, p.Value)
	}
	return out
}

// Sweep implements downlink.Retained.
func (r downRetained) Sweep(ctx context.Context, stream string, keep map[string]bool) error {
	for _, m := range r.store.Stream(stream) {
		if keep[m.Topic] {
			continue
		}
		// In this order: a message that the store has forgotten is never deleted at the
		// broker.
		if err := r.publish(ctx, broker.Message{Topic: m.Topic, QoS: 1, Retain: true}); err != nil {
			return err
		}
		if _, err := r.store.Put(retained.Message{Topic: m.Topic}); err != nil {
			return err
		}
	}
	return nil
}

// Streams implements downlink.Retained.
func (r downRetained) Streams() []string { return r.store.Streams() }
