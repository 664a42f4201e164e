package lo

import (
	"context"
	"fmt"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/lo/command"
	"github.com/colonyfleet/colony/lo/command/live"
	commandstore "github.com/colonyfleet/colony/lo/command/store"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/command/cotime"
	"github.com/colonyfleet/colony/protocol/topic"
)

// commanding are the parts that carry commands.
type commanding struct {
	commands *command.Service
	live     *live.Live
	times    commandstore.TimeFile
}

// openCommands reads which commands the site has.
func (p *parts) openCommands(ctx context.Context) error {
	store, held, damaged, err := commandstore.Open(p.opts.Disk, p.dir("commands"))
	if err != nil {
		return err
	}
	p.group.OnStop("store of commands", func(context.Context) error { return store.Close() })
	p.site.Damaged(ctx, damaged...)
	times, known, damage := commandstore.OpenTime(p.opts.Disk, p.dir("cotime"))
	if p.times = times; damage != nil {
		p.site.Damaged(ctx, damage)
	}
	if !p.windows() { // commands go by an answer of this run
		known = cotime.Answer{}
	}
	if p.live, err = live.New(live.Options{
		Site: p.opts.Site, Gate: p.gate.Bulk(), Begin: p.link.Begin, Publish: p.publishCommand, Open: p.openNodes, Logger: p.opts.Logger, Registerer: p.opts.Registerer,
	}); err != nil {
		return fmt.Errorf("open what commands send live: %w", err)
	}
	if p.commands, err = command.New(command.Options{
		Site: p.opts.Site, Root: p.rootKey, Store: store, Journal: eventJournal{p.journal, p.opts.Unsynced}.Append, Nodes: p.site.Labels, Settle: p.opts.PresenceGrace, Execute: p.execute,
		Publish: p.publishCommand, Send: p.link.SendOnce, Live: p.live, SinceBoot: p.opts.SinceBoot, Now: p.opts.Now, Random: p.opts.Random,
		Timed: p.windows, Learnt: p.learnt, Known: known, Boot: p.opts.Boot,
		Logger: p.opts.Logger, Registerer: p.opts.Registerer,
	}); err != nil {
		return fmt.Errorf("open commands: %w", err)
	}
	command.Restore(p.commands, held)
	if m, ok := p.desired.Current(); ok {
		p.commands.Follow(m.KeySet)
	}
	return nil
}

// windows implements command.Options.Timed.
func (p *parts) windows() bool {
	m, ok := p.desired.Current()
	return ok && m.Maintenance != nil
}

// learnt implements command.Options.Learnt.
func (p *parts) learnt(a cotime.Answer) {
	if !p.windows() {
		return // no later run goes by it
	}
	if err := p.times.Save(a); err != nil {
		p.opts.Logger.Warn("time of the co not written down; it is asked for again after a restart", "err", err)
	}
	p.site.Look()
}

// openNodes implements live.Options.Open.
func (p *parts) openNodes(id wire.ID, most int) []protocol.NodeID { return p.commands.Open(id, most) }

// handleCommand implements link.Options.Commands.
func (p *parts) handleCommand(t topic.Topic, payload []byte) error {
	return p.commands.Handle(t, payload)
}

// publishCommand implements command.Options.Publish.
func (p *parts) publishCommand(ctx context.Context, name string, payload []byte, retained bool) error {
	m := broker.Message{Topic: name, Payload: payload, Retain: retained, ContentType: protocol.ContentType}
	if retained {
		m.QoS = 1
	}
	return p.broker.Publish(ctx, m)
}
