package co

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a CO. The yaml keys are those of its configuration file.
type Options struct {
	// StateDir holds the OCI registry and the cache of the deployments repo. What
	// is true is elsewhere: in git and in PostgreSQL.
	StateDir string `yaml:"stateDir"`
	// DatabaseURL is a PostgreSQL URL or key=value string.
	DatabaseURL string `yaml:"databaseURL"`
	// HTTP is the address of the API, the OCI registry and the metrics.
	HTTP string `yaml:"http"`
	// MQTT is the address where LOs connect.
	MQTT string `yaml:"mqtt"`
	// Git is the deployments repo.
	Git GitOptions `yaml:"git"`
	// RegistryHost is the name under which packages and images of the CO's own
	// registry are referred to.
	RegistryHost string `yaml:"registryHost"`
	// PlainHTTP lists further registries, host or host:port, without TLS.
	PlainHTTP []string `yaml:"plainHTTP,omitempty"`
	// PresenceGrace is how long after its start the CO waits for the sites that it
	// holds to be online, before it records those it did not hear of as offline.
	PresenceGrace time.Duration `yaml:"presenceGrace"`

	Version    string               `yaml:"-"`
	Logger     *slog.Logger         `yaml:"-"`
	Registerer *prometheus.Registry `yaml:"-"`
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

// DefaultOptions returns the options that a configuration file changes.
func DefaultOptions() Options {
	return Options{
		StateDir: "/var/lib/colony/co", HTTP: "127.0.0.1:8080", MQTT: "127.0.0.1:1884", RegistryHost: "registry.colony",
		Git: GitOptions{Interval: 2 * time.Second}, PresenceGrace: 30 * time.Second, Version: "dev",
	}
}

// Validate returns all faults of the options, each with its key.
func (o Options) Validate() error {
	var errs []error
	if !filepath.IsAbs(o.StateDir) {
		errs = append(errs, fmt.Errorf("stateDir %q: want an absolute path", o.StateDir))
	}
	if o.DatabaseURL == "" {
		errs = append(errs, errors.New("databaseURL: missing; want a PostgreSQL URL such as postgres://user@host/colony"))
	}
	if o.Git.Remote == "" {
		errs = append(errs, errors.New("git.remote: missing; want the URL or path of the deployments repo"))
	}
	if o.RegistryHost == "" {
		errs = append(errs, errors.New("registryHost: missing; want the name of the CO's own registry"))
	}
	for key, addr := range map[string]string{"http": o.HTTP, "mqtt": o.MQTT} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want host:port", key, addr))
		}
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	return errors.Join(errs...)
}
