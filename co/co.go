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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/forwarded"
	"github.com/colonyfleet/colony/co/admission"
	"github.com/colonyfleet/colony/co/api"
	auditapi "github.com/colonyfleet/colony/co/api/audit"
	"github.com/colonyfleet/colony/co/api/gate"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/api/images"
	"github.com/colonyfleet/colony/co/api/policy"
	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/catalog"
	"github.com/colonyfleet/colony/co/compiler"
	"github.com/colonyfleet/colony/co/compiler/pins"
	"github.com/colonyfleet/colony/co/damage"
	"github.com/colonyfleet/colony/co/db"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	commandsdb "github.com/colonyfleet/colony/co/db/commands"
	datadb "github.com/colonyfleet/colony/co/db/data"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	proposaldb "github.com/colonyfleet/colony/co/db/fleet/proposals"
	identitydb "github.com/colonyfleet/colony/co/db/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/gauges"
	coidentity "github.com/colonyfleet/colony/co/identity"
	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/co/registry"
	"github.com/colonyfleet/colony/co/registry/inprocess"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/co/registry/uses"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/timing"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/httpserver"
	"github.com/colonyfleet/colony/internal/stopper"
	"github.com/colonyfleet/colony/protocol"
)

// A CO is one Central Orchestrator. Start it once, then Stop it.
type CO struct {
	opts  Options
	log   *slog.Logger
	parts *stopper.Group
	disk  *disk.Watched // of the state directory; set by Start

	listener net.Listener  // of HTTP; set by Start
	mqttAddr func() string // set by Start
	// machineAddr and enrolAddr are where LOs connect with certificates, and where they get
	// them; set by Start, nil and "" where they do not.
	machineAddr func() string
	enrolAddr   string
	httpsAddr   string // where LOs fetch what they run

	tlsFailed prometheus.Counter // connections to the ports of HTTP
}

// New returns a CO that is not started. The error lists every fault of o.
func New(o Options) (*CO, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("options of the CO:\n%w", err)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "colony_co_http_tls_errors_total", Help: "Connections to the ports of the CO for HTTP that ended within the handshake of TLS."})
	return &CO{opts: o, log: o.Logger, parts: stopper.New(), tlsFailed: failed}, nil
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
	c.opts.Registerer.MustRegister(c.tlsFailed, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	// The address is bound first, so that a second CO fails before it does anything.
	if err = c.listenHTTP(ctx); err != nil {
		return err
	}
	c.parts.OnStop("http listener", func(context.Context) error { return ignoreClosed(c.listener.Close()) })
	s, err := c.openStores(ctx)
	if err != nil {
		return err
	}
	c.watchDisk()
	if s.keys, err = c.openKeys(); err != nil {
		return err
	}
	if err := c.openAccess(ctx, &s); err != nil {
		return err
	}
	checkpoints, err := c.keepAudit(s)
	if err != nil {
		return err
	}
	if err := c.startIdentity(ctx, &s); err != nil {
		return err
	}
	sites, err := c.startSites(ctx, s)
	if err != nil {
		return err
	}
	if err := c.startRemoteWrite(s); err != nil {
		return err
	}
	if err := c.startWebhooks(s); err != nil {
		return err
	}
	return c.startHTTP(ctx, s, sites, checkpoints)
}

// stores are the parts that hold the CO's state.
type stores struct {
	db        *db.DB
	fleet     *fleetdb.Store
	proposals *proposaldb.Store
	data      *datadb.Store
	repo      *git.Repo
	registry  *registry.Handler
	images    pins.Registry
	admission *admission.Admission
	uses      *uses.Finder
	machines  *coidentity.Machines // nil: machines have no certificates
	keys      *keys.Set            // nil: nothing is signed
	gate      *gate.Gate           // nil: no token is required
	signIn    *access.SignIn       // nil: there is no OpenID provider
	audit     *auditdb.Store
	commands  *commandsdb.Store
	damage    *damage.Reporter // of the CO's own state
}

