// Package en is the Execution Node agent: it joins the link to the LO, the state
// on disk, the container engine, the probes, the inventory and the runner of the
// deployments. It is wiring only; the parts are below it.
package en

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"

	"github.com/colonyfleet/colony/en/agent"
	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk"
	enidentity "github.com/colonyfleet/colony/en/identity"
	"github.com/colonyfleet/colony/en/inventory"
	"github.com/colonyfleet/colony/en/link"
	"github.com/colonyfleet/colony/en/metrics"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/en/probe"
	"github.com/colonyfleet/colony/en/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/hostclock"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/internal/retry/relisten"
	"github.com/colonyfleet/colony/internal/stopper"
	"github.com/colonyfleet/colony/protocol"
)

// An EN is one agent. Start it once, then Stop it.
type EN struct {
	opts Options
	log  *slog.Logger

	runner   *agent.Runner
	metrics  *metrics.Metrics
	run      Runtime // counted by metrics
	commands *command.Service
	link     *link.Link
	disk     *disk.Watched // where the state is
	damaged  state.Damages
	logs     logs.Reader  // of the containers and of the agent itself
	listener net.Listener // nil without HTTP

	identity *enidentity.Identity // nil: the node proves nothing
	root     ed25519.PublicKey    // of the fleet's key sets; nil: nothing is checked
	parts    *stopper.Group
}

// New checks the options. Nothing is opened before Start.
func New(o Options) (*EN, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	log := o.Logger.With("node_id", string(o.Node))
	o.Logger = log
	o.SinceBoot = hostclock.Elapsed(o.SinceBoot, o.Now != nil)
	o.Unsynced = hostclock.Marks(o.Unsynced, o.Now != nil)
	return &EN{opts: o, log: log, disk: disk.Watch(o.Disk, o.StateDir), parts: stopper.New()}, nil
}

// Start takes up the work where it was left, and returns; it waits neither for
// the LO nor for the container engine. On an error nothing is left running.
func (e *EN) Start(ctx context.Context) error {
	if err := e.start(ctx); err != nil {
		return errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
	}
	e.log.InfoContext(ctx, "agent started", "site_id", e.opts.Site, "version", e.opts.Version, "state_dir", e.opts.StateDir)
	return nil
}

func (e *EN) start(ctx context.Context) error {
	if e.opts.MemoryLimit > 0 {
		debug.SetMemoryLimit(e.opts.MemoryLimit)
	}
	store, held, err := state.Open(e.disk, e.opts.StateDir, e.opts.Random, e.log)
	if err != nil {
		return err
	}
	e.parts.OnStop("state", func(context.Context) error { return store.Close() })
	e.disk.Look()

	boot := inventory.New(inventory.Options{Logger: e.log}).Boot()
	if e.root, err = e.readRoot(ctx); err != nil {
		return err
	}
	if err := e.openIdentity(ctx); err != nil {
		return err
	}
	e.identity.Follow(held.Trust.KeySet)
	run, err := e.runtime() // which identifies the node to the image cache
	if err != nil {
		return err
	}
	e.metrics = metrics.New(held.Records)
	run = e.metrics.Runtime(run)
	e.run = run
	e.logs = ondisk.Node{Reader: run.Logs(), AgentLog: e.opts.LogFile}
	if e.link, err = link.New(e.linkOptions(held, boot)); err != nil {
		return err
	}
	if err := e.openCommands(held, run); err != nil {
		return err
	}
	e.damaged.OnChange(e.link.Changed)
	check, err := e.checker(held.Trust)
	if err != nil {
		return err
	}
	limits := plan.DefaultLimits()
	limits.MinHealthy = e.opts.MinHealthy
	if e.runner, err = agent.New(agent.Options{
		Node: e.opts.Node, Boot: boot, Engine: run, Host: run, Store: agentStore{store, e.following(store.SaveTrust), e.metrics}, Uplink: e.link, Changed: e.link.Changed,
		Probe: e.metrics.Probe(probe.New(run, e.opts.Dial).Probe), Clock: agent.Clock{Now: e.opts.Now, Unsynced: e.opts.Unsynced}, Logger: e.log, Limits: limits,
		Agent: held.Agent, Desired: held.Desired, Records: held.Records, Counter: held.Counter, Check: check,
		Volumes: held.Volumes, VolumeRetention: e.opts.VolumeRetention, Incomplete: len(held.Damaged) > 0 || held.Renewed,
	}); err != nil {
		return err
	}
	// The link and the commands call the runner: the runner is stopped after them.
	e.runner.Start(ctx)
	e.parts.OnStop("runner", e.runner.Stop)
	if err := e.link.Start(ctx, e.runner, e.inventory(run)); err != nil {
		return fmt.Errorf("start link to the LO: %w", err)
	}
	e.parts.OnStop("link", e.link.Stop)
	e.parts.Go("commands", e.commands.Run)
	if e.identity != nil {
		e.parts.Go("certificate of the node", func(ctx context.Context) { e.identity.Run(ctx, e.link) })
	}
	e.parts.Go("heartbeat", e.link.Run)
	e.parts.Go("disk", func(ctx context.Context) { e.disk.Run(ctx, e.diskChanged) })
	return e.startHTTP(ctx)
}

