package en

import (
	"context"
	"net"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/kinds/diagnostics"
	"github.com/colonyfleet/colony/en/command/kinds/exec"
	"github.com/colonyfleet/colony/en/command/kinds/files"
	"github.com/colonyfleet/colony/en/command/kinds/forward"
	"github.com/colonyfleet/colony/en/command/kinds/inventory"
	"github.com/colonyfleet/colony/en/command/kinds/logs"
	"github.com/colonyfleet/colony/en/command/kinds/netcheck"
	probecommand "github.com/colonyfleet/colony/en/command/kinds/probe"
	"github.com/colonyfleet/colony/en/command/kinds/pull"
	"github.com/colonyfleet/colony/en/command/kinds/restart"
	commandstore "github.com/colonyfleet/colony/en/command/store"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/probe"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// kinds are the commands that the node executes: one more is a package, and an entry here.
func (e *EN) kinds(run Runtime) []command.Kind {
	return command.Without(e.opts.RefusedCommands, []command.Kind{
		restart.New(restart.Options{Records: e.records, Restart: e.restart}),
		probecommand.New(probecommand.Options{Records: e.records, List: run.List, Probe: probe.New(run, e.opts.Dial).Probe}),
		pull.New(pull.Options{Records: e.records, Pull: run.Pull}),
		inventory.New(e.link.Look),
		netcheck.New(netcheck.System()),
		logs.New(logs.From(e.logs, e.now)),
		exec.New(exec.Options{Records: e.records, List: run.List, Open: run.Open}),
		forward.New(forward.Options{Records: e.records, List: run.List, Dial: e.dialContainer}),
		diagnostics.New(diagnostics.Options{
			Site: e.opts.Site, Node: e.opts.Node, Version: e.opts.Version, Now: e.now, StateDir: e.opts.StateDir, Config: e.opts, Metrics: e.writeMetrics,
			Inventory: e.inventory(run).Collect, Records: e.records, List: run.List, Logs: e.logs,
		}),
		files.New(files.Options{Node: e.opts.Node, Allowed: e.opts.Files, Now: e.now}),
	})
}

// openCommands reads which commands the node has received.
func (e *EN) openCommands(held *state.Contents, run Runtime) error {
	store, meta, entries, damage, err := commandstore.Open(e.disk, e.opts.StateDir)
	if err != nil {
		return err
	}
	e.parts.OnStop("record of commands", func(context.Context) error { return store.Close() })
	if damage != nil {
		e.log.Error("record of commands is damaged", "err", damage)
		e.damaged.Add(damage.String())
	}
	e.commands, err = command.New(command.Options{
		Site: e.opts.Site, Node: e.opts.Node, Labels: e.opts.Labels, Agent: held.Agent, Root: e.root, KeySet: held.Trust.KeySet, Kinds: e.kinds(run),
		Store: store, Uplink: e.link, Meta: meta, Entries: entries, SinceBoot: e.opts.SinceBoot, Random: e.opts.Random, Logger: e.log,
	})
	return err
}

// dialContainer opens a connection to a container of the node.
func (e *EN) dialContainer(ctx context.Context, address string) (net.Conn, error) {
	if e.opts.Dial != nil {
		return e.opts.Dial(ctx, "tcp", address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// now is what the node takes for the time of day.
func (e *EN) now() time.Time {
	if e.opts.Now == nil {
		return time.Now()
	}
	return e.opts.Now()
}

// handleCommand implements link.Options.Commands.
func (e *EN) handleCommand(t topic.Topic, payload []byte) error { return e.commands.Handle(t, payload) }

// linked implements link.Options.Linked.
func (e *EN) linked(up bool) { e.commands.Connected(up) }

// following returns save, after which the key set that was saved is followed.
func (e *EN) following(save func(trust.State) error) func(trust.State) error {
	save = e.identity.Following(save)
	return func(t trust.State) error {
		err := save(t)
		e.commands.Follow(t.KeySet)
		return err
	}
}

// records are those of the runner, which is made after the commands.
func (e *EN) records() []plan.Record { return e.runner.Records() }

// restart is likewise.
func (e *EN) restart(ctx context.Context, name protocol.DeploymentName, want func(component, container string) bool, exact bool) ([]engine.ID, error) {
	return e.runner.Restart(ctx, name, want, exact)
}
