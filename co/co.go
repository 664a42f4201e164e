// Package co is the Central Orchestrator: it joins the deployments repo, the
// catalog, the record in PostgreSQL, the OCI registry, the API and the MQTT
// broker that the sites connect to. It is wiring only; the parts are below it.
package co

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/catalog"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/data/downlink"
	"github.com/colonyfleet/colony/co/data/live"
	"github.com/colonyfleet/colony/co/db"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/desired"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/ingest"
	"github.com/colonyfleet/colony/co/registry"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/internal/stopper"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// A CO is one Central Orchestrator. Start it once, then Stop it.
type CO struct {
	opts Options
	log  *slog.Logger

	db       *db.DB
	store    *fleetdb.Store
	data     *datadb.Store
	repo     *git.Repo
	broker   centralBroker
	mqttAddr func() string
	ingest   *ingest.Ingest
	live     live.Hub
	down     *downlink.Downlink
	retainer notify.Signal // the broker retains what is for sites
	loop     *desired.Loop
	api      *api.API
	registry *registry.Handler
	client   *registry.Client

	presence *presence
	listener net.Listener
	server   *http.Server

	parts *stopper.Group
}

// New returns a CO that is not started. The error lists every fault of o.
func New(o Options) (*CO, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("options of the CO:\n%w", err)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	return &CO{opts: o, log: o.Logger, parts: stopper.New()}, nil
}

// Start brings the CO up and returns when it serves. It waits for PostgreSQL; it
// does not wait for the deployments repo, whose absence shows in /readyz. When it
// fails nothing is left running.
func (c *CO) Start(ctx context.Context) error {
	err := c.start(ctx)
	if err != nil {
		return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	c.log.InfoContext(ctx, "co is up", "http", c.HTTPAddr(), "mqtt", c.MQTTAddr(), "version", c.opts.Version)
	return nil
}

func (c *CO) start(ctx context.Context) error {
	c.opts.Registerer.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	// The address is taken first, so that a second CO fails before it does anything.
	if c.listener, err = net.Listen("tcp", c.opts.HTTP); err != nil {
		return fmt.Errorf("listen for http on %s: %w", c.opts.HTTP, err)
	}
	c.parts.OnStop("http listener", func(context.Context) error { return ignoreClosed(c.listener.Close()) })
	for _, step := range []func(context.Context) error{c.openStore, c.openRepo, c.openRegistry, c.openDown, c.openLoop, c.startBroker, c.startLoop, c.startRemoteWrite, c.startHTTP} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *CO) openStore(ctx context.Context) error {
	var err error
	if c.db, err = db.Open(ctx, c.opts.DatabaseURL, db.Options{Logger: c.log, Registerer: c.opts.Registerer}); err != nil {
		return err
	}
	c.parts.OnStop("store", func(context.Context) error { c.db.Close(); return nil })
	c.store, c.data = fleetdb.New(c.db), datadb.New(c.db)
	return nil
}

func (c *CO) openRepo(ctx context.Context) error {
	var err error
	c.repo, err = git.Open(ctx, git.Options{
		Dir: filepath.Join(c.opts.StateDir, "deployments"), Remote: c.opts.Git.Remote, Branch: c.opts.Git.Branch,
		SSHCommand: c.opts.Git.SSHCommand, CredentialFile: c.opts.Git.CredentialFile, OnReach: c.gitReach, Logger: c.log,
	})
	if err != nil {
		return fmt.Errorf("open the deployments repo: %w", err)
	}
	c.parts.OnStop("deployments repo", func(context.Context) error { return c.repo.Close() })
	return nil
}

// gitReach records that the remote of the deployments repo is away, or back.
func (c *CO) gitReach(reach error) {
	e := fleet.Event{Kind: fleet.GitReachable, Message: c.repo.Remote()}
	if reach != nil {
		e.Kind, e.Message = fleet.GitUnreachable, reach.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.store.AddEvent(ctx, e); err != nil {
		c.log.WarnContext(ctx, "event not recorded", "kind", e.Kind, "err", err)
	}
}

func (c *CO) openRegistry(context.Context) error {
	var err error
	if c.registry, err = registry.NewHandler(filepath.Join(c.opts.StateDir, "registry"), registry.Limits{}, c.log); err != nil {
		return err
	}
	c.parts.Go("registry", c.registry.Run)
	c.client = registry.NewClient(registry.ClientOptions{
		Hosts: map[string]string{c.opts.RegistryHost: dialable(c.listener.Addr().String())}, Insecure: c.opts.PlainHTTP,
	})
	c.parts.OnStop("registry client", func(context.Context) error { c.client.Close(); return nil })
	return nil
}

// dialable turns the address of a listener into one that this process can dial.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

func (c *CO) startBroker(ctx context.Context) error {
	c.presence = newPresence(c.store, c.log)
	data := delivery{log: c.log, publish: func(ctx context.Context, list []broker.Message, refused func(int, error)) error {
		return c.broker.PublishAll(ctx, list, refused)
	}}
	c.ingest = ingest.New(ingest.Options{
		Store: c.store, Data: c.data, Deliver: c.watched(data.deliver), Shared: c.external(), Logger: c.log, Registerer: c.opts.Registerer,
		PublishAck: func(ctx context.Context, site protocol.SiteID, payload []byte) error {
			c.live.Committed(site)
			return c.broker.Publish(ctx, broker.Message{
				Topic: topic.ForSite(topic.Ack, site), Payload: payload, QoS: 1, ContentType: protocol.ContentType,
			})
		},
	})
	c.parts.OnStop("batches of sites", func(context.Context) error { c.ingest.Close(); return nil }) // after the broker
	var err error
	if c.broker, err = c.newBroker(data); err != nil {
		return err
	}
	if err := c.broker.Start(ctx); err != nil {
		return err
	}
	c.parts.OnStop("broker", c.broker.Stop)
	if err := c.restoreData(ctx, data); err != nil {
		return err
	}
	c.parts.Go("presence of sites", func(ctx context.Context) { c.presence.expire(ctx, c.opts.PresenceGrace) })
	return nil
}

// accept is called for each message of a site before it is acknowledged.
func (c *CO) accept(ctx context.Context, from access.Identity, m broker.Message) error {
	t, err := topic.Parse(m.Topic)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "%w", err)
	}
	switch t.Kind {
	case topic.Up:
		return c.ingest.Accept(ctx, from.Site, m.Payload)
	case topic.SiteOnline:
		return c.acceptPresence(ctx, from.Site, m.Payload)
	case topic.In:
		return c.acceptDownlink(ctx, t, m)
	case topic.DownAck:
		return c.down.Ack(from.Site, m.Payload)
	default:
		return nil
	}
}

