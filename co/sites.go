package co

import (
	"context"
	"fmt"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/co/data/downlink"
	"github.com/colonyfleet/colony/co/data/exchange"
	"github.com/colonyfleet/colony/co/data/live"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/fleet"
	coidentity "github.com/colonyfleet/colony/co/identity"
	"github.com/colonyfleet/colony/co/inbound"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/presence"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout/driver"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/topic"
)

// sites are the parts that exchange messages with the sites, and with the clients of
// the CO's broker.
type sites struct {
	broker   *broker.Broker // nil: it is an external one
	ingest   *ingest.Ingest
	presence *presence.Monitor
	down     *downlink.Downlink
	exchange *exchange.Exchange
	loop     *desired.Loop
	driver   *driver.Driver
	live     *live.Hub
	commands commands
}

// startSites makes the parts, then starts the broker that calls them, then what goes
// on by itself. They are stopped in the reverse order.
func (c *CO) startSites(ctx context.Context, s stores) (*sites, error) {
	in := inbound.New()
	b, err := c.newBroker(ctx, s, in)
	if err != nil {
		return nil, err
	}
	parts, err := c.newSites(s, b)
	if err != nil {
		return nil, err
	}
	in.Open(inbound.Receivers{
		Batch: parts.ingest.Accept, Presence: parts.presence.Accept, Data: parts.exchange.Accept, DownAck: parts.down.Ack,
		Live: parts.commands.live.Accept, TimeAsk: timeTeller(b),
		Connected: func(ctx context.Context) {
			parts.loop.Republish()
			parts.commands.loop.Republish()
			parts.exchange.Restore(ctx, s.data.RepublishRetained)
		},
	})
	c.parts.OnStop("downlink", func(context.Context) error { parts.down.Close(); return nil })
	c.parts.Go("machine data for sites", func(ctx context.Context) { s.data.ListenDown(ctx, parts.down.Notify) })
	c.parts.Go("retained machine data for sites", parts.exchange.Run)
	c.parts.OnStop("batches of sites", func(context.Context) error { parts.ingest.Close(); return nil })
	// The embedded broker forgets what it retains with its process. An external one is
	// given it whenever it is connected.
	if own, ok := b.(*broker.Broker); ok {
		if err := s.data.RepublishRetained(ctx, parts.exchange.Retain(own.Restore)); err != nil {
			return nil, fmt.Errorf("restore retained machine data: %w", err)
		}
	}
	if err := b.Start(ctx); err != nil {
		return nil, err
	}
	c.parts.OnStop("broker", b.Stop)
	if s.machines != nil {
		links := coidentity.Links{Tokens: publisher(b, topic.SiteTokens, true), Revocations: publisher(b, topic.Revocations, true), Recheck: func() {}}
		if parts.broker != nil {
			links.Recheck = func() { parts.broker.Recheck() }
		}
		if s.keys != nil {
			links.Sign = s.keys.Revocations
		}
		c.parts.Go("certificates and join tokens", func(ctx context.Context) { s.machines.Run(ctx, links) })
	}
	c.parts.Go("stored machine data", s.data.KeepData)
	c.parts.Go("counters", func(ctx context.Context) { s.fleet.KeepCounters(ctx, parts.ingest.Ask) })
	c.parts.Go("retention", func(ctx context.Context) { s.fleet.KeepHistory(ctx, upkeepdb.Retention(c.opts.Retention)) })
	c.parts.Go("presence of sites", parts.presence.Run)
	c.parts.Go("commands", parts.commands.loop.Run)
	c.parts.Go("sessions", parts.commands.sessions.Run)
	c.parts.Go("desired state", func(ctx context.Context) {
		if err := parts.loop.Run(ctx); err != nil && ctx.Err() == nil {
			c.parts.Fail(fmt.Errorf("desired state: %w", err))
		}
	})
	return parts, nil
}

