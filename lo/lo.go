// Package lo is the Local Orchestrator of a site, put together from its parts:
// the site's MQTT broker, the records of the nodes, the scheduler and the
// reconciler, the journal and the uplink to the CO, the image cache.
//
// What happens to a message of a node is in take.go, what the LO decides in
// loop.go, the link to the CO in link.go; machine data is the affair of lo/data.
// Nothing here waits for the CO: without it the site goes on with the desired state
// that it has, and the journal grows.
package lo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/internal/stopper"
	"github.com/colonyfleet/colony/lo/cache"
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/data/downlink"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/lo/uplink"
	"github.com/colonyfleet/colony/protocol"
)

const (
	dirPerm = 0o700
	// mqttListener is the name of the listener for nodes.
	mqttListener = "mqtt"
	// specsPath is where the CO's API serves specs by digest.
	specsPath = "/api/v1/specs/"
)

// An LO is one Local Orchestrator. Start and Stop are called once each.
type LO struct {
	opts  Options
	log   *slog.Logger
	parts *stopper.Group

	journal  *journal.Journal
	desired  *desired.Store
	site     *site
	loop     *loop
	gate     *uplink.Gate
	data     *data.Forwarder
	broker   *broker.Broker
	down     *downlink.Downlink
	link     *link
	cache    *cache.Cache
	listener net.Listener // nil where there is no HTTP
}

// New returns an LO that is not started. The error lists every fault of o.
func New(o Options) (*LO, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("options of the LO:\n%w", err)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	return &LO{opts: o, log: o.Logger, parts: stopper.New()}, nil
}

// Start brings the LO up and returns when nodes can connect. It does not wait for
// the CO. When it fails nothing is left running.
func (l *LO) Start(ctx context.Context) error {
	if err := l.start(ctx); err != nil {
		return errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
	}
	l.log.InfoContext(ctx, "lo is up", "site_id", string(l.opts.Site), "mqtt", l.MQTTAddr(), "http", l.HTTPAddr(), "version", l.opts.Version)
	return nil
}

