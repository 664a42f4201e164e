package lo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/listen"
	"github.com/colonyfleet/colony/broker/retained"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/lo/control"
	"github.com/colonyfleet/colony/lo/link"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure an LO. The yaml keys are those of its configuration file.
type Options struct {
	// Site is the name of the site. The LO presents itself to the CO with it.
	Site protocol.SiteID `yaml:"site"`
	// StateDir holds the journal, the desired state, the records of the nodes and
	// the images. One LO uses it at a time.
	StateDir string `yaml:"stateDir"`
	// MQTT is the address where the nodes connect.
	MQTT string `yaml:"mqtt"`
	// Listeners are further addresses of the site's broker: TLS, WebSocket, Unix sockets.
	Listeners []listen.Spec `yaml:"listeners,omitempty"`
	// ClientEvents reports to the CO which devices, workloads and applications connect and leave. A CO of release 0.2.0
	// records each report as an anomaly: it is to be upgraded first.
	ClientEvents bool `yaml:"clientEvents,omitempty"`
	// HTTP is the address of the image cache, the metrics and the status. Empty: none.
	HTTP string `yaml:"http,omitempty"`
	// Socket is the path of a Unix socket where people of the machine cordon, drain and hold nodes, without the CO; the user and the
	// group of the LO may. Empty: none.
	Socket string `yaml:"socket,omitempty"`
	// RootKeyFile holds the public root key of the CO's key sets: the LO accepts only desired
	// states that the CO signed. Empty is the mode of development: nothing is checked, and the LO
	// logs a warning at each start.
	RootKeyFile string `yaml:"rootKeyFile,omitempty"`
	// CO says where the Central Orchestrator is.
	CO COOptions `yaml:"co"`
	// Identity says how the LO and its nodes prove their identity.
	Identity IdentityOptions `yaml:"identity,omitempty"`

	// NodeLostAfter is how long a node may be offline before an install or an
	// update on it counts as failed.
	NodeLostAfter time.Duration `yaml:"nodeLostAfter"`
	// PresenceGrace is how long after its start the LO waits for the nodes that were
	// online before, until they count as offline: 1.5 times their keep-alive.
	PresenceGrace time.Duration `yaml:"presenceGrace"`
	// JournalBytes bounds the events that are stored for the CO while it is away.
	JournalBytes int64 `yaml:"journalBytes"`
	// RetainedTopics and RetainedBytes bound what the site's broker retains of
	// machine data.
	RetainedTopics int   `yaml:"retainedTopics"`
	RetainedBytes  int64 `yaml:"retainedBytes"`
	// Limits bound what clients can take from the site's broker. Where its RetainedBytes and
	// RetainedPerIdentity are 0, there is room for what RetainedTopics and RetainedBytes allow.
	Limits limits.Limits `yaml:"limits,omitempty"`
	// Sessions bound the sessions that outlive their connections.
	Sessions sessions.Limits `yaml:"sessions,omitempty"`
	// CacheBytes bounds the images that are stored for the nodes.
	CacheBytes int64 `yaml:"cacheBytes"`
	// UplinkRate limits what is sent to the CO, in bytes per second. 0 means no limit.
	UplinkRate int `yaml:"uplinkRate,omitempty"`

	Version    string               `yaml:"-"` // of the program
	Logger     *slog.Logger         `yaml:"-"`
	Registerer *prometheus.Registry `yaml:"-"` // of the metrics; nil: none
	// Dial opens each connection to the CO, by MQTT and by HTTP, and to registries. Listen opens
	// each listener of the LO: for nodes, for enrolment and for HTTP. Nil: those of the system.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)     `yaml:"-"`
	Listen func(ctx context.Context, network, address string) (net.Listener, error) `yaml:"-"`
	// Disk is where the LO keeps its state. Nil: the file system of the machine.
	Disk disk.FS `yaml:"-"`
	// Now is what the LO takes for the time of day, which may be wrong. Nil: time.Now.
	Now func() time.Time `yaml:"-"`
	// Unsynced reports whether nothing keeps Now in step. Nil: as the kernel says, or never
	// where Now is given.
	Unsynced func() bool `yaml:"-"`
	// SinceBoot is the clock by which the LO counts what has passed since it learnt the time of the CO; it goes on while the machine sleeps. Nil:
	// CLOCK_BOOTTIME, or package time where Now is given.
	SinceBoot func() time.Duration `yaml:"-"`
	// Boot names the boot of the machine that SinceBoot counts from. Empty: as the kernel says, or a name for this start where Now is given.
	Boot string `yaml:"-"`
	// Random names what the LO names, and draws the waits of its retries. Nil: the
	// machine's.
	Random *random.Source `yaml:"-"`
}