func (c *CO) newSites(s stores, b siteBroker) (*sites, error) {
	to := func(kind topic.Kind, retain bool) func(context.Context, protocol.SiteID, []byte) error {
		return publisher(b, kind, retain)
	}
	hub := &live.Hub{}
	commands := c.newCommands(s, b)
	down := downlink.New(downlink.Options{Store: s.data, Rules: s.fleet.DataRules, Publish: to(topic.Down, false), Logger: c.log})
	var loop *desired.Loop
	rollouts, err := c.newDriver(s, func() { loop.Notify() })
	if err != nil {
		return nil, err
	}
	if loop, err = c.newLoop(s, rollouts, down, to(topic.SiteDesired, true)); err != nil {
		return nil, err
	}
	embedded, _ := b.(*broker.Broker)
	var retainer exchange.Retainer // nil for an external broker
	if embedded != nil {
		retainer = embedded
	}
	exchanged := exchange.New(exchange.Options{Broker: b, Downlink: down, Retainer: retainer, Logger: c.log})
	publishAck := to(topic.Ack, false)
	batches := ingest.New(ingest.Options{
		Store: s.fleet, Data: s.data, Shared: c.external(), Logger: c.log, Registerer: c.opts.Registerer,
		Committed: func(site protocol.SiteID, events []protocol.Event) {
			loop.Committed(site, events)
			commands.loop.Committed(site, events)
			s.machines.Committed(events)
		},
		Deliver: func(ctx context.Context, list []fleet.Delivery) error {
			if err := exchanged.Deliver(ctx, list); err != nil {
				return err
			}
			hub.Deliver(list)
			return nil
		},
		PublishAck: func(ctx context.Context, site protocol.SiteID, payload []byte) error {
			hub.Committed(site)
			return publishAck(ctx, site, payload)
		},
	})
	monitor, err := presence.New(presence.Options{
		Store: s.fleet, Grace: c.opts.PresenceGrace, Logger: c.log,
		Changed: func(site protocol.SiteID, m protocol.Presence) {
			if m.Online {
				loop.Reported(site)
				commands.loop.Connected(site)
				down.Online(site, m.Session)
			} else {
				down.Offline(site, m.Session)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &sites{broker: embedded, ingest: batches, presence: monitor, down: down, exchange: exchanged, loop: loop, driver: rollouts, live: hub, commands: commands}, nil
}

// publisher returns what publishes encoded messages of a kind to a site.
func publisher(b siteBroker, kind topic.Kind, retain bool) func(context.Context, protocol.SiteID, []byte) error {
	return func(ctx context.Context, site protocol.SiteID, payload []byte) error {
		return b.Publish(ctx, broker.Message{
			Topic: topic.ForSite(kind, site), Payload: payload, QoS: 1, Retain: retain, ContentType: protocol.ContentType,
		})
	}
}

// newLoop makes the loop of the desired state.
func (c *CO) newLoop(s stores, rollouts *driver.Driver, down *downlink.Downlink, publish func(context.Context, protocol.SiteID, []byte) error) (*desired.Loop, error) {
	o := desired.Options{
		Store: s.fleet, Read: rollouts.Read, Watch: rollouts.Watch, Interval: c.opts.Git.Interval, Logger: c.log,
		Judgement: desired.Judgement{Resolve: resolve(s, rollouts), Admit: s.admission.Admit, Compile: s.admission.Compile}, Limits: proposal.Limits(c.opts.Removals),
		Positions: s.fleet, Proposals: s.proposals, History: history{s.repo}, Nodes: s.fleet.PlacementNodes,
		Outcomes: desired.Outcomes{
			Publish: publish, RulesChanged: down.RulesChanged, Removed: func(protocol.SiteID) { s.machines.Notify() },
		},
	}
	if s.keys != nil {
		o.Sign = s.keys.Sign
	}
	if c.external() { // then there may be several replicas
		o.Lock = func(ctx context.Context) (context.Context, func(), error) { return s.db.Lease(ctx, "desired state") }
	}
	return desired.New(o)
}

// openKeys reads the keys with which desired states are signed; nil: nothing is.
func (c *CO) openKeys() (*keys.Set, error) {
	if c.opts.Signing.Dir == "" {
		c.log.Warn("desired states are not signed: every client of a broker can make sites run anything; this is for development: set signing.dir")
		return nil, nil
	}
	set, err := keys.Open(c.opts.Signing.Dir)
	if err != nil {
		return nil, fmt.Errorf("signing.dir: %w", err)
	}
	c.log.Info("desired states are signed", "key", fmt.Sprintf("%x", sign.KeyID(set.Signer.Public())), "key_set", set.Trust.Number())
	return &set, nil
}
