// Package containerd is the engine that runs containers through containerd: any
// daemon from 1.6 on, in a namespace of our own.
//
// What it knows is kept where it survives: containers and their labels in
// containerd, network attachments, volumes, generated files and logs below
// Options.StateDir. Nothing of a running container depends on this process or on
// the daemon: the shim holds the process, the network namespace is a bind mount,
// logs are files that the shim writes. So every method begins by looking at what
// is there, and a kill at any step is repaired by the next call.
//
// Each deployment has a bridge of its own (see internal/bridgenet), on which its containers find each other by name (see
// package names).
package containerd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/followed"
	"github.com/colonyfleet/colony/en/engine/containerd/images"
	"github.com/colonyfleet/colony/en/engine/containerd/leases"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/en/engine/containerd/names"
	"github.com/colonyfleet/colony/en/engine/containerd/network"
	"github.com/colonyfleet/colony/en/engine/containerd/programs"
	"github.com/colonyfleet/colony/en/engine/containerd/runspec"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes"
	"github.com/colonyfleet/colony/en/engine/logs/ondisk"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/grpcdeadline"
	"github.com/colonyfleet/colony/internal/keylock"
	"github.com/colonyfleet/colony/internal/portforward"
	"github.com/colonyfleet/colony/internal/registryhosts"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Host      = (*Engine)(nil)
	_ engine.Positions = (*Engine)(nil)
	_ engine.Programs  = (*Engine)(nil)
	_ engine.Meter     = (*Engine)(nil)
)

// Options say which daemon to use and where to keep what belongs to it.
type Options struct {
	Address   string // the daemon's socket
	Namespace string // of containerd; all in it is ours

	// Snapshotter is overlayfs, native or another of the daemon's. Empty:
	// overlayfs where the daemon has it, else native.
	Snapshotter string

	// StateDir holds volumes, logs, network state. One engine has it at a time.
	StateDir string

	// PluginDirs are searched in order for CNI plugins.
	PluginDirs []string

	// Pool is the IPv4 prefix, /24 or wider, that each deployment's bridge takes
	// a /24 of. A /24 that the node uses otherwise is left out.
	Pool string

	// Mirror is the base URL of the registry that is asked first for every image,
	// with the image's own host as the parameter ns. Empty: none.
	Mirror string
	// MirrorTLS identifies the node to the mirror. Nil: the node has no certificate.
	MirrorTLS *tls.Config
	// MirrorOnly asks no other registry.
	MirrorOnly bool
	// PlainHTTP lists registries (host or host:port) spoken to without TLS.
	// Those on a loopback address always are.
	PlainHTTP []string
	// Credentials returns user and password of a registry host, empty for none.
	// Nil: anonymous.
	Credentials func(host string) (user, password string, err error)

	// Stall is how long a registry may send nothing in the middle of an answer.
	Stall time.Duration

	// Logs bound the logs of the containers.
	Logs ondisk.Limits

	// CDIDirs hold the CDI files of the node, which say what devices have that Compose files
	// name; the later ones win.
	CDIDirs []string

	// Init is the path of the program colony-init. Empty: beside this program.
	Init string

	// Damaged is called with the name of each file of state that is found damaged, and
	// counts as not held. It must not wait. Nil: it is only logged.
	Damaged func(file string)

	answer time.Duration     // see callTimeout; 0: that
	dial   []grpc.DialOption // of tests
	// resolvConf are the files of the node's name servers, in order of preference. Nil: the system's.
	resolvConf []string

	Logger *slog.Logger
}

// DefaultOptions returns the options of a gateway.
func DefaultOptions() Options {
	return Options{
		Address:    "/run/containerd/containerd.sock",
		Namespace:  "colony",
		StateDir:   "/var/lib/colony/engine",
		PluginDirs: []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
		Pool:       "10.89.0.0/16",
		CDIDirs:    []string{"/etc/cdi", "/var/run/cdi"}, // those of the specification
		Logs:       ondisk.DefaultLimits(),
		Stall:      time.Minute,
		Logger:     slog.New(slog.DiscardHandler),
	}
}