// COOptions say how the LO reaches the CO.
type COOptions struct {
	// MQTT are the URLs of the CO's broker, tried in turn, such as tcp://co:1884.
	MQTT []string `yaml:"mqtt"`
	// Enrol are the addresses, host:port, where the LO gets and renews its certificate, tried in
	// turn. With them it connects to the CO by mutual TLS alone. Empty: it proves nothing.
	Enrol []string `yaml:"enrol,omitempty"`
	// HTTP is the base URL of the CO's API and OCI registry. Empty: no image cache,
	// and no desired state that does not come whole by MQTT.
	HTTP string `yaml:"http,omitempty"`
	// KeepAlive is the longest silence on the link before a ping. A broken link is
	// found within 1.5 times that.
	KeepAlive time.Duration `yaml:"keepAlive"`
	// MaxBackoff caps the wait, drawn at random, between two attempts to connect.
	MaxBackoff time.Duration `yaml:"maxBackoff"`
}

// IdentityOptions say how the LO and its nodes prove their identity.
type IdentityOptions struct {
	// TokenFile has the join token of the LO, which it needs once. Default: token in identity
	// of the state directory.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// Enrol is the address where nodes get and renew their certificates, by HTTPS.
	Enrol string `yaml:"enrol,omitempty"`
	// HTTP is the address of the image cache, for nodes with their certificates, by mutual TLS.
	// Nodes are served nowhere else then. Empty: it is at the options' HTTP, for every client that
	// reaches that.
	HTTP string `yaml:"http,omitempty"`
	// MQTT is the address where nodes connect with their certificates, by mutual TLS. They
	// connect nowhere else then. Empty: they prove nothing.
	MQTT string `yaml:"mqtt,omitempty"`
	// Pending says which nodes without a join token wait until their keys are approved.
	Pending PendingOptions `yaml:"pending,omitempty"`
	// Key says where the keys of the LO's certificate and of the site's authority are. "file", the default: in the
	// state directory. "tpm": in the TPM 2.0 at /dev/tpmrm0. "tpm:" and a path: in the TPM at that device.
	Key string `yaml:"key,omitempty"`
}

// PendingOptions say which nodes without a join token wait until their keys are approved.
type PendingOptions struct {
	// Most is how many wait at a time, of one network address, or one /64 of IPv6, a quarter of them. 0: none;
	// nodes enrol with tokens alone.
	Most int `yaml:"most,omitempty"`
	// Serials are the serial numbers of the machines that may wait. They say them themselves, which
	// proves nothing. Empty: all may.
	Serials []string `yaml:"serials,omitempty"`
}

// MaxSocket is the longest path of a Unix socket, in bytes: sun_path of unix(7) without its end.
const MaxSocket = 107

// maxPending bounds PendingOptions.Most.
const maxPending = 1000

// validate returns the faults of the options at an LO that enrols nodes at an address.
func (p PendingOptions) validate(enrol string) error {
	switch {
	case p.Most < 0 || p.Most > maxPending:
		return fmt.Errorf("identity.pending.most %d: want 0 to %d", p.Most, maxPending)
	case p.Most > 0 && enrol == "":
		return errors.New("identity.pending.most without identity.enrol: nodes ask there")
	case p.Most == 0 && len(p.Serials) > 0:
		return errors.New("identity.pending.serials without identity.pending.most: no node waits")
	}
	return nil
}

// validateIdentity returns the faults of what the LO proves, and its nodes.
func (o Options) validateIdentity() error {
	var errs []error
	if o.Identity.Enrol != "" || o.Identity.MQTT != "" {
		for key, addr := range map[string]string{"enrol": o.Identity.Enrol, "mqtt": o.Identity.MQTT} {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				errs = append(errs, fmt.Errorf("identity.%s %q: want host:port; identity.enrol and identity.mqtt go together", key, addr))
			}
		}
		if len(o.CO.Enrol) == 0 {
			errs = append(errs, errors.New("identity.enrol and identity.mqtt without co.enrol: the LO certifies nodes with an authority that it gets there"))
		}
	}
	errs = append(errs, o.Identity.Pending.validate(o.Identity.Enrol))
	if _, err := tpm.Parse(o.Identity.Key); err != nil {
		errs = append(errs, err)
	}
	if addr := o.Identity.HTTP; addr != "" {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("identity.http %q: want host:port", addr))
		}
		if o.Identity.Enrol == "" || o.CO.HTTP == "" {
			errs = append(errs, errors.New("identity.http without identity.enrol and co.http: nodes get there, with certificates of this LO, the images that it fetches from the CO"))
		}
	}
	if len(o.CO.Enrol) == 0 {
		return errors.Join(errs...)
	}
	for _, addr := range o.CO.Enrol {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("co.enrol %q: want host:port", addr))
		}
	}
	for _, raw := range o.CO.MQTT {
		if u, err := url.Parse(raw); err != nil || u.Scheme != "tls" && u.Scheme != "mqtts" {
			errs = append(errs, fmt.Errorf("co.mqtt %q: want a URL such as tls://co.example:8884, as co.enrol is set", raw))
		}
	}
	return errors.Join(errs...)
}