func (c *CO) openStores(ctx context.Context) (stores, error) {
	pool, err := db.Open(ctx, c.opts.DatabaseURL, db.Options{Logger: c.log, Registerer: c.opts.Registerer})
	if err != nil {
		return stores{}, err
	}
	c.parts.OnStop("database", func(context.Context) error { pool.Close(); return nil })
	s := stores{db: pool, fleet: fleetdb.New(pool), proposals: proposaldb.New(pool), data: datadb.New(pool), audit: auditdb.New(pool), commands: commandsdb.New(pool)}
	if err = c.openNote(ctx, &s); err != nil {
		return s, err
	}
	onGit, err := timing.NewGit(c.opts.Registerer)
	if err != nil {
		return s, fmt.Errorf("register metrics of git: %w", err)
	}
	if s.repo, err = git.Open(ctx, git.Options{
		Dir: filepath.Join(c.opts.StateDir, "deployments"), Remote: c.opts.Git.Remote, Branch: c.opts.Git.Branch,
		SSHCommand: c.opts.Git.SSHCommand, CredentialFile: c.opts.Git.CredentialFile, OnReach: s.fleet.RecordReach, Stamp: stamped, OnCommit: audit.Committed, OnCall: onGit, Logger: c.log,
	}); err != nil {
		return s, fmt.Errorf("open the deployments repo: %w", err)
	}
	if err := c.opts.Registerer.Register(gauges.New(s.fleet.Gauges, c.log)); err != nil {
		return s, fmt.Errorf("register metrics of the fleet: %w", err)
	}
	c.parts.OnStop("deployments repo", func(context.Context) error { return s.repo.Close() })
	c.parts.Go("maintenance of the deployments repo", s.repo.Maintain)
	if s.registry, err = c.openRegistry(pool); err != nil {
		return s, err
	}
	// The CO asks its own registry without the way of others, which may be TLS with a certificate of any authority, and want a token.
	own := inprocess.Listen(dialable(c.listener.Addr().String()))
	c.parts.OnStop("own registry", httpserver.Start(own, httpserver.New(s.registry, httpserver.Limits{}, c.log), c.parts.Fail).Stop)
	client := ociclient.New(ociclient.Options{
		Hosts: map[string]string{c.opts.RegistryHost: own.Addr().String()}, Insecure: c.opts.PlainHTTP, Transport: own.Transport(),
		Allow: c.opts.Import.sources(c.opts.RegistryHost).Registry,
	})
	c.parts.OnStop("registry client", func(context.Context) error { client.Close(); return nil })
	s.images = pins.New(client, s.fleet)
	s.admission = admission.New(admission.Options{Apps: s.fleet, Repo: repo{s.repo}, Images: s.images, NotNamed: catalog.ErrNotNamed})
	s.uses = uses.New(uses.Options{
		Host: c.opts.RegistryHost, Store: s.fleet, Archive: client.Archive, Check: compiler.CheckArchive,
		Files: usedFiles(&s),
	})
	s.registry.SetGuard(s.uses.Guard)
	c.parts.Go("registry", s.registry.Run)
	return s, nil
}

// dialable turns the address of a listener into one that this process can dial.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}