func (c *CO) openLoop(context.Context) error {
	var err error
	o := desired.Options{
		Store: c.store, Read: readSnapshot(c.repo), Watch: c.repo.Watch, Interval: c.opts.Git.Interval, Logger: c.log,
		Compile: func(ctx context.Context, d *v1rc3.Deployment) (protocol.SiteEntry, *protocol.DeploymentSpec, error) {
			return compiler.Compile(ctx, d, c.client)
		},
		Publish: func(ctx context.Context, site protocol.SiteID, payload []byte) error {
			c.down.RulesChanged(site)
			return c.broker.Publish(ctx, broker.Message{
				Topic: topic.ForSite(topic.SiteDesired, site), Payload: payload, QoS: 1, Retain: true, ContentType: protocol.ContentType,
			})
		},
	}
	if c.external() { // then there may be several replicas
		o.Lock = func(ctx context.Context) (context.Context, func(), error) { return c.db.Lock(ctx, "desired state") }
	}
	c.loop, err = desired.New(o)
	return err
}

func (c *CO) startLoop(context.Context) error {
	c.parts.Go("desired state", func(ctx context.Context) {
		if err := c.loop.Run(ctx); err != nil && ctx.Err() == nil {
			c.parts.Fail(fmt.Errorf("desired state: %w", err))
		}
	})
	return nil
}

func (c *CO) startHTTP(context.Context) error {
	cat, err := catalog.New(catalog.Options{
		Store: c.store, Registry: c.client, CheckArchive: compiler.CheckArchive, TempDir: c.opts.StateDir, Logger: c.log,
		Sources: c.opts.Import.sources(c.opts.RegistryHost),
		Export: func(ctx context.Context, r catalog.Remote, ref, dir string) (string, error) {
			return git.Export(ctx, git.Options{SSHCommand: r.SSHCommand, CredentialFile: r.CredentialFile}, r.URL, ref, dir)
		},
	})
	if err != nil {
		return err
	}
	c.api = api.New(api.Options{
		Apps: c.store, Fleet: c.store, Deployments: c.store, Events: c.store, Repo: repo{c.repo}, Changed: c.loop.Poke, Ready: c.ready,
		Rules: c.store, Data: c.data, Ask: c.ingest.Ask, Watch: c.watch,
		Import: func(ctx context.Context, source string) ([]api.ImportResult, error) {
			results, err := cat.Import(ctx, source)
			return importResults(results), err
		},
		Metrics: promhttp.HandlerFor(c.opts.Registerer, promhttp.HandlerOpts{}), Version: c.opts.Version, Logger: c.log,
	})
	mux := http.NewServeMux()
	mux.Handle("/v2/", c.registry)
	mux.Handle("/", c.api)
	c.server = httpserver.New(mux, httpserver.Limits{}, c.log)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := c.server.Serve(c.listener); !errors.Is(err, http.ErrServerClosed) {
			c.parts.Fail(fmt.Errorf("serve http: %w", err))
		}
	}()
	c.parts.OnStop("http", func(ctx context.Context) error {
		err := c.server.Shutdown(ctx)
		if err != nil {
			err = errors.Join(err, c.server.Close())
		}
		<-served
		return err
	})
	// Stopped before the server, so that open event streams end and do not hold it.
	c.parts.Go("event feed", func(ctx context.Context) { c.api.Run(ctx, c.store.Listen(ctx)) })
	return nil
}

// ready checks the parts that the CO needs.
func (c *CO) ready(ctx context.Context) map[string]error {
	_, git := c.repo.Sync(ctx)
	return map[string]error{"postgres": c.db.Ready(ctx), "deployments repo": git}
}

// Failed delivers the error of a part that cannot go on; the CO should be stopped.
func (c *CO) Failed() <-chan error { return c.parts.Failed() }

// HTTPAddr returns where the API listens.
func (c *CO) HTTPAddr() string { return c.listener.Addr().String() }

// MQTTAddr returns where LOs connect: an address of this CO's, or the URLs of the
// external broker.
func (c *CO) MQTTAddr() string { return c.mqttAddr() }

// Stop ends all parts, the last started first, each within ctx, and joins their errors.
func (c *CO) Stop(ctx context.Context) error { return c.parts.Stop(ctx) }

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
