package co

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/co/data/downlink"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// openDown prepares the way down of machine data. It is stopped after the broker.
func (c *CO) openDown(context.Context) error {
	c.down = downlink.New(downlink.Options{
		Store: c.data, Rules: c.store.DataRules, Logger: c.log,
		Publish: func(ctx context.Context, site protocol.SiteID, payload []byte) error {
			return c.broker.Publish(ctx, broker.Message{
				Topic: topic.ForSite(topic.Down, site), Payload: payload, QoS: 1, ContentType: protocol.ContentType,
			})
		},
	})
	c.parts.OnStop("downlink", func(context.Context) error { c.down.Close(); return nil })
	c.parts.Go("machine data for sites", func(ctx context.Context) { c.data.ListenDown(ctx, c.down.Wake) })
	c.retainer = notify.New()
	c.parts.Go("retained machine data for sites", c.unretain)
	return nil
}

// unretain deletes from the broker what clients published for sites as retained. It
// is retained at the site, and in the record; no client may subscribe to it here.
func (c *CO) unretain(ctx context.Context) {
	for {
		if c.retainer.Wait(ctx) != nil {
			return
		}
		// The broker retains a message after it was accepted; and more may come.
		if retry.Sleep(ctx, time.Second) != nil {
			return
		}
		own, ok := c.broker.(*broker.Broker)
		if !ok {
			continue // at another broker, the deletion would come back as one for the site
		}
		for _, m := range own.Retained(topic.ForTail(topic.In, "+", "#")) {
			if err := own.Publish(ctx, broker.Message{Topic: m.Topic, Retain: true}); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "retained machine data not deleted from the broker", "topic", m.Topic, "err", err)
			}
		}
	}
}

// acceptDownlink queues a message of a client for a site.
func (c *CO) acceptDownlink(ctx context.Context, t topic.Topic, m broker.Message) error {
	data := protocol.DataMessage{
		V: protocol.Version, Topic: t.Tail, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, ExpiryMillis: uint64(m.Expiry.Milliseconds()),
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
	}
	for _, p := range m.Properties {
		data.Properties = append(data.Properties, p.Key, p.Value)
	}
	err := c.down.Accept(ctx, t.Site, data)
	if err == nil && m.Retain {
		c.retainer.Notify()
	}
	return err
}

// acceptPresence records the presence of a site, and begins or ends what goes down to it.
func (c *CO) acceptPresence(ctx context.Context, site protocol.SiteID, payload []byte) error {
	if err := c.presence.accept(ctx, site, payload); err != nil || len(payload) == 0 {
		return err
	}
	var p protocol.Presence
	if err := protocol.Unmarshal(payload, &p); err != nil {
		return err
	}
	if p.Online {
		c.down.Online(site, p.Session)
	} else {
		c.down.Offline(site, p.Session)
	}
	return nil
}
