package co

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/broker"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	cocommand "github.com/colonyfleet/colony/co/command"
	"github.com/colonyfleet/colony/co/command/live"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// commands are the parts that bring commands to their sites, and what these send live to who reads it.
type commands struct {
	loop *cocommand.Loop
	live *live.Hub
}

func (c *CO) newCommands(s stores, b centralBroker) commands {
	to := func(kind topic.Kind, qos byte, retain bool) func(context.Context, protocol.SiteID, command.ID, []byte) error {
		return func(ctx context.Context, site protocol.SiteID, id command.ID, payload []byte) error {
			return b.Publish(ctx, broker.Message{
				Topic: topic.ForCommand(kind, site, string(id)), Payload: payload, QoS: qos, Retain: retain, ContentType: protocol.ContentType,
			})
		}
	}
	o := cocommand.Options{Store: s.commands, Publish: to(topic.SiteCommand, 1, true), Logger: c.log, Registerer: c.opts.Registerer}
	if s.keys != nil {
		o.Sign = s.keys.Command
	}
	if c.external() { // then there may be several replicas
		o.Lock = func(ctx context.Context) (context.Context, func(), error) { return s.db.Lease(ctx, "commands") }
	}
	return commands{loop: cocommand.New(o), live: live.New(to(topic.SiteCredit, 0, false), c.opts.Registerer)}
}

// timeTeller answers the questions of sites for the time.
func timeTeller(b centralBroker) func(ctx context.Context, site protocol.SiteID, payload []byte) error {
	return func(ctx context.Context, site protocol.SiteID, payload []byte) error {
		answer, err := cocommand.Time(payload, time.Now())
		if err != nil {
			return err
		}
		return b.Publish(ctx, broker.Message{Topic: topic.ForSite(topic.SiteTime, site), Payload: answer, ContentType: protocol.ContentType})
	}
}

// commandActions are what the API has done about commands.
func commandActions(s stores, sites *sites) commandsapi.Options {
	o := commandsapi.Options{
		Store: s.commands, Fleet: s.fleet, Changed: sites.commands.loop.Changed,
		Open: func(site protocol.SiteID, id command.ID, nodes int) (commandsapi.Reader, error) {
			return sites.commands.live.Open(site, id, nodes)
		},
	}
	if s.keys == nil {
		o.Refuse = cocommand.ErrNoKeys
	}
	return o
}
