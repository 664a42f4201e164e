package en

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/en/agent"
	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// Options configure an EN. The yaml keys are those of its configuration file.
type Options struct {
	// Site and Node name the node; together they are its name at the LO's broker.
	Site protocol.SiteID `yaml:"site"`
	Node protocol.NodeID `yaml:"node"`
	// Labels are what selectors of deployments match.
	Labels map[string]string `yaml:"labels,omitempty"`
	// StateDir holds what the agent must know after a crash. One EN uses it at a time.
	StateDir string `yaml:"stateDir"`
	// RootKeyFile holds the public root key of the CO's key sets: the node obeys only what follows from
	// what the CO signed. Empty is the mode of development: the node obeys its LO in everything, and
	// logs a warning at each start.
	RootKeyFile string `yaml:"rootKeyFile,omitempty"`
	// LO says where the Local Orchestrator is.
	LO LOOptions `yaml:"lo"`
	// Identity says how the node proves its identity.
	Identity IdentityOptions `yaml:"identity,omitempty"`
	// Engine says which container engine runs the containers, and how.
	Engine engines.Options `yaml:"engine"`

	// Heartbeat is the time between two heartbeats.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Inventory is the time between two looks for changed hardware.
	Inventory time.Duration `yaml:"inventory"`
	// MinHealthy is how long a version must be up on the node before no later failure
	// ends it; before that the deployment's policy applies.
	MinHealthy time.Duration `yaml:"minHealthy"`
	// VolumeRetention is how long volumes outlive their deployment, counted while the agent
	// runs. 0: for ever.
	VolumeRetention time.Duration `yaml:"volumeRetention"`
	// LogFile is the file of the agent's own log, so that it can be read from afar. The program that starts the
	// agent writes it, as colony up does. Empty: the log goes to the journal of the system, and cannot be read from
	// afar.
	LogFile string `yaml:"logFile,omitempty"`
	// RefusedCommands are kinds of commands that the node refuses from every caller, such as exec.
	RefusedCommands []command.Kind `yaml:"refusedCommands,omitempty"`
	// Files are paths of files that may be collected from afar (colony node files), or patterns of them in which * stands
	// for a name, such as /var/log/*.log. Empty: none may.
	Files []string `yaml:"files,omitempty"`
	// HTTP is the address of /healthz and /metrics. Empty: none.
	HTTP string `yaml:"http,omitempty"`
	// MemoryLimit is the soft limit of the agent's own memory in bytes. 0 leaves
	// it to the environment's GOMEMLIMIT.
	MemoryLimit int64 `yaml:"memoryLimit,omitempty"`

	Process `yaml:"-"`
}

// A Process is what the program that runs the agent gives it, or a simulation in its place.
type Process struct {
	Version string
	Logger  *slog.Logger
	// Runtime replaces the engine that Engine names, in simulations and tests.
	Runtime Runtime
	// Dial opens the connection to the LO and those of probes to containers, Listen the listener for HTTP. Nil: those of the system.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Disk is where the agent keeps its state; the engine has its own. Nil: the file system
	// of the machine.
	Disk disk.FS
	// Clock is what the node takes for the time of day. Where nothing of it is given, Unsynced is
	// as the kernel says.
	agent.Clock
	// SinceBoot is the clock by which the agent counts what has passed since it learnt the time of the CO; it goes on while the machine sleeps.
	// Nil: CLOCK_BOOTTIME, or package time where Now is given.
	SinceBoot func() time.Duration
	// Random names what the agent names, and spreads its attempts to connect. Nil: the
	// machine's.
	Random *random.Source
}

// A Runtime is a container engine with its host.
type Runtime interface {
	engine.Engine
	engine.Host
	engine.Positions
	engine.Programs
	engine.Meter
}

// LOOptions say how the EN reaches its LO.
type LOOptions struct {
	// MQTT are the URLs of the LO's broker, tried in turn, such as tcp://lo:1883.
	MQTT []string `yaml:"mqtt"`
	// Enrol are the addresses, host:port, where the node gets and renews its certificate, tried
	// in turn. With them it connects to the LO by mutual TLS alone. Empty: it proves nothing.
	Enrol []string `yaml:"enrol,omitempty"`
	// KeepAlive is the longest silence on the link before a ping. A broken link is
	// found within 1.5 times that.
	KeepAlive time.Duration `yaml:"keepAlive"`
}

// IdentityOptions say how the node proves its identity.
type IdentityOptions struct {
	// TokenFile has the join token, which the node needs once. Default: token in identity of
	// the state directory.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// Root is the fingerprint of the fleet's root, as colony ca init prints it. With it a node that has no
	// join token asks the LO for its certificate, and waits until its key is approved.
	Root string `yaml:"root,omitempty"`
	// Key says where the key of the certificate is made and stays: file, in the state directory, which is the
	// default; tpm, in the TPM 2.0 at /dev/tpmrm0; or tpm: and the path of its device.
	Key string `yaml:"key,omitempty"`
}

