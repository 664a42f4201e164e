// Package engines chooses a container engine by its name, so that nothing else of the
// agent depends on one of them. A new engine is a package beside this one that passes
// en/engine/enginetest, and one more entry in the table of this package.
package engines

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd"
	"github.com/colonyfleet/colony/protocol"
)

// Options say which engine runs the containers, and how. The yaml keys are those
// below engine in the configuration file of an agent.
type Options struct {
	// Name is the engine's: containerd.
	Name string `yaml:"name"`
	// Address is the socket of the engine's daemon.
	Address string `yaml:"address"`
	// Containerd is the former name of Address, and wins over it.
	Containerd string `yaml:"containerd,omitempty"`
	// Namespace is the one of the daemon's namespaces that belongs to this agent alone.
	Namespace string `yaml:"namespace"`
	// Snapshotter is the daemon's way to store images. Empty: the engine's choice.
	Snapshotter string `yaml:"snapshotter,omitempty"`
	// StateDir holds volumes and logs. One engine uses it at a time. Default: the
	// folder engine in the agent's stateDir.
	StateDir string `yaml:"stateDir,omitempty"`
	// PluginDirs are searched in order for CNI plugins.
	PluginDirs []string `yaml:"pluginDirs"`
	// Pool is the IPv4 prefix, /24 or wider, of which each deployment's network gets a
	// /24.
	Pool string `yaml:"pool"`
	// Mirror is the base URL of the image cache that is asked first, as a rule the
	// LO's. Empty: none. MirrorOnly asks nothing else.
	Mirror     string `yaml:"mirror,omitempty"`
	MirrorOnly bool   `yaml:"mirrorOnly,omitempty"`
	// PlainHTTP lists registries, host or host:port, that are used without TLS.
	PlainHTTP []string `yaml:"plainHTTP,omitempty"`
	// LogBytes bounds what is kept of each of the two outputs of a container.
	LogBytes int64 `yaml:"logBytes"`
	// LogNodeBytes bounds the logs of all containers together, those of removed ones included.
	LogNodeBytes int64 `yaml:"logNodeBytes"`
	// LogRemoved is how many logs of removed containers are retained, and LogAge for how long.
	LogRemoved int           `yaml:"logRemoved"`
	LogAge     time.Duration `yaml:"logAge"`
	// CDIDirs hold the files of the Container Device Interface, which say what the devices
	// have that Compose files name; the later ones win.
	CDIDirs []string `yaml:"cdiDirs"`
	// Init is the path of the program colony-init, which containers with init or tty need.
	// Default: colony-init in the directory of the agent's program.
	Init string `yaml:"init,omitempty"`
	// MirrorTLS identifies the node to the mirror. Nil: the node has no certificate.
	MirrorTLS *tls.Config `yaml:"-"`
	// Damaged is called with the name of each file of the engine's state that is found damaged,
	// and counts as not held. It must not wait. Nil: it is only logged.
	Damaged func(file string) `yaml:"-"`
}

// An Engine is a container engine with its host, as an agent and a launcher use it.
type Engine interface {
	engine.Engine
	engine.Host
	engine.Positions
	engine.Programs
	engine.Meter
	// Halt stops all containers and removes their networks, as before a shutdown. What
	// they stored stays.
	Halt(ctx context.Context) error
	// Close ends what the engine does by itself. The containers go on.
	Close() error
}

// A kind is one engine that can be chosen.
type kind struct {
	validate func(Options) error
	open     func(Options, *slog.Logger) (Engine, error)
	version  func(ctx context.Context, o Options) (string, error)
}

var kinds = map[string]kind{
	"containerd": {
		validate: func(o Options) error { return forContainerd(o).Validate() },
		open: func(o Options, log *slog.Logger) (Engine, error) {
			c := forContainerd(o)
			c.Logger = log
			e, err := containerd.New(c)
			if err != nil {
				return nil, err // not e: a nil *containerd.Engine is an Engine that is not nil
			}
			return e, nil
		},
		version: func(ctx context.Context, o Options) (string, error) { return containerd.Version(ctx, o.Address) },
	},
}

// Default returns the options of a gateway.
func Default() Options {
	c := containerd.DefaultOptions()
	return Options{
		Name: "containerd", Address: c.Address, Namespace: c.Namespace, StateDir: c.StateDir,
		PluginDirs: c.PluginDirs, Pool: c.Pool, CDIDirs: c.CDIDirs,
		LogBytes: c.Logs.Stream, LogNodeBytes: c.Logs.Node, LogRemoved: c.Logs.Removed, LogAge: c.Logs.Age,
	}
}

// Validate returns all faults of the options. An unknown name is one, and then the
// only one. The error's kind is Invalid.
func (o Options) Validate() error {
	k, err := o.kind()
	if err != nil {
		return err
	}
	return k.validate(o)
}

// Open returns the engine that the options name. It does not need the engine's daemon
// to be there yet. The caller closes it.
func Open(o Options, log *slog.Logger) (Engine, error) {
	k, err := o.kind()
	if err != nil {
		return nil, err
	}
	e, err := k.open(o, log)
	if err != nil {
		return nil, fmt.Errorf("open container engine %s: %w", o.Name, err)
	}
	return e, nil
}

// Version asks the daemon of the engine that the options name for its version. It changes
// nothing, so that it may be called beside an agent that runs.
func Version(ctx context.Context, o Options) (string, error) {
	k, err := o.kind()
	if err != nil {
		return "", err
	}
	return k.version(ctx, o)
}

func (o Options) kind() (kind, error) {
	k, ok := kinds[o.Name]
	if !ok {
		return k, protocol.Errorf(protocol.Invalid, "name %q: want %s", o.Name, strings.Join(slices.Sorted(maps.Keys(kinds)), " or "))
	}
	return k, nil
}

func forContainerd(o Options) containerd.Options {
	c := containerd.DefaultOptions()
	c.Address, c.Namespace, c.Snapshotter, c.StateDir, c.PluginDirs = o.Address, o.Namespace, o.Snapshotter, o.StateDir, o.PluginDirs
	c.Pool, c.Mirror, c.MirrorOnly, c.PlainHTTP, c.Init, c.CDIDirs = o.Pool, o.Mirror, o.MirrorOnly, o.PlainHTTP, o.Init, o.CDIDirs
	c.Logs.Stream, c.Logs.Node, c.Logs.Removed, c.Logs.Age = o.LogBytes, o.LogNodeBytes, o.LogRemoved, o.LogAge
	c.Damaged, c.MirrorTLS = o.Damaged, o.MirrorTLS
	if o.Containerd != "" {
		c.Address = o.Containerd
	}
	return c
}
