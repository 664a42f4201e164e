package lo

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/broker/devices"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/begun"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/internal/retry/relisten"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/internal/stopper"
	"github.com/colonyfleet/colony/lo/api"
	"github.com/colonyfleet/colony/lo/cache"
	"github.com/colonyfleet/colony/lo/clients"
	"github.com/colonyfleet/colony/lo/control"
	"github.com/colonyfleet/colony/lo/control/trim"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/delivery"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/desired"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/link"
	nodestore "github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

const (
	dirPerm = 0o700
	// mqttListener is the name of the listener for nodes.
	mqttListener = "mqtt"
	// machineListener is that for nodes with certificates.
	machineListener = "machines"
	// specsPath is where the CO's API serves specs by digest.
	specsPath = "/api/v1/specs/"
)

// parts are what an LO consists of. start makes them in the order in which they need
// each other, and sets each field once; group stops them in the reverse order.
type parts struct {
	opts  Options
	disk  *disk.Watched // that of the options
	group *stopper.Group

	listener net.Listener // nil where there is no HTTP
	stored
	site    *control.Site
	link    *link.Link
	gate    *pace.Gate
	data    *data.Forwarder
	broker  *broker.Broker
	access  *devices.Access
	devices *clients.Devices
	loop    *control.Loop
	down    *downlink.Downlink
	uplink  *uplink.Uplink
	commanding
	cache *cache.Cache // nil where there is no HTTP, or no registry

	rootKey ed25519.PublicKey // of the fleet's key sets; nil: nothing is checked
	proof
}

// stored are the events, the desired state, and which stores were begun, as the LO has them on disk.
type stored struct {
	journal *journal.Journal
	desired *desired.Store
	note    *begun.Note
}

// proof holds the TLS identities and the revocation list.
type proof struct {
	holder *identity.Holder // of the LO's certificate; nil where it proves nothing
	vault  *store.Store     // of the certificate and its key; likewise
	fromCO *http.Client     // of what the CO serves by HTTP
	keeper *enrol.Keeper    // likewise
	// revocations are the keys that the CO has revoked; likewise.
	revocations *revocation.List
	// machines are the nodes that have certificates; nil where they prove nothing.
	machines *loidentity.Machines
	// Where nodes enrol, and fetch images; "" where they do not.
	enrolAddr, imagesAddr string
	tlsFailed             prometheus.Counter // connections to these that ended within TLS
}