// validate returns the faults of the options of a node that enrols at addresses.
func (o IdentityOptions) validate(enrol []string) error {
	if _, err := tpm.Parse(o.Key); err != nil {
		return err
	}
	if o.Root == "" {
		return nil
	}
	if len(enrol) == 0 {
		return errors.New("identity.root without lo.enrol: the node asks for its certificate there")
	}
	if _, err := identity.ParseFingerprint(o.Root); err != nil {
		return fmt.Errorf("identity.root: %w", err)
	}
	return nil
}

// validate returns the faults of how the LO is reached.
func (o LOOptions) validate() error {
	var errs []error
	if len(o.MQTT) == 0 {
		errs = append(errs, errors.New("lo.mqtt: missing; want a list of URLs such as tcp://lo.example:1883"))
	}
	for _, addr := range o.Enrol {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("lo.enrol %q: want host:port", addr))
		}
	}
	for _, raw := range o.MQTT {
		if u, err := url.Parse(raw); len(o.Enrol) > 0 && (err != nil || u.Scheme != "tls" && u.Scheme != "mqtts") {
			errs = append(errs, fmt.Errorf("lo.mqtt %q: want a URL such as tls://lo.example:8883, as lo.enrol is set", raw))
		}
	}
	return errors.Join(errs...)
}

// DefaultOptions returns the options that a configuration file changes.
func DefaultOptions() Options {
	e := engines.Default()
	e.StateDir = "" // below the agent's
	return Options{
		StateDir:  "/var/lib/colony/en",
		LO:        LOOptions{KeepAlive: 30 * time.Second},
		Engine:    e,
		Heartbeat: 30 * time.Second, Inventory: 10 * time.Minute, MinHealthy: plan.DefaultLimits().MinHealthy,
		VolumeRetention: 720 * time.Hour, Process: Process{Version: "dev"},
	}
}

// Validate returns all faults of the options, each with its key.
func (o Options) Validate() error {
	var errs []error
	if _, err := protocol.ParseSiteID(string(o.Site)); err != nil {
		errs = append(errs, fmt.Errorf("site: %w", err))
	}
	if _, err := protocol.ParseNodeID(string(o.Node)); err != nil {
		errs = append(errs, fmt.Errorf("node: %w", err))
	}
	if !filepath.IsAbs(o.StateDir) {
		errs = append(errs, fmt.Errorf("stateDir %q: want an absolute path", o.StateDir))
	}
	if o.RootKeyFile != "" && !filepath.IsAbs(o.RootKeyFile) {
		errs = append(errs, fmt.Errorf("rootKeyFile %q: want an absolute path", o.RootKeyFile))
	}
	if o.LogFile != "" && !filepath.IsAbs(o.LogFile) {
		errs = append(errs, fmt.Errorf("logFile %q: want an absolute path", o.LogFile))
	}
	for _, kind := range o.RefusedCommands {
		if _, err := command.Lookup(kind); err != nil {
			errs = append(errs, fmt.Errorf("refusedCommands: %w", err))
		}
	}
	for _, p := range o.Files {
		if err := command.CheckPath(p); err != nil {
			errs = append(errs, fmt.Errorf("files: %w", err))
		}
	}
	errs = append(errs, o.LO.validate(), o.Identity.validate(o.LO.Enrol))
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"lo.keepAlive", o.LO.KeepAlive}, {"heartbeat", o.Heartbeat}, {"inventory", o.Inventory}, {"minHealthy", o.MinHealthy}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %s: want more than 0", d.key, d.value))
		}
	}
	if o.VolumeRetention < 0 {
		errs = append(errs, fmt.Errorf("volumeRetention %s: want 0 (for ever) or more", o.VolumeRetention))
	}
	for k := range o.Labels {
		if k == "" {
			errs = append(errs, errors.New("labels: a label without a name"))
		}
	}
	if o.HTTP != "" {
		if _, _, err := net.SplitHostPort(o.HTTP); err != nil {
			errs = append(errs, fmt.Errorf("http %q: want host:port, or nothing for no listener", o.HTTP))
		}
	}
	if o.MemoryLimit < 0 {
		errs = append(errs, fmt.Errorf("memoryLimit %d: want 0 or more bytes", o.MemoryLimit))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	} else if o.Runtime == nil {
		if err := o.engine().Validate(); err != nil {
			errs = append(errs, fmt.Errorf("engine: %w", err))
		}
	}
	return errors.Join(errs...)
}

// engine returns the options of the container engine, its StateDir filled in.
func (o Options) engine() engines.Options {
	e := o.Engine
	if e.StateDir == "" {
		e.StateDir = filepath.Join(o.StateDir, "engine")
	}
	return e
}