func (l *LO) start(ctx context.Context) error {
	if err := os.MkdirAll(l.opts.StateDir, dirPerm); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	for _, step := range []func(context.Context) error{
		l.listen, l.openJournal, l.openState, l.openData, l.startBroker, l.startDown, l.startLink, l.startHTTP,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// listen takes the HTTP address first, so that a second LO fails before it does anything.
func (l *LO) listen(context.Context) error {
	if err := registerAll(l.opts.Registerer, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return err
	}
	if l.opts.HTTP == "" {
		return nil
	}
	var err error
	if l.listener, err = net.Listen("tcp", l.opts.HTTP); err != nil {
		return fmt.Errorf("listen for http on %s: %w", l.opts.HTTP, err)
	}
	l.parts.OnStop("http listener", func(context.Context) error {
		if err := l.listener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return nil
}

func (l *LO) openJournal(context.Context) error {
	var err error
	if l.journal, err = journal.Open(filepath.Join(l.opts.StateDir, "journal"), journal.Options{MaxBytes: l.opts.JournalBytes, Logger: l.log}); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	l.parts.OnStop("journal", func(context.Context) error { return l.journal.Close() })
	return nil
}

// openState finds again what an earlier run knew.
func (l *LO) openState(ctx context.Context) error {
	store, err := store.Open(filepath.Join(l.opts.StateDir, "state"))
	if err != nil {
		return err
	}
	fetch := func(context.Context, protocol.Digest, uint64) ([]byte, error) {
		return nil, protocol.Errorf(protocol.Invalid, "it does not come whole by MQTT, and co.http is not set in the configuration of the site's local orchestrator: set it to the URL of the central orchestrator's API, such as http://co.example:8080, and restart")
	}
	if l.opts.CO.HTTP != "" {
		base, err := url.Parse(l.opts.CO.HTTP)
		if err != nil {
			return fmt.Errorf("parse co.http: %w", err)
		}
		fetch = desired.HTTP(&http.Client{}, base.JoinPath(specsPath), desired.PartialDir(filepath.Join(l.opts.StateDir, "desired")))
	}
	if l.desired, err = desired.Open(filepath.Join(l.opts.StateDir, "desired"), l.opts.Site, fetch, l.log); err != nil {
		return err
	}
	c := newCounts()
	s, state, err := openSite(l.opts, l.journal, store, c)
	if err != nil {
		return err
	}
	l.site = s
	l.loop = &loop{
		site: s, desired: l.desired, state: state, lost: l.opts.NodeLostAfter,
		publish: func(ctx context.Context, m broker.Message) error { return l.broker.Publish(ctx, m) },
		expires: time.Now().Add(l.opts.PresenceGrace),
		jitter:  rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), //nolint:gosec // jitter is no secret
		wakes:   map[protocol.NodeID]time.Time{},
	}
	started := siteFact(protocol.LOStarted, &protocol.Presence{V: protocol.Version, Online: true, Agent: l.journal.Epoch(), Version: l.opts.Version}, time.Now())
	if _, err := s.append(ctx, []nodes.Fact{started}); err != nil {
		// A full journal is a reason to start, not one to stay away.
		l.log.WarnContext(ctx, "start could not be recorded", "err", err)
	}
	return nil
}

// openData puts the data rules into force before the first client can publish.
func (l *LO) openData(ctx context.Context) error {
	var err error
	l.gate = uplink.NewGate(uplink.GateOptions{Rate: l.opts.UplinkRate})
	l.data, err = data.Open(data.Options{
		Site: l.opts.Site, Dir: l.opts.StateDir, Gate: l.gate, RetainedTopics: l.opts.RetainedTopics, RetainedBytes: l.opts.RetainedBytes, Fail: l.parts.Fail, Logger: l.log, Registerer: l.opts.Registerer,
		// Nothing is sent before the link is up, and so there.
		Send: func(ctx context.Context, topic string, payload []byte) error { return l.link.send(ctx, topic, payload) },
		Rules: func() ([]protocol.DataRule, bool) {
			m, ok := l.desired.Current()
			l.site.ruleFault.asked(m)
			return m.Data, ok
		},
		Faulty: func(why string) {
			if l.site.ruleFault.found(why) {
				l.site.due.Notify()
			}
		},
	})
	if err != nil {
		return err
	}
	l.parts.OnStop("machine data", func(context.Context) error { return l.data.Close() })
	l.site.data = l.data
	l.data.Reconcile(ctx)
	return nil
}

func (l *LO) startBroker(ctx context.Context) error {
	var err error
	l.broker, err = broker.New(broker.Options{
		Name: "lo", Listeners: []broker.Listener{{Name: mqttListener, Network: broker.TCP, Address: l.opts.MQTT}},
		Access: access.Site(l.opts.Site), Accept: l.site.accept, Logger: l.log, Registerer: l.opts.Registerer,
	})
	if err != nil {
		return err
	}
	// Stopped last of the three: nothing changes any more, so all is folded in.
	l.parts.OnStop("checkpoint", func(context.Context) error { return l.loop.checkpoint() })
	if err := l.broker.Start(ctx); err != nil {
		return err
	}
	l.parts.OnStop("broker", l.broker.Stop)
	if err := l.data.Republish(ctx, l.broker.Publish); err != nil {
		return err
	}
	l.parts.Go("data rules", l.data.Run)
	l.parts.Go("decisions", l.loop.run)
	return nil
}

func (l *LO) startLink(ctx context.Context) error {
	var err error
	if l.link, err = newLink(l.opts, l); err != nil {
		return err
	}
	l.link.down = l.down
	l.parts.Go("forgetting", l.link.trimmer.run)
	l.parts.Go("uplink", func(ctx context.Context) {
		if err := l.link.uplink.Run(ctx); err != nil && ctx.Err() == nil {
			l.parts.Fail(fmt.Errorf("uplink: %w", err))
		}
	})
	l.parts.Go("desired state", func(ctx context.Context) {
		if err := l.link.source.Run(ctx, l.link.offer); err != nil && ctx.Err() == nil {
			l.parts.Fail(fmt.Errorf("desired state: %w", err))
		}
	})
	if err := l.link.client.Start(ctx); err != nil {
		return fmt.Errorf("start link to the co: %w", err)
	}
	l.parts.OnStop("link", l.link.stop)
	return nil
}

// Failed delivers the error of a part that cannot go on; the LO should be stopped.
func (l *LO) Failed() <-chan error { return l.parts.Failed() }

// MQTTAddr returns where nodes connect.
func (l *LO) MQTTAddr() string { return l.broker.Addr(mqttListener) }

// HTTPAddr returns where the image cache, the metrics and the status are, or "".
func (l *LO) HTTPAddr() string {
	if l.listener == nil {
		return ""
	}
	return l.listener.Addr().String()
}

// Stop ends all parts, the last started first, each within ctx, and joins their errors.
func (l *LO) Stop(ctx context.Context) error { return l.parts.Stop(ctx) }

func registerAll(r prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
