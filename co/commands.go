package co

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/broker"
	commandsapi "github.com/colonyfleet/colony/co/api/commands"
	cocommand "github.com/colonyfleet/colony/co/command"
	"github.com/colonyfleet/colony/co/command/live"
	sessionsdb "github.com/colonyfleet/colony/co/db/sessions"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/co/session"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/topic"
)

// commands are the parts that bring commands to their sites, and the live output of these to its
// readers.
type commands struct {
	loop *cocommand.Loop
	live *live.Hub
	// sessions are those that this CO carries, and input sends what is typed at them.
	sessions *session.Carrier
	input    func(context.Context, protocol.SiteID, command.ID, []byte) error
}

func (c *CO) newCommands(s stores, b siteBroker) commands {
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
	return commands{
		loop: cocommand.New(o), live: live.New(to(topic.SiteCredit, 0, false), c.opts.Registerer),
		sessions: session.NewCarrier(sessionsdb.New(s.db), c.opts.Registerer, c.log), input: to(topic.SiteInput, 0, false),
	}
}

// timeTeller answers the questions of sites for the time.
func timeTeller(b siteBroker) func(ctx context.Context, site protocol.SiteID, payload []byte) error {
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
	o.Sessions = commandsapi.Sessions{
		Store: sessionsdb.New(s.db), Allowed: programsAllowed(s), Carrier: sites.commands.sessions.Name(), Carry: sites.commands.sessions.Carry, Input: sites.commands.input,
	}
	if s.keys == nil {
		o.Refuse = cocommand.ErrNoKeys
	}
	return o
}

// programsAllowed says by the file of a site whether programs may be run in its containers; by what is in force where
// that is bad or missing.
func programsAllowed(s stores) func(context.Context, protocol.SiteID) error {
	return func(ctx context.Context, site protocol.SiteID) error {
		content, _, err := s.repo.File(ctx, sitefile.Path(site))
		if err != nil && protocol.KindOf(err) != protocol.NotFound {
			return err
		}
		var file sitefile.Content
		if err == nil {
			file, err = sitefile.Parse(site, content)
		}
		allowed := file.Exec
		if err != nil {
			held, err := s.fleet.SiteData(ctx, site)
			if err != nil {
				return err
			}
			allowed = held.Exec
		}
		if !allowed {
			return protocol.Errorf(protocol.Denied, "site %s does not allow that programs are run in its containers: colony site exec allow %s, or exec: allowed below spec in %s", site, site, sitefile.Path(site))
		}
		return nil
	}
}
