package co

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/co/access/limit"
	"github.com/colonyfleet/colony/co/catalog"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
	"github.com/colonyfleet/colony/co/presence"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/co/rollout/gates"
	"github.com/colonyfleet/colony/co/webhook"
)

// Options configure a CO. The yaml keys are those of its configuration file.
type Options struct {
	// StateDir holds the OCI registry and a clone of the deployments repo. The CO's
	// record is not in it, but in git and in PostgreSQL.
	StateDir string `yaml:"stateDir"`
	// DatabaseURL is a PostgreSQL URL or key=value string.
	DatabaseURL string `yaml:"databaseURL"`
	// HTTP is the address of the API, the OCI registry and the metrics.
	HTTP string `yaml:"http"`
	// MQTT is the address where LOs connect.
	MQTT string `yaml:"mqtt"`
	// Listeners are further addresses of the CO's broker: TLS, WebSocket, Unix sockets.
	Listeners []listen.Spec `yaml:"listeners,omitempty"`
	// Limits bound what clients can take from the CO's broker, and Sessions the sessions there
	// that outlive their connections.
	Limits   limits.Limits   `yaml:"limits,omitempty"`
	Sessions sessions.Limits `yaml:"sessions,omitempty"`
	// Broker names an external MQTT 5 broker that the sites connect to. The CO then does
	// not listen on MQTT, and any number of COs may share the work.
	Broker BrokerOptions `yaml:"broker,omitempty"`
	// Identity says how machines prove their identity.
	Identity IdentityOptions `yaml:"identity,omitempty"`
	// Access says who may use the HTTP API.
	Access AccessOptions `yaml:"access,omitempty"`
	// Git is the deployments repo.
	Git GitOptions `yaml:"git"`
	// Import says where application packages may be imported from.
	Import ImportOptions `yaml:"import,omitempty"`
	// OutputOptions say what the CO sends to other systems.
	OutputOptions `yaml:",inline"`
	// RegistryOptions are about the CO's own OCI registry.
	RegistryOptions `yaml:",inline"`
	// PlainHTTP lists those of Import.Registries, host or host:port, without TLS.
	PlainHTTP []string `yaml:"plainHTTP,omitempty"`
	// Signing says with what the desired states of the sites are signed.
	Signing SigningOptions `yaml:"signing,omitempty"`
	// Removals say how many removals of one commit of the deployments repo need no confirmation.
	Removals RemovalOptions `yaml:"removals,omitempty"`
	// Retention says how long is kept what is only ever added.
	Retention RetentionOptions `yaml:"retention"`
	// PresenceGrace is how long after its start the CO waits for the sites that are
	// recorded as online; it records those that did not report by then as offline.
	PresenceGrace time.Duration `yaml:"presenceGrace"`

	Process `yaml:"-"`
}

// A Process is what the program that runs the CO gives it. Each has a default.
type Process struct {
	Version    string
	Logger     *slog.Logger
	Registerer *prometheus.Registry // of the metrics; nil: one of the CO
}

// OutputOptions say what the CO sends to other systems.
type OutputOptions struct {
	// RemoteWrite sends numbers of machine data to Prometheus.
	RemoteWrite RemoteWriteOptions `yaml:"remoteWrite,omitempty"`
	// Webhooks are where events are posted.
	Webhooks []webhook.Hook `yaml:"webhooks,omitempty"`
	// Rollouts are about how fleet deployments spread.
	Rollouts RolloutOptions `yaml:"rollouts,omitempty"`
}

// RolloutOptions are about how fleet deployments spread.
type RolloutOptions struct {
	// Gates are sources that gates of fleet deployments may ask.
	Gates []gates.Source `yaml:"gates,omitempty"`
}

// RegistryOptions are about the CO's own OCI registry.
type RegistryOptions struct {
	// RegistryHost is the name under which its packages and images are referred to.
	RegistryHost string `yaml:"registryHost"`
	// RegistryDir is where it keeps them. Several replicas have one in common, on a file system that they share. Default: registry, in
	// StateDir.
	RegistryDir string `yaml:"registryDir,omitempty"`
	// RegistryObjects is a bucket of object storage where it keeps them instead, for any number of replicas.
	RegistryObjects objects.Location `yaml:"registryObjects,omitempty"`
}

// BrokerOptions name an external broker. The zero value means: the CO is the broker.
type BrokerOptions struct {
	// URLs are tried in turn, such as tls://mqtt.example:8883.
	URLs []string `yaml:"urls,omitempty"`
	// ClientID is stable and differs between replicas. Default: colony-co- and the
	// name of the machine.
	ClientID string `yaml:"clientID,omitempty"`
	Username string `yaml:"username,omitempty"` // of the CO at the broker; empty: none
	// PasswordFile holds the password; a line break at its end does not count.
	PasswordFile string `yaml:"passwordFile,omitempty"`
	// Group is the name of the replicas' shared subscription. Default colony.
	Group string `yaml:"group,omitempty"`
}