func (p *parts) start(ctx context.Context) error {
	if err := p.opts.Disk.MkdirAll(p.opts.StateDir, dirPerm); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	p.disk.Look()
	for _, step := range []func(context.Context) error{
		// The HTTP address first: a second LO on it fails before it changes anything.
		p.listen, p.openJournal, p.openHolder, p.openSite, p.openNote, p.openIdentity, p.makeLink, p.openData, p.openCommands, p.startBroker, p.startEnrolment, p.startDownlink, p.startUplink, p.startLink, p.openCache, p.startImages, p.startHTTP, p.startSocket,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *parts) dir(name string) string { return filepath.Join(p.opts.StateDir, name) }

func (p *parts) listen(ctx context.Context) error {
	if err := p.register(p.tlsFailed, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return err
	}
	if p.opts.HTTP == "" {
		return nil
	}
	var err error
	if p.listener, err = p.listenOn(ctx, p.opts.HTTP); err != nil {
		return fmt.Errorf("listen for http on %s: %w", p.opts.HTTP, err)
	}
	p.group.OnStop("http listener", func(context.Context) error {
		if err := p.listener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return nil
}

// listenOn opens a listener of TCP. The broker opens its own.
func (p *parts) listenOn(ctx context.Context, address string) (net.Listener, error) {
	if p.opts.Listen != nil {
		return p.opts.Listen(ctx, "tcp", address)
	}
	return relisten.System(ctx, "tcp", address)
}

func (p *parts) openJournal(context.Context) error {
	var err error
	if p.journal, err = journal.Open(p.dir("journal"), journal.Options{
		MaxBytes: p.opts.JournalBytes, Disk: p.opts.Disk, Now: p.opts.Now, Random: p.opts.Random, Logger: p.opts.Logger,
	}); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	p.group.OnStop("journal", func(context.Context) error { return p.journal.Close() })
	return nil
}

// openSite loads what an earlier run knew.
func (p *parts) openSite(ctx context.Context) error {
	records, err := nodestore.Open(p.opts.Disk, p.dir("state"), p.opts.Logger)
	if err != nil {
		return err
	}
	fetch, err := p.fetch()
	if err != nil {
		return err
	}
	if p.rootKey, err = p.root(ctx); err != nil {
		return err
	}
	if p.desired, err = desired.Open(desired.Options{
		Disk: p.opts.Disk, Dir: p.dir("desired"), Site: p.opts.Site, Fetch: fetch, Root: p.rootKey, Logger: p.opts.Logger,
	}); err != nil {
		return err
	}
	p.site, err = control.Open(ctx, control.Options{
		Site: p.opts.Site, Version: p.opts.Version, Journal: eventJournal{p.journal, p.opts.Unsynced}, Store: records, Desired: desiredStore{p.desired},
		Certificate: p.certificate, NodeLostAfter: p.opts.NodeLostAfter, PresenceGrace: p.opts.PresenceGrace, Logger: p.opts.Logger,
		Now: p.opts.Now, Unsynced: p.opts.Unsynced, Clock: p.clock, ProblemChanged: p.problemChanged, Jitter: p.opts.Random.Rand("jitter"),
	})
	if err != nil {
		return err
	}
	_ = p.site.Damaged(ctx, append(p.desired.Damage(), p.journal.Damage())...) // it is in the log
	return nil
}

// openNote looks whether a store that an earlier run has begun is missing.
func (p *parts) openNote(ctx context.Context) error {
	note, damaged, err := begun.Open(
		begun.Options{Disk: p.opts.Disk, Dir: p.opts.StateDir, File: begun.File{Role: "lo/begun", Path: "state/begun.json"}, Logger: p.opts.Logger},
		begun.Store{Role: "broker/sessions store", Path: "sessions"},
		begun.Store{Role: "lo/data/retained", Path: "retained/messages.log"},
		begun.Store{Role: "lo/datarules", Path: "datarules.cbor"},
		begun.Store{Role: "lo/positions", Path: "down/positions"},
		begun.Store{Role: loidentity.Role, Path: loidentity.NodesPath},
	)
	if err != nil {
		return err
	}
	if p.note = note; p.site.Damaged(ctx, damaged...) != nil {
		return nil // it is reported at the next start
	}
	if err := note.Reported(); err != nil { // it is reported once more at the next start
		p.opts.Logger.WarnContext(ctx, "which stores are missing is not noted", "err", err)
	}
	return nil
}

// root returns the root key of the fleet's key sets; nil: nothing is checked.
func (p *parts) root(ctx context.Context) (ed25519.PublicKey, error) {
	if p.opts.RootKeyFile == "" {
		p.opts.Logger.WarnContext(ctx, "desired states are not checked: every client of the CO's broker can make this site run anything; this is for development: set rootKeyFile")
		return nil, nil
	}
	key, err := keyfile.Public(p.opts.RootKeyFile)
	if err != nil {
		return nil, fmt.Errorf("rootKeyFile: %w", err)
	}
	return key, nil
}

// fetch returns how to get what does not come whole by MQTT.
func (p *parts) fetch() (desired.Fetch, error) {
	if p.opts.CO.HTTP == "" {
		return func(context.Context, desired.Want) ([]byte, error) {
			return nil, protocol.Errorf(protocol.Invalid, "it does not come whole by MQTT, and co.http is not set in the configuration of the site's local orchestrator: set it to the URL of the central orchestrator's API, such as http://co.example:8080, and restart")
		}, nil
	}
	base, err := url.Parse(p.opts.CO.HTTP)
	if err != nil {
		return nil, fmt.Errorf("parse co.http: %w", err)
	}
	return desired.HTTP(p.fromCO, base.JoinPath(specsPath), p.opts.Disk, desired.PartialDir(p.dir("desired"))), nil
}

// held returns the desired state in force.
func (p *parts) held() protocol.Held {
	m, ok := p.desired.Current()
	if !ok {
		return protocol.Held{}
	}
	return m.Held()
}

func (p *parts) makeLink(context.Context) error {
	o := link.Options{
		Site: p.opts.Site, Version: p.opts.Version, Epoch: p.journal.Epoch, Held: p.held, URLs: p.opts.CO.MQTT,
		Problem: p.problem, KeepAlive: p.opts.CO.KeepAlive, MaxBackoff: p.opts.CO.MaxBackoff, Logger: p.opts.Logger,
		Dial: p.opts.Dial, Random: p.opts.Random, Tokens: p.tokens(), Commands: p.handleCommand,
	}
	p.proveUpward(&o)
	var err error
	p.link, err = link.New(o)
	return err
}

// openData puts the data rules into force before the first client can publish.
func (p *parts) openData(ctx context.Context) error {
	p.gate = pace.New(pace.Options{Rate: p.opts.UplinkRate})
	var err error
	p.data, err = data.Open(data.Options{
		Site: p.opts.Site, Dir: p.opts.StateDir, Gate: p.gate, RetainedTopics: p.opts.RetainedTopics, RetainedBytes: p.opts.RetainedBytes,
		Begin: p.link.Begin, Rules: p.site.DataRules, Faulty: p.site.RulesFault,
		Damaged: func(d *statefile.Damage) { _ = p.site.Damaged(ctx, d) }, Fail: p.group.Fail, Logger: p.opts.Logger, Registerer: p.opts.Registerer,
		Disk: p.opts.Disk, Now: p.opts.Now, Unsynced: p.opts.Unsynced, Random: p.opts.Random,
	})
	if err != nil {
		return err
	}
	p.group.OnStop("machine data", func(context.Context) error { return p.data.Close() })
	p.data.Reconcile(ctx)
	return nil
}

func (p *parts) startBroker(ctx context.Context) error {
	var err error
	p.access = devices.New(p.opts.Site)
	p.devices = clients.NewDevices(p.access, p.opts.Logger)
	if m, known := p.desired.Current(); known {
		p.devices.Set(ctx, m.Devices)
	}
	route := router{p.site, p.data, p.commands}
	listeners, permissions := p.machineAccess()
	var changed func(access.Change)
	var watch *clients.Watch // nil: changes of clients are not reported
	if p.opts.ClientEvents {
		watch = clients.New(p.reportClient, p.opts.Logger)
		changed = watch.Note
	}
	p.broker, err = broker.New(broker.Options{
		Name: "lo", Listeners: listeners,
		Listen: p.opts.Listen, Limits: p.opts.brokerLimits(),
		Sessions: broker.Sessions{Dir: p.dir("sessions"), Disk: p.opts.Disk, Limits: p.opts.Sessions, Damaged: func(d *statefile.Damage) { _ = p.site.Damaged(ctx, d) }},
		Access:   permissions, Accept: route.accept, Admit: route.admit, Changed: changed, Logger: p.opts.Logger, Registerer: p.opts.Registerer,
	})
	if err != nil {
		return err
	}
	p.loop = control.NewLoop(p.site, func(ctx context.Context, topic string, payload []byte) error {
		return p.broker.Publish(ctx, broker.Message{Topic: topic, Payload: payload, QoS: 1, Retain: true, ContentType: protocol.ContentType})
	})
	// Stopped after the loop and the broker: no record changes any more.
	p.group.OnStop("checkpoint", func(context.Context) error { return p.loop.End() })
	if err := p.data.Republish(ctx, p.broker.Restore); err != nil {
		return err
	}
	if err := p.broker.Start(ctx); err != nil {
		return err
	}
	p.group.OnStop("broker", p.broker.Stop)
	p.devices.Serve(ctx, p.broker)
	if watch != nil {
		p.group.Go("changes of clients", watch.Run)
	}
	if p.machines != nil { // else the nodes prove nothing
		p.group.Go("list of revoked keys", func(ctx context.Context) { p.revocations.HandOn(ctx, p.publishRevocations) })
	}
	p.group.Go("data rules", p.data.Run)
	p.group.Go("commands", p.commands.Run)
	p.group.Go("what commands send live", p.live.Run)
	p.group.Go("control loop", p.loop.Run)
	return nil
}

// startDownlink accepts what the CO's clients send to the site, once there is a link.
func (p *parts) startDownlink(ctx context.Context) error {
	site := delivery.Site{Broker: p.broker, Store: p.data.Retained(), Now: p.data.Now}
	var err error
	p.down, err = downlink.Open(downlink.Options{
		Dir: p.dir("down"), Disk: p.opts.Disk, Site: p.opts.Site, Logger: p.opts.Logger, Publish: site.Publish, Retained: site,
		Ack: func(ctx context.Context, payload []byte) error {
			return p.link.Send(ctx, topic.ForSite(topic.DownAck, p.opts.Site), payload)
		},
	})
	if err != nil {
		return fmt.Errorf("open downlink: %w", err)
	}
	_ = p.site.Damaged(ctx, p.down.Damage()) // it is in the log
	p.group.OnStop("downlink", func(context.Context) error { return p.down.Close() })
	p.run("machine data for the site", p.down.Run)
	if m, ok := p.desired.Current(); ok {
		delivery.SetRules(p.down, m)
	}
	p.group.Go("note of stores", p.note.Run) // the downlink's is the last that is begun
	return nil
}

// startUplink sends the journal to the CO, once there is a link.
func (p *parts) startUplink(context.Context) error {
	trimmer := trim.New(p.journal, p.site, p.opts.Logger)
	options := uplink.Options{
		Journal: trimmer, Site: p.opts.Site, Resync: uplink.Snapshots(p.journal, p.site.Snapshot, p.opts.Now, p.opts.Unsynced, p.site.ReportPlacements), Gate: p.gate,
		Publish: p.link.Begin, Previous: p.journal.Previous, Logger: p.opts.Logger, Registerer: p.opts.Registerer,
	}
	if err := options.Validate(); err != nil {
		return fmt.Errorf("options of the uplink: %w", err)
	}
	p.uplink = uplink.New(options)
	p.group.Go("journal trimmer", trimmer.Run)
	p.run("uplink", p.uplink.Run)
	return nil
}

func (p *parts) startLink(ctx context.Context) error {
	source := desired.NewMQTT(p.opts.Logger)
	adopter := control.NewAdopter(p.site, func(m protocol.SiteDesired) {
		p.data.Adopt()
		delivery.SetRules(p.down, m)
		p.devices.Set(ctx, m.Devices)
		p.followKeys(m)
		p.commands.Follow(m.KeySet)
		p.commands.Look() // with windows the time of the CO is needed
		p.announce(ctx, "what the site holds")
	})
	p.run("desired state", func(ctx context.Context) error { return source.Run(ctx, adopter.Offer) })
	if err := p.link.Start(ctx, receiver{p.uplink, p.data, source, p.down, p.commands, p.clocks()}); err != nil {
		return err
	}
	p.group.OnStop("link", p.link.Stop)
	if p.keeper != nil {
		p.group.Go("certificate of the lo", p.keeper.Run)
	}
	p.group.Go("disk", func(ctx context.Context) { p.disk.Run(ctx, p.diskChanged) })
	return nil
}

// problem is what is wrong with the machine, for people; "": nothing is.
func (p *parts) problem() string { return cmp.Or(p.disk.Problem(), p.site.Timeless()) }

// problemChanged implements control.Options.ProblemChanged.
func (p *parts) problemChanged(ctx context.Context) {
	if p.link == nil { // it begins with what is the problem
		return
	}
	p.announce(ctx, "the problem of the machine")
}

// announce sends the presence of the site, for what has changed in it. A broker that outlives the CO has retained it: a CO
// that was restored goes by it before the LO connects anew.
func (p *parts) announce(ctx context.Context, what string) {
	if err := p.link.Announce(ctx); err != nil {
		p.opts.Logger.WarnContext(ctx, "the presence of the site is not up to date; the next connection says it", "changed", what, "err", err)
	}
}

// diskChanged says that the disk is full, or has room again: in the log, and to the CO, which
// records it, as the journal cannot.
func (p *parts) diskChanged(ctx context.Context, problem string) error {
	if problem != "" {
		p.opts.Logger.ErrorContext(ctx, "disk is full", "problem", problem)
	} else {
		p.opts.Logger.InfoContext(ctx, "disk has room again", "state_dir", p.opts.StateDir)
	}
	return p.link.Announce(ctx)
}

func (p *parts) openCache(ctx context.Context) error {
	if p.listener == nil && p.opts.Identity.HTTP == "" || p.opts.CO.HTTP == "" {
		return nil
	}
	var err error
	p.cache, err = cache.New(cache.Options{
		Dir: p.dir("images"), Disk: p.opts.Disk, Default: p.opts.CO.HTTP, Client: p.fromCO, Now: p.opts.Now, MaxBytes: p.opts.CacheBytes, Logger: p.opts.Logger,
		Spare: p.spare, Damaged: func(d *statefile.Damage) { _ = p.site.Damaged(ctx, d) }, Images: p.desired.Images,
	})
	if err != nil {
		return fmt.Errorf("open image cache: %w", err)
	}
	p.group.OnStop("image cache", func(context.Context) error { return p.cache.Close() })
	p.group.Go("image cache", p.cache.Run)
	return nil
}

// stateRoom is what the small files of the LO's state need on the disk, in bytes.
const stateRoom = 64 << 20

// spare is what the images leave free on the disk: what the journal and the queues of
// machine data may still grow by.
func (p *parts) spare() int64 {
	s := p.journal.Stats()
	return max(s.MaxBytes-s.Bytes, 0) + p.data.Spare() + stateRoom
}

func (p *parts) startHTTP(context.Context) error {
	if err := p.register(p.site, partMetrics{p}); err != nil {
		return err
	}
	if p.listener == nil {
		return nil
	}
	options := api.Options{
		Listener: p.listener, Metrics: promhttp.HandlerFor(p.opts.Registerer, promhttp.HandlerOpts{}),
		Status: func() any { return p.status() }, Problem: p.problem, Broker: admin.Handler(p.broker, p.opts.Logger), Logger: p.opts.Logger,
	}
	if p.cache != nil && p.imagesAddr == "" {
		options.Images = p.cache
	}
	server := api.New(options)
	p.run("http server", func(context.Context) error { return server.Run() })
	p.group.OnStop("http", server.Stop)
	return nil
}

// run runs a part until the LO stops. Its error, before that, ends the LO.
func (p *parts) run(name string, run func(context.Context) error) {
	p.group.Go(name, func(ctx context.Context) {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			p.group.Fail(fmt.Errorf("%s: %w", name, err))
		}
	})
}

func (p *parts) register(all ...prometheus.Collector) error {
	for _, c := range all {
		if err := p.opts.Registerer.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