// Validate returns all faults of the options, joined.
func (o Options) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, protocol.Errorf(protocol.Invalid, format, args...))
		}
	}
	need(o.Address != "", "containerd address: want the path of its socket")
	need(marks.NamePattern.MatchString(o.Namespace), "containerd namespace %q: want letters, digits and single - _ .", o.Namespace)
	need(filepath.IsAbs(o.StateDir), "engine state directory %q: want an absolute path", o.StateDir)
	need(len(o.PluginDirs) > 0, "no directory of CNI plugins given")
	pool, err := netip.ParsePrefix(o.Pool)
	need(err == nil && pool.Addr().Is4() && pool.Bits() <= 24, "address pool %q: want an IPv4 prefix of /24 or wider", o.Pool)
	need(o.Stall > 0, "time in which a registry may send nothing: %s: want more than 0", o.Stall)
	need(o.Logger != nil, "no logger given")
	need(!o.MirrorOnly || o.Mirror != "", "only a mirror is to be asked for images, and none is given")
	if o.Mirror != "" {
		u, err := url.Parse(o.Mirror)
		need(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "mirror %q: want an http or https URL", o.Mirror)
	}
	return errors.Join(append(errs, o.Logs.Validate()...)...)
}

// Engine is the engine. Its methods may be called concurrently.
type Engine struct {
	opts       Options
	client     *client.Client
	registries *registryhosts.Client
	images     *images.Store
	net        *bridgenet.Networks
	forward    *portforward.Forwarder
	joined     *network.Networks
	names      *names.Names
	programs   *programs.Programs
	volumes    *volumes.Store
	logs       *ondisk.Store
	log        *slog.Logger
	locks      keylock.Locks // by container key

	readOnly string // see runspec.ReadOnlyOption

	mu          sync.Mutex // protects snapshotter
	snapshotter string

	leases  *leases.Leases
	cleanup time.Duration // cleanupTimeout but in tests
	stop    context.CancelFunc
	stopped chan struct{}
}

// callTimeout is how long containerd may take to answer a call; one that takes longer
// counts as away.
const callTimeout = time.Minute

// unbounded are the calls that take as long as their work: a container runs, a layer
// is unpacked, content is collected, nothing happens.
var unbounded = []string{
	"/containerd.services.tasks.v1.Tasks/Wait", "/containerd.services.diff.v1.Diff/",
	"/containerd.services.images.v1.Images/Delete", "/containerd.services.events.v1.Events/Subscribe",
}

// damage logs and reports a file that was found damaged.
func (o Options) damage(d *statefile.Damage) {
	o.Logger.Error("state of the container engine is damaged; it counts as not held", "err", d)
	if o.Damaged != nil {
		o.Damaged(d.String())
	}
}