// IdentityOptions say how machines prove their identity. The zero value means: they do not, and
// every client of the broker is believed to be what it names itself.
type IdentityOptions struct {
	// Enrol is the address where LOs get and renew their certificates, by HTTPS.
	Enrol string `yaml:"enrol,omitempty"`
	// HTTP is the address where LOs fetch specifications and images with their certificates, by mutual TLS.
	// Where access is required, those are nowhere else without a token then. Empty: LOs fetch them at the options' HTTP.
	HTTP string `yaml:"http,omitempty"`
	// MQTT is the address where LOs connect with their certificates, by mutual TLS. They
	// connect nowhere else then.
	MQTT string `yaml:"mqtt,omitempty"`
}

func (o IdentityOptions) validate(external bool) error {
	if o == (IdentityOptions{}) {
		return nil
	}
	if external {
		return errors.New("identity with broker.urls: certificates are the other broker's to check")
	}
	var errs []error
	for key, addr := range map[string]string{"enrol": o.Enrol, "mqtt": o.MQTT} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("identity.%s %q: want host:port; identity.enrol and identity.mqtt go together", key, addr))
		}
	}
	if o.HTTP != "" {
		if _, _, err := net.SplitHostPort(o.HTTP); err != nil {
			errs = append(errs, fmt.Errorf("identity.http %q: want host:port", o.HTTP))
		}
	}
	return errors.Join(errs...)
}

func (o BrokerOptions) clientID() string {
	if o.ClientID != "" {
		return o.ClientID
	}
	name, err := os.Hostname()
	if err != nil {
		name = "unnamed"
	}
	return "colony-co-" + name
}

// SigningOptions say with what the desired states of the sites are signed. The zero value is the
// mode of development: nothing is signed, and the CO logs a warning at each start.
type SigningOptions struct {
	// Dir is a directory that "colony co keys init" made; the same for all replicas.
	Dir string `yaml:"dir,omitempty"`
}

// RetentionOptions say how long records are kept, at least; 0 means for ever.
type RetentionOptions struct {
	// Events is that of the feed of events.
	Events time.Duration `yaml:"events"`
	// History is that of the transitions of deployments, and of deployments that are
	// removed from every node.
	History time.Duration `yaml:"history"`
	// Anomalies is that of reports that could not be applied.
	Anomalies time.Duration `yaml:"anomalies"`
	// Sessions is that of sessions that have ended, with what they showed.
	Sessions time.Duration `yaml:"sessions"`
}

func (o RetentionOptions) validate() error {
	var errs []error
	for key, d := range map[string]time.Duration{"events": o.Events, "history": o.History, "anomalies": o.Anomalies, "sessions": o.Sessions} {
		if d != 0 && d < time.Hour {
			errs = append(errs, fmt.Errorf("retention.%s %s: want an hour or more, or 0 to keep them for ever", key, d))
		}
	}
	return errors.Join(errs...)
}

// GitOptions name the deployments repo.
type GitOptions struct {
	// Remote is a URL that git understands, or a path on this machine.
	Remote string `yaml:"remote"`
	Branch string `yaml:"branch,omitempty"` // default main
	// Interval is how often the remote is asked for changes.
	Interval time.Duration `yaml:"interval"`
	// SSHCommand replaces ssh; CredentialFile is in the form of git-credential-store.
	SSHCommand     string `yaml:"sshCommand,omitempty"`
	CredentialFile string `yaml:"credentialFile,omitempty"`
}

// RemovalOptions bound what one commit may remove. What is more is held until a person confirms it.
type RemovalOptions struct {
	// Percent is the share of the deployments that run at a site, in percent. 100 holds
	// nothing for its number.
	Percent int `yaml:"percent"`
	// Count is how many removals, at all sites together, are never held for their number.
	Count int `yaml:"count"`
	// Sites is at how many sites something may be removed. 0 holds nothing for their number.
	Sites int `yaml:"sites"`
}

// ImportOptions say where application packages may be imported from, besides the CO's
// own registry. The zero value allows nothing.
type ImportOptions struct {
	// Roots are directories of the CO's machine; what is below them may be imported.
	Roots []string `yaml:"roots,omitempty"`
	// Git are repositories, each with all below its URL.
	Git []ImportRemote `yaml:"git,omitempty"`
	// Registries are further OCI registries, host or host:port, that the CO may read, for
	// an import and for a deployment.
	Registries []string `yaml:"registries,omitempty"`
}