// diskChanged says that the disk is full, or has room again: in the log, and to the LO.
func (e *EN) diskChanged(ctx context.Context, problem string) error {
	if problem != "" {
		e.log.ErrorContext(ctx, "disk is full", "problem", problem)
	} else {
		e.log.InfoContext(ctx, "disk has room again", "state_dir", e.opts.StateDir)
		e.runner.ReportAgain()
	}
	e.link.Changed()
	return nil
}

// inventory returns what looks at the machine.
func (e *EN) inventory(host inventory.Host) *inventory.Collector {
	return inventory.New(inventory.Options{
		Node: e.opts.Node, Labels: e.opts.Labels, Version: e.opts.Version, Host: host, Now: e.opts.Now, Unsynced: e.opts.Unsynced, Logger: e.log,
	})
}

// readRoot returns the root key of the fleet's key sets; nil: nothing is checked.
func (e *EN) readRoot(ctx context.Context) (ed25519.PublicKey, error) {
	if e.opts.RootKeyFile == "" {
		e.log.WarnContext(ctx, "desired state is not checked: every client of the site's broker can make this node run anything; this is for development: set rootKeyFile")
		return nil, nil
	}
	root, err := keyfile.Public(e.opts.RootKeyFile)
	if err != nil {
		return nil, fmt.Errorf("rootKeyFile: %w", err)
	}
	return root, nil
}

// checker returns what checks the desired state that the LO sends.
func (e *EN) checker(held trust.State) (*trust.Checker, error) {
	n := trust.Node{Site: e.opts.Site, Node: e.opts.Node, Labels: e.opts.Labels}
	if e.root != nil && e.identity != nil {
		n.LO = e.identity.LOKey
	}
	return trust.New(n, e.root, held)
}

// problem says what is wrong with the node, for people; "": nothing is.
func (e *EN) problem() string {
	refused := e.runner.Problem()
	if full := e.disk.Problem(); full != "" && refused != "" {
		return full + "; " + refused
	} else if full != "" {
		return full
	}
	return refused
}

// linkOptions returns the options of the link to the LO. held is what the node found in its state
// directory.
func (e *EN) linkOptions(held *state.Contents, boot string) link.Options {
	o := link.Options{
		Commands: e.handleCommand, Linked: e.linked,
		Site: e.opts.Site, Node: e.opts.Node, Presence: protocol.Presence{Agent: held.Agent, Boot: boot, Version: e.opts.Version},
		MQTT: e.opts.LO.MQTT, KeepAlive: e.opts.LO.KeepAlive, Heartbeat: e.opts.Heartbeat, Inventory: e.opts.Inventory,
		Problem: e.problem, Damaged: e.damaged.List, Dial: e.opts.Dial, Random: e.opts.Random, Logger: e.log,
	}
	for _, d := range held.Damaged {
		e.damaged.Add(d.String())
	}
	e.prove(&o)
	return o
}

// runtime returns the container engine.
func (e *EN) runtime() (Runtime, error) {
	if e.opts.Runtime != nil {
		return e.opts.Runtime, nil
	}
	o := e.opts.engine()
	o.Damaged = e.damaged.Add
	if e.identity != nil {
		o.MirrorTLS = e.identity.TLS()
	}
	eng, err := engines.Open(o, e.log)
	if err != nil {
		return nil, err
	}
	e.parts.OnStop("container engine", func(context.Context) error { return eng.Close() })
	return eng, nil
}

func (e *EN) startHTTP(ctx context.Context) error {
	if e.opts.HTTP == "" {
		return nil
	}
	listen := e.opts.Listen
	if listen == nil {
		listen = relisten.System
	}
	l, err := listen(ctx, "tcp", e.opts.HTTP)
	if err != nil {
		return fmt.Errorf("open the status listener (key http): %w", err)
	}
	e.listener = l
	e.parts.OnStop("status listener", httpserver.Start(l, httpserver.New(e.handler(), httpserver.Limits{}, e.log), e.parts.Fail).Stop)
	return nil
}

// Failed returns a channel that receives the error if a part of the agent ends by itself.
func (e *EN) Failed() <-chan error { return e.parts.Failed() }

// Logs returns what reads the logs of the node. It is to be called after Start.
func (e *EN) Logs() logs.Reader { return e.logs }

// HTTPAddr returns where the status is served, or "" without a listener.
func (e *EN) HTTPAddr() string {
	if e.listener == nil {
		return ""
	}
	return e.listener.Addr().String()
}

// Stop says goodbye to the LO and ends the agent. The containers go on.
func (e *EN) Stop(ctx context.Context) error { return e.parts.Stop(ctx) }

// Run starts the agent, and stops it when ctx ends or a part of it fails.
func (e *EN) Run(ctx context.Context) error {
	if err := e.Start(ctx); err != nil {
		return err
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-e.Failed():
	}
	return errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
}
