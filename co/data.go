package co

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/stream"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A delivery hands machine data of the sites to a broker.
type delivery struct {
	publish func(ctx context.Context, list []broker.Message, refused func(i int, err error)) error
	log     *slog.Logger
}

// deliver publishes messages in their order. A broker that is away is an error,
// for the site to send them again; a single message that the broker refuses is left
// out, so that it does not hold up those behind it.
func (d delivery) deliver(ctx context.Context, list []fleet.Delivery) error {
	if len(list) == 0 {
		return nil
	}
	messages := make([]broker.Message, len(list))
	for i := range list {
		messages[i] = dataMessage(&list[i])
	}
	err := d.publish(ctx, messages, func(i int, err error) {
		d.log.WarnContext(ctx, "message of machine data refused by the broker", "site_id", list[i].Site, "stream", list[i].Stream,
			"seq", list[i].Seq, "topic", list[i].Message.Topic, "err", err)
	})
	if err != nil {
		return fmt.Errorf("deliver %d messages of machine data, the first of site %s: %w", len(list), list[0].Site, err)
	}
	return nil
}

// dataMessage is a message of a site as clients of the CO's broker get it.
func dataMessage(d *fleet.Delivery) broker.Message {
	m := &d.Message
	out := broker.Message{
		Topic: topic.ForTail(topic.Data, d.Site, m.Topic), Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Expiry: d.ExpiresIn,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	pairs := stream.Stamp{Time: d.Time, Stream: d.Stream, Seq: d.Seq}.Properties(m.Properties)
	for i := 0; i < len(pairs); i += 2 {
		out.Properties = append(out.Properties, broker.Property{Key: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// restoreData publishes again what the sites hold retained, because a broker
// forgets it with its process, and looks after stored data from then on. An external
// broker gets it whenever it is connected.
func (c *CO) restoreData(ctx context.Context, d delivery) error {
	if !c.external() {
		if err := c.data.RepublishRetained(ctx, d.deliver); err != nil {
			return fmt.Errorf("publish retained machine data: %w", err)
		}
	}
	c.parts.Go("stored machine data", c.data.KeepData)
	return nil
}