// An ImportRemote is a git repository, or a prefix of several, that may be imported.
// The key and the credentials of the deployments repo are never used for it.
type ImportRemote struct {
	// URL is scheme://host/path; the scheme is https, http, ssh or git.
	URL string `yaml:"url"`
	// SSHCommand replaces ssh; CredentialFile is in the form of git-credential-store.
	SSHCommand     string `yaml:"sshCommand,omitempty"`
	CredentialFile string `yaml:"credentialFile,omitempty"`
}

// sources returns what the catalog may import, with the CO's own registry.
func (o ImportOptions) sources(own string) catalog.Sources {
	s := catalog.Sources{Roots: o.Roots, Registries: append([]string{own}, o.Registries...)}
	for _, r := range o.Git {
		s.Remotes = append(s.Remotes, catalog.Remote(r))
	}
	return s
}

// DefaultOptions returns the options that a configuration file changes.
func DefaultOptions() Options {
	return Options{
		StateDir: "/var/lib/colony/co", HTTP: "127.0.0.1:8080", MQTT: "127.0.0.1:1884", RegistryOptions: RegistryOptions{RegistryHost: "registry.colony"},
		Git: GitOptions{Interval: git.DefaultInterval}, PresenceGrace: presence.DefaultGrace, Process: Process{Version: "dev"},
		Retention: RetentionOptions(upkeepdb.DefaultRetention),
		Removals:  RemovalOptions(proposal.DefaultLimits),
		Access:    AccessOptions{Limits: limit.Default},
	}
}

// Validate returns all faults of the options, each with its key.
func (o Options) Validate() error {
	var errs []error
	if !filepath.IsAbs(o.StateDir) {
		errs = append(errs, fmt.Errorf("stateDir %q: want an absolute path", o.StateDir))
	}
	if o.Removals.Percent < 0 || o.Removals.Percent > 100 {
		errs = append(errs, fmt.Errorf("removals.percent %d: want 0 to 100", o.Removals.Percent))
	}
	if o.Removals.Count < 0 {
		errs = append(errs, fmt.Errorf("removals.count %d: want 0 or more", o.Removals.Count))
	}
	if o.Removals.Sites < 0 {
		errs = append(errs, fmt.Errorf("removals.sites %d: want 0 or more", o.Removals.Sites))
	}
	if o.DatabaseURL == "" {
		errs = append(errs, errors.New("databaseURL: missing; want a PostgreSQL URL such as postgres://user@host/colony"))
	}
	if o.Signing.Dir != "" && !filepath.IsAbs(o.Signing.Dir) {
		errs = append(errs, fmt.Errorf("signing.dir %q: want an absolute path", o.Signing.Dir))
	}
	if o.Git.Remote == "" {
		errs = append(errs, errors.New("git.remote: missing; want the URL or path of the deployments repo"))
	}
	if o.RegistryDir != "" && !filepath.IsAbs(o.RegistryDir) {
		errs = append(errs, fmt.Errorf("registryDir %q: want an absolute path", o.RegistryDir))
	}
	errs = append(errs, o.RegistryObjects.Validate("registryObjects"))
	if o.RegistryDir != "" && o.RegistryObjects.Given() {
		errs = append(errs, errors.New("registryDir and registryObjects: the registry is in one of them; leave the other one out"))
	}
	if o.RegistryHost == "" {
		errs = append(errs, errors.New("registryHost: missing; want the name of the CO's own registry"))
	}
	for key, addr := range map[string]string{"http": o.HTTP, "mqtt": o.MQTT} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want host:port", key, addr))
		}
	}
	errs = append(errs, listen.ValidateAll(o.Listeners, mqttListener, machineListener))
	for key, err := range map[string]error{"limits": o.Limits.Validate(), "sessions": o.Sessions.Validate()} {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if len(o.Listeners) > 0 && len(o.Broker.URLs) > 0 {
		errs = append(errs, errors.New("listeners with broker.urls: the CO is not the broker then; configure the listeners of that one"))
	}
	for i, raw := range o.Broker.URLs {
		if u, err := url.Parse(raw); err != nil || !slices.Contains([]string{"tcp", "tls", "ws", "wss", "unix"}, u.Scheme) {
			errs = append(errs, fmt.Errorf("broker.urls[%d] %q: want a URL such as tls://mqtt.example:8883", i, raw))
		}
	}
	if err := o.Import.sources("registry.colony").Check(); err != nil {
		errs = append(errs, fmt.Errorf("import: %w", err))
	}
	errs = append(errs, o.RemoteWrite.validate(), webhook.Validate(o.Webhooks), gates.Validate(o.Rollouts.Gates), o.Retention.validate(), o.Access.validate(o.Identity), o.Identity.validate(len(o.Broker.URLs) > 0))
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	return errors.Join(errs...)
}
