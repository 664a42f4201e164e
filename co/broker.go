package co

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/external"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol/topic"
)

// centralBroker is the broker that the sites connect to: the CO's own, or one that
// somebody else runs.
type centralBroker interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Publish(ctx context.Context, m broker.Message) error
	// PublishAll publishes list in order, without waiting for each message before the
	// next. refused is called for each that the broker will never take; an error is
	// about any of the others.
	PublishAll(ctx context.Context, list []broker.Message, refused func(i int, err error)) error
}

// again is the time between two tries to give a broker what it may have lost.
const again = time.Second

// external reports whether the sites connect to a broker of somebody else's.
func (c *CO) external() bool { return len(c.opts.Broker.URLs) > 0 }

// newBroker makes the broker that the options ask for.
func (c *CO) newBroker(data delivery) (centralBroker, error) {
	if !c.external() {
		own, err := broker.New(broker.Options{
			Name: "co", Listeners: []broker.Listener{{Name: "mqtt", Network: broker.TCP, Address: c.opts.MQTT}},
			Access: access.CO{}, Accept: c.accept, Logger: c.log, Registerer: c.opts.Registerer,
		})
		if err != nil {
			return nil, err
		}
		c.mqttAddr = func() string { return own.Addr("mqtt") }
		return own, nil
	}
	o := c.opts.Broker
	c.mqttAddr = func() string { return strings.Join(o.URLs, ",") }
	password := ""
	if o.PasswordFile != "" {
		raw, err := os.ReadFile(o.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read broker.passwordFile: %w", err)
		}
		password = strings.TrimRight(string(raw), "\r\n")
	}
	every := func(kind topic.Kind) string { return topic.ForSite(kind, "+") }
	return external.New(external.Options{
		URLs: o.URLs, ClientID: o.clientID(), Username: o.Username, Password: password, Group: o.Group,
		Sources: []external.Source{
			{Filter: every(topic.Up), Delivery: external.Stream},
			{Filter: every(topic.DownAck), Delivery: external.State},
			{Filter: every(topic.SiteOnline), Delivery: external.State},
			{Filter: topic.ForTail(topic.In, "+", "#"), Delivery: external.Retained},
		},
		Accept: c.accept, OnUp: func(ctx context.Context) { c.refill(ctx, data) }, Logger: c.log, Registerer: c.opts.Registerer,
	})
}

// refill gives an external broker that is connected again what it should retain.
// It may have lost it: whoever owns a fact says it again.
func (c *CO) refill(ctx context.Context, data delivery) {
	c.loop.Republish()
	for {
		err := c.data.RepublishRetained(ctx, data.deliver)
		if err == nil || ctx.Err() != nil {
			return
		}
		c.log.WarnContext(ctx, "retained machine data not published yet", "err", err)
		if retry.Sleep(ctx, again) != nil {
			return
		}
	}
}
