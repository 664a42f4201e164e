// Package delivery hands the messages that the CO's clients send to a site to the
// site's broker, and keeps those that are retained.
package delivery

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/data/retained"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/datarule"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A Broker is the site's.
type Broker interface {
	// Publish publishes a message, and returns once the broker has accepted it.
	Publish(ctx context.Context, m client.Message) error
}

// A Site is where messages are delivered. Its methods may be called concurrently. It
// implements downlink.Retained.
type Site struct {
	Broker Broker
	// Store has what the broker retains; Now is its clock.
	Store *retained.Store
	Now   func() time.Time
}

// Publish delivers a message at the site's broker.
func (s Site) Publish(ctx context.Context, m downlink.Delivery) error {
	return s.Broker.Publish(ctx, message(m))
}

// message returns a message as the site's broker gets it. Its user properties say when
// the CO accepted it, and name it, so that a subscriber can recognize a repetition.
func message(m downlink.Delivery) client.Message {
	out := client.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Expiry: m.Expiry,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	pairs := stream.Stamp{Time: time.UnixMilli(m.AcceptedMillis), Stream: m.Stream, Seq: m.Seq}.Properties(m.Properties)
	for i := 0; i < len(pairs); i += 2 {
		out.Properties = append(out.Properties, client.Property{Key: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// Put implements downlink.Retained.
func (s Site) Put(_ context.Context, stream string, list []downlink.Delivery) error {
	now := s.Now().UnixMilli()
	messages := make([]retained.Message, len(list))
	for i, m := range list {
		messages[i] = retained.Message{Topic: m.Topic, Stream: stream, UnixMillis: now, Data: stored(m)}
	}
	_, err := s.Store.Put(messages...)
	return err
}

// stored returns what a restart of the LO must find of a message: as it is delivered,
// with the rest of its time to live.
func stored(m downlink.Delivery) protocol.DataMessage {
	out := m.DataMessage
	out.ExpiryMillis = uint64(m.Expiry.Milliseconds())
	out.Properties = nil
	for _, p := range message(m).Properties {
		out.Properties = append(out.Properties, p.Key, p.Value)
	}
	return out
}

// Sweep implements downlink.Retained.
func (s Site) Sweep(ctx context.Context, stream string, keep map[string]bool) error {
	for _, m := range s.Store.Stream(stream) {
		if keep[m.Topic] {
			continue
		}
		// The broker first: a deletion that fails there is retried only while the store
		// has the message.
		if err := s.Broker.Publish(ctx, client.Message{Topic: m.Topic, QoS: 1, Retain: true}); err != nil {
			return err
		}
		if _, err := s.Store.Put(retained.Message{Topic: m.Topic}); err != nil {
			return err
		}
	}
	return nil
}

// Streams implements downlink.Retained.
func (s Site) Streams() []string { return s.Store.Streams() }

// SetRules gives the data rules of a desired state to the downlink. Where they are not
// valid those before stay in force, as on the way up.
func SetRules(d *downlink.Downlink, m protocol.SiteDesired) {
	if len(datarule.Validate(m.Data)) == 0 {
		d.SetRules(m.Data)
	}
}