// New returns an engine and begins to bound its containers' logs, until Close.
// It does not need the daemon to be there yet.
func New(opts Options) (*Engine, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	for _, dir := range []string{"containers", "volumes", "fifo"} {
		if err := os.MkdirAll(filepath.Join(opts.StateDir, dir), 0o711); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
	}
	// What commands in containers were talking through when an agent was killed.
	if err := emptyDir(filepath.Join(opts.StateDir, "fifo")); err != nil {
		return nil, fmt.Errorf("clear away what earlier commands left: %w", err)
	}
	nw, err := bridgenet.New(bridgenet.Options{
		Dir: opts.StateDir, PluginDirs: opts.PluginDirs, Pool: opts.Pool, Owner: opts.Namespace + "\x00" + opts.StateDir, Damaged: opts.damage,
	})
	if err != nil {
		return nil, err
	}
	connect := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: time.Second,
	}
	dial := append(grpcdeadline.Options(cmp.Or(opts.answer, callTimeout), unbounded...), grpc.WithConnectParams(connect))
	dial = append(dial, opts.dial...)
	c, err := client.New(opts.Address,
		client.WithDefaultNamespace(opts.Namespace),
		client.WithExtraDialOpts(dial))
	if err != nil {
		return nil, fmt.Errorf("make containerd client: %w", err)
	}
	known, err := names.New(names.Options{
		Dir: filepath.Join(opts.StateDir, "containers"), Networks: nw, ResolvConf: opts.resolvConf, Damaged: opts.damage, Logger: opts.Logger,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take up the names of containers: %w", err), c.Close())
	}
	held, err := openLogs(opts)
	if err != nil {
		known.Close()
		return nil, errors.Join(fmt.Errorf("take up the logs of containers: %w", err), c.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		opts: opts, client: c, net: nw, names: known, logs: held, volumes: volumes.New(filepath.Join(opts.StateDir, "volumes"), followed.New(filepath.Join(opts.StateDir, "followed"), opts.damage)),
		log:         opts.Logger.With("component", "containerd"),
		snapshotter: opts.Snapshotter, readOnly: runspec.ReadOnlyOption(),
		leases: leases.New(c), cleanup: cleanupTimeout, stop: cancel, stopped: make(chan struct{}),
	}
	e.forward = portforward.New(portforward.Options{
		Refuse: bridgenet.IsBridge, // containers do not get around what keeps their networks apart
		Logger: opts.Logger,
	})
	e.joined = network.New(network.Options{Bridges: nw, Forward: e.forward, Names: known, Fault: e.fault, Logger: e.log})
	e.registries = registryhosts.New(registryhosts.Options{
		Mirror: opts.Mirror, MirrorTLS: opts.MirrorTLS, MirrorOnly: opts.MirrorOnly, PlainHTTP: opts.PlainHTTP, Credentials: opts.Credentials, Stall: opts.Stall,
	})
	e.images = images.New(images.Options{
		Client: c, Registries: e.registries, Snapshotter: e.snapshots, Lease: e.lease, Fault: e.fault, Away: away,
	})
	e.programs = programs.New(programs.Options{Client: c, FIFOs: filepath.Join(opts.StateDir, "fifo"), ToTheEnd: e.toTheEnd})
	e.joined.ForwardAll()
	go e.tend(ctx)
	return e, nil
}

// Close ends what New began. Containers go on.
func (e *Engine) Close() error {
	e.stop()
	<-e.stopped
	e.registries.Close()
	e.forward.Close()
	e.names.Close()
	return errors.Join(e.logs.Close(), e.client.Close())
}

// in returns ctx with our containerd namespace. The client library's own log is
// left out: what matters in it comes back as an error.
func (e *Engine) in(ctx context.Context) context.Context {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return log.WithLogger(namespaces.WithNamespace(ctx, e.opts.Namespace), logrus.NewEntry(silent))
}

// Pull makes an image present and unpacked.
func (e *Engine) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	return e.images.Pull(e.in(ctx), ref, report)
}

// Info returns the daemon's version and where it keeps images.
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	ctx = e.in(ctx)
	v, err := e.client.Version(ctx)
	if err != nil {
		return engine.Info{}, e.fault(err, protocol.InternalError, "ask containerd for its version")
	}
	info := engine.Info{Name: "containerd", Version: v.Version}
	plugins, err := e.client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1")
	if err != nil {
		return engine.Info{}, e.fault(err, protocol.InternalError, "ask containerd where it stores images")
	}
	for _, p := range plugins.GetPlugins() {
		// root/io.containerd.content.v1.content
		if dir := p.GetExports()["root"]; dir != "" {
			info.Storage = filepath.Dir(dir)
		}
	}
	return info, nil
}

// snapshots returns the name of the snapshotter to use, which it finds out once.
func (e *Engine) snapshots(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshotter != "" {
		return e.snapshotter, nil
	}
	plugins, err := e.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", e.fault(err, protocol.InternalError, "ask containerd for its snapshotters")
	}
	var have []string
	for _, p := range plugins.GetPlugins() {
		if p.GetInitErr() == nil {
			have = append(have, p.GetID())
		}
	}
	for _, want := range []string{"overlayfs", "native"} {
		if slices.Contains(have, want) {
			if want != "overlayfs" {
				e.log.WarnContext(ctx, "containerd has no overlayfs: containers take the disk space of whole copies", "snapshotter", want)
			}
			e.snapshotter = want
			return want, nil
		}
	}
	return "", engine.Errorf(protocol.EngineUnavailable,
		"containerd has neither the overlayfs nor the native snapshotter (it has %q): name one in the engine's options", have)
}
