// Package exchange carries machine data between the CO and the clients of its MQTT
// broker: what sites sent becomes messages for the clients, and what clients publish
// for a site becomes a message of the downlink.
package exchange

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/colonyfleet/colony/broker/client"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	// clearDelay is the time between a client's retained message and its removal from
	// the embedded broker, which retains a message only after Accept returned. One
	// removal then serves all messages of that time.
	clearDelay = time.Second
	// restoreRetry is the time between two tries to publish the retained messages.
	restoreRetry = time.Second
)

// A Publisher is the broker that the clients connect to.
type Publisher interface {
	// PublishAll publishes list in order, without waiting for each message before the
	// next. refused is called for each that the broker will never accept; an error is
	// about any of the others.
	PublishAll(ctx context.Context, list []client.Message, refused func(i int, err error)) error
}

// A Retainer is a broker of which the CO may clear retained messages: the embedded one.
type Retainer interface {
	// Retained returns the retained messages that match a topic filter.
	Retained(filter string) []client.Message
	// Publish publishes a message; an empty retained one clears the topic.
	Publish(ctx context.Context, m client.Message) error
}

// A Downlink sends messages to sites.
type Downlink interface {
	// Accept returns once the message is durable.
	Accept(ctx context.Context, site protocol.SiteID, m protocol.DataMessage) error
}

// Options are what an Exchange works with. Broker and Downlink are required.
type Options struct {
	Broker   Publisher
	Downlink Downlink
	// Retainer is nil for an external broker: removing a retained message there would
	// reach the CO as a deletion for the site.
	Retainer Retainer
	// Logger may be nil.
	Logger *slog.Logger
}

// An Exchange carries machine data. Its methods may be called concurrently, but for
// Run, which is called once.
type Exchange struct {
	opts  Options
	log   *slog.Logger
	clear notify.Signal // a client published a retained message
}

// New returns an Exchange.
func New(o Options) *Exchange {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Exchange{opts: o, log: o.Logger.With("component", "exchange"), clear: notify.New()}
}

// Deliver publishes messages of sites in their order. A broker that is away is an
// error, and the site sends the messages again; a single message that the broker
// refuses is left out, so that it does not hold up those behind it.
func (e *Exchange) Deliver(ctx context.Context, list []fleet.Delivery) error {
	if len(list) == 0 {
		return nil
	}
	messages := make([]client.Message, len(list))
	for i := range list {
		messages[i] = forClients(&list[i])
	}
	err := e.opts.Broker.PublishAll(ctx, messages, func(i int, err error) { e.refused(ctx, &list[i], err) })
	if err != nil {
		return fmt.Errorf("deliver %d messages of machine data, the first of site %s: %w", len(list), list[0].Site, err)
	}
	return nil
}

// refused logs a message that the broker can never publish.
func (e *Exchange) refused(ctx context.Context, d *fleet.Delivery, err error) {
	e.log.WarnContext(ctx, "message of machine data refused by the broker", "site_id", d.Site, "stream", d.Stream,
		"seq", d.Seq, "topic", d.Message.Topic, "err", err)
}

// Retain is Deliver for a broker that has not started yet, and gets each message through restore:
// the broker retains the messages, and delivers them to no client a second time.
func (e *Exchange) Retain(restore func(context.Context, client.Message) error) func(context.Context, []fleet.Delivery) error {
	return func(ctx context.Context, list []fleet.Delivery) error {
		for i := range list {
			switch err := restore(ctx, forClients(&list[i])); {
			case protocol.KindOf(err) == protocol.Invalid:
				e.refused(ctx, &list[i], err)
			case err != nil:
				return fmt.Errorf("restore retained machine data of site %s: %w", list[i].Site, err)
			}
		}
		return nil
	}
}

// Accept hands a client's message for a site to the downlink. t is its topic, of kind
// topic.In. On return the message is durable.
func (e *Exchange) Accept(ctx context.Context, t topic.Topic, m client.Message) error {
	err := e.opts.Downlink.Accept(ctx, t.Site, forSite(t, m))
	if err == nil && m.Retain {
		e.clear.Notify()
	}
	return err
}

// Restore calls republish with Deliver until it succeeds or ctx ends: for a broker
// that may have lost what it retained.
func (e *Exchange) Restore(ctx context.Context, republish func(context.Context, func(context.Context, []fleet.Delivery) error) error) {
	for {
		err := republish(ctx, e.Deliver)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.log.WarnContext(ctx, "retained machine data not published yet", "err", err, "wait", restoreRetry)
		if retry.Sleep(ctx, restoreRetry) != nil {
			return
		}
	}
}

// Run removes from the embedded broker, until ctx ends, retained messages that clients published
// for sites. The site and the CO's record retain them; no client may subscribe to them here, so
// that they would only use memory.
func (e *Exchange) Run(ctx context.Context) {
	for {
		if e.clear.Wait(ctx) != nil {
			return
		}
		if retry.Sleep(ctx, clearDelay) != nil {
			return
		}
		if e.opts.Retainer == nil {
			continue
		}
		for _, m := range e.opts.Retainer.Retained(topic.ForTail(topic.In, "+", "#")) {
			if err := e.opts.Retainer.Publish(ctx, client.Message{Topic: m.Topic, Retain: true}); err != nil && ctx.Err() == nil {
				e.log.WarnContext(ctx, "retained message for a site not removed from the broker", "topic", m.Topic, "err", err)
			}
		}
	}
}