func (c *CO) startHTTP(ctx context.Context, s stores, sites *sites, checkpoints checkpoints) error {
	cat, err := catalog.New(catalog.Options{
		Store: s.fleet, Registry: s.images, CheckArchive: compiler.CheckArchive, CheckShared: compiler.CheckShared, Images: compiler.Images, Host: c.opts.RegistryHost, TempDir: c.opts.StateDir, Logger: c.log,
		Sources: c.opts.Import.sources(c.opts.RegistryHost),
		Export: func(ctx context.Context, r catalog.Remote, ref, dir string) (string, error) {
			return git.Export(ctx, git.Options{SSHCommand: r.SSHCommand, CredentialFile: r.CredentialFile}, r.URL, ref, dir)
		},
	})
	if err != nil {
		return err
	}
	a := api.New(api.Options{
		Apps: s.fleet, Fleet: s.fleet, Deployments: s.fleet, Counts: s.fleet, Events: s.fleet, Repo: repo{s.repo}, Check: s.admission.Check, Changed: sites.loop.Notify,
		Sites: siteActions(s, sites),
		Rules: s.fleet, Data: s.data, Proposals: s.proposals, Requests: s.fleet,
		Watch: func(site protocol.SiteID, limit int, want func(fleet.Delivery) bool) sitedata.Watch {
			return sites.live.Subscribe(site, limit, want)
		},
		Catalog: api.CatalogActions{
			Import: func(ctx context.Context, source string) ([]api.ImportResult, error) {
				results, err := cat.Import(ctx, source)
				return importResults(results), err
			},
			Images: images.Options{Registry: s.registry, Uses: s.uses.Of},
		},
		Ready: func(ctx context.Context) map[string]error {
			_, git := s.repo.Sync(ctx)
			return map[string]error{"postgres": s.db.Ready(ctx), "deployments repo": git, "disk": c.diskFull()}
		},
		Access:  api.AccessActions{Tokens: s.tokens(), Groups: s.groups(), SignIn: s.signIn, Audit: auditapi.Options{Entries: s.audit.Entries, Chain: s.audit.Chain, At: s.audit.At, Checkpoints: checkpoints}},
		Metrics: promhttp.HandlerFor(c.opts.Registerer, promhttp.HandlerOpts{}), Version: c.opts.Version, Logger: c.log,
	})
	mux := http.NewServeMux()
	mux.Handle("/v2/", s.registry)
	clients := admin.None("the sites of this CO connect to an external broker (broker.urls): ask that one for its clients")
	if sites.broker != nil {
		clients = admin.Handler(sites.broker, c.log)
	}
	mux.Handle(admin.Path, clients)
	mux.Handle("/", a)
	if err := c.serveMachines(ctx, s, a); err != nil {
		return err
	}
	proxies, err := forwarded.Parse(c.opts.Access.Proxies)
	if err != nil {
		return err
	}
	requests := policy.Policy{Route: a.Route, Clients: admin.Path, Sites: access.Sites{Prove: c.httpsAddr != ""}}
	measured, err := timing.NewRequests(c.opts.Registerer)
	if err != nil {
		return fmt.Errorf("register metrics of requests: %w", err)
	}
	handler := httpserver.Headers(measured.Handler(proxies.Handler(s.guarded(mux, requests, c.log)), timing.Route(mux, a.Route)))
	c.parts.OnStop("http", httpserver.Start(c.listener, httpserver.New(handler, httpserver.Limits{TLSFailed: c.tlsFailed.Inc}, c.log), c.parts.Fail).Stop)
	// It is stopped before the server, so that open event streams end and do not hold it.
	c.parts.Go("event feed", func(ctx context.Context) { a.Run(ctx, s.fleet.Listen(ctx)) })
	return nil
}

// siteActions are what the API has done for sites.
func siteActions(s stores, sites *sites) api.SiteActions {
	a := api.SiteActions{Ask: sites.ingest.Ask, AcceptPosition: func(ctx context.Context, site protocol.SiteID) (protocol.Position, error) {
		at, err := s.fleet.AcceptPosition(ctx, site)
		if err == nil {
			sites.loop.Reread()
		}
		return at, err
	}}
	a.Commands, a.Rollouts = commandActions(s, sites), rolloutActions(s, sites)
	if s.machines != nil {
		record := identitydb.New(s.db)
		a.Machines = identityapi.Options{
			NewToken: s.machines.NewToken, Revoke: s.machines.Revoke,
			Decide: s.machines.Decide, Pending: record.Pending,
			RevokedKey: record.RevokedKey, Unenrolled: record.Unenrolled, PendingRevocations: record.PendingRevocations,
		}
	}
	return a
}

// Failed delivers the error of a part that cannot go on; the CO should be stopped.
func (c *CO) Failed() <-chan error { return c.parts.Failed() }

// HTTPAddr returns where the API listens.
func (c *CO) HTTPAddr() string { return c.listener.Addr().String() }

// MQTTAddr returns where LOs connect: an address of this CO's, or the URLs of the
// external broker.
func (c *CO) MQTTAddr() string { return c.mqttAddr() }

// MachineAddr returns where LOs connect with their certificates, where identity.mqtt is set.
func (c *CO) MachineAddr() string { return c.machineAddr() }

// EnrolAddr returns where LOs enrol, or "" where identity.enrol is not set.
func (c *CO) EnrolAddr() string { return c.enrolAddr }

// HTTPSAddr returns where LOs fetch specifications and images, or "" where identity.http is not set.
func (c *CO) HTTPSAddr() string { return c.httpsAddr }

// Stop ends all parts, the last started first, each within ctx, and joins their errors.
func (c *CO) Stop(ctx context.Context) error { return c.parts.Stop(ctx) }

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