// DefaultOptions returns the options that a configuration file changes.
func DefaultOptions() Options {
	return Options{
		StateDir: "/var/lib/colony/lo", MQTT: "127.0.0.1:1883", HTTP: "127.0.0.1:8081",
		CO:            COOptions{KeepAlive: link.DefaultKeepAlive, MaxBackoff: link.DefaultMaxBackoff},
		NodeLostAfter: control.DefaultNodeLostAfter, PresenceGrace: control.DefaultPresenceGrace,
		JournalBytes: 1 << 30, CacheBytes: 10 << 30, RetainedTopics: 100_000, RetainedBytes: 64 << 20, Version: "dev",
	}
}

// Validate returns all faults of the options, each with its key.
func (o Options) Validate() error {
	var errs []error
	if _, err := protocol.ParseSiteID(string(o.Site)); err != nil {
		errs = append(errs, fmt.Errorf("site: %w", err))
	}
	if !filepath.IsAbs(o.StateDir) {
		errs = append(errs, fmt.Errorf("stateDir %q: want an absolute path", o.StateDir))
	}
	if _, _, err := net.SplitHostPort(o.MQTT); err != nil {
		errs = append(errs, fmt.Errorf("mqtt %q: want host:port", o.MQTT))
	}
	errs = append(errs, o.validateIdentity(), listen.ValidateAll(o.Listeners, mqttListener, machineListener))
	for key, err := range map[string]error{"limits": o.Limits.Validate(), "sessions": o.Sessions.Validate()} {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if o.HTTP != "" {
		if _, _, err := net.SplitHostPort(o.HTTP); err != nil {
			errs = append(errs, fmt.Errorf("http %q: want host:port, or nothing for no listener", o.HTTP))
		}
	}
	if o.Socket != "" && (!filepath.IsAbs(o.Socket) || len(o.Socket) > MaxSocket) {
		errs = append(errs, fmt.Errorf("socket %q: want an absolute path of at most %d bytes, or nothing for none", o.Socket, MaxSocket))
	}
	if o.RootKeyFile != "" && !filepath.IsAbs(o.RootKeyFile) {
		errs = append(errs, fmt.Errorf("rootKeyFile %q: want an absolute path", o.RootKeyFile))
	}
	if len(o.CO.MQTT) == 0 {
		errs = append(errs, errors.New("co.mqtt: missing; want a list of URLs such as tcp://co.example:1884"))
	}
	if u, err := url.Parse(o.CO.HTTP); o.CO.HTTP != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("co.http %q: want a URL such as http://co.example:8080", o.CO.HTTP))
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"nodeLostAfter", o.NodeLostAfter}, {"presenceGrace", o.PresenceGrace}, {"co.keepAlive", o.CO.KeepAlive}, {"co.maxBackoff", o.CO.MaxBackoff},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %s: want more than 0", d.key, d.value))
		}
	}
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"journalBytes", o.JournalBytes}, {"cacheBytes", o.CacheBytes}, {"retainedBytes", o.RetainedBytes}, {"retainedTopics", int64(o.RetainedTopics)},
	} {
		if n.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %d: want more than 0", n.key, n.value))
		}
	}
	if o.UplinkRate < 0 {
		errs = append(errs, fmt.Errorf("uplinkRate %d: want 0 or more", o.UplinkRate))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	return errors.Join(errs...)
}

// brokerLimits are those of the site's broker, with room for the machine data that it is to retain.
func (o Options) brokerLimits() limits.Limits {
	return o.Limits.WithRoomFor(o.RetainedBytes + int64(o.RetainedTopics)*retained.Size(0))
}
