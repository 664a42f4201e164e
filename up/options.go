// Package up runs all of Colony on one machine: CO, LO and EN as processes of
// their own under one supervisor, with a private PostgreSQL and a private
// containerd, a sample registry and a sample deployment. It is the home profile,
// the demonstration and the base of the end-to-end tests.
package up

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/colonyfleet/colony/protocol"
)

// Options say where and how a fleet of one machine runs.
type Options struct {
	// StateDir holds everything: databases, journals, images, volumes, logs, pids.
	StateDir string
	Site     string
	Node     string
	// Labels of the node, key=value.
	Labels map[string]string

	Addresses

	// DatabaseURL names an existing PostgreSQL; empty: a private one is started.
	DatabaseURL string
	// Containerd is the socket of an existing containerd; empty: a private one is started.
	Containerd string
	// GitRemote is the deployments repo; empty: a bare repository below StateDir.
	GitRemote string

	// ImportRoots are directories whose applications may be imported, absolute.
	ImportRoots []string
	// ImportRegistries are OCI registries, host or host:port, whose packages and images may be
	// imported besides those of the CO's own.
	ImportRegistries []string
	// Samples is the folder of the sample applications, SampleBinaries that of
	// their programs. Empty: no samples.
	Samples        string
	SampleBinaries string
	// SampleParameters are set in the sample that is deployed.
	SampleParameters map[string]any

	// Program is the colony executable that the roles run; Agent is colony-en.
	// Empty: this program, and the colony-en beside it or this program's role en.
	Program string
	Agent   string

	LogLevel string
	Version  string
	Out      io.Writer
}

// Addresses are those that the fleet listens on, host:port.
type Addresses struct {
	HTTPAddr   string // of the CO: API, OCI registry, metrics
	LOHTTPAddr string // of the LO: image cache, metrics, status

	// COMQTTAddr and LOMQTTAddr are plain, for clients that are no part of Colony: applications,
	// devices, workloads. A machine that comes there is refused.
	COMQTTAddr, LOMQTTAddr string
	// COTLSAddr is where LOs connect with their certificates, and LOTLSAddr where nodes do.
	COTLSAddr, LOTLSAddr string
	// COEnrolAddr is where LOs get their certificates, and LOEnrolAddr where nodes do.
	COEnrolAddr, LOEnrolAddr string
	// COHTTPSAddr is where LOs fetch specifications and images with their certificates, and LOHTTPSAddr where nodes
	// fetch images.
	COHTTPSAddr, LOHTTPSAddr string
}

// DefaultOptions returns the options of a fleet on loopback.
func DefaultOptions() Options {
	return Options{
		StateDir: "/var/lib/colony", Site: "local", Node: "gateway-1", Labels: map[string]string{"role": "gateway"},
		Addresses: Addresses{
			HTTPAddr: "127.0.0.1:8080", COMQTTAddr: "127.0.0.1:1884", LOMQTTAddr: "127.0.0.1:1883", LOHTTPAddr: "127.0.0.1:8081",
			COTLSAddr: "127.0.0.1:8884", LOTLSAddr: "127.0.0.1:8883", COEnrolAddr: "127.0.0.1:8886", LOEnrolAddr: "127.0.0.1:8885",
			COHTTPSAddr: "127.0.0.1:8888", LOHTTPSAddr: "127.0.0.1:8887",
		},
		LogLevel: "info", Out: os.Stdout,
	}
}

// Validate returns all faults of the options.
func (o Options) Validate() error {
	var errs []error
	if o.StateDir == "" || !filepath.IsAbs(o.StateDir) {
		errs = append(errs, fmt.Errorf("state directory %q: want an absolute path", o.StateDir))
	}
	if _, err := protocol.ParseSiteID(o.Site); err != nil {
		errs = append(errs, err)
	}
	if _, err := protocol.ParseNodeID(o.Node); err != nil {
		errs = append(errs, err)
	}
	for _, a := range o.addresses() {
		_, port, err := net.SplitHostPort(a.addr)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 {
			errs = append(errs, fmt.Errorf("%s %q: want host:port, the port from 1 to 65535", a.flag, a.addr))
		}
	}
	for k := range o.Labels {
		if k == "" {
			errs = append(errs, errors.New("--label: a label without a name"))
		}
	}
	if err := new(slog.Level).UnmarshalText([]byte(o.LogLevel)); err != nil {
		errs = append(errs, fmt.Errorf("--log-level %q: want debug, info, warn or error", o.LogLevel))
	}
	for _, root := range o.ImportRoots {
		if !filepath.IsAbs(root) {
			errs = append(errs, fmt.Errorf("--import-root %q: want an absolute path", root))
		}
	}
	errs = append(errs, o.checkSamples())
	if os.Geteuid() != 0 && o.Containerd == "" {
		errs = append(errs, errors.New("running containers needs root: run this as root, or name a containerd that you may use with --containerd"))
	}
	return errors.Join(errs...)
}

// checkSamples makes sure that the folders of the samples exist.
func (o Options) checkSamples() error {
	if o.Samples == "" {
		return nil
	}
	if fi, err := os.Stat(filepath.Join(o.Samples, "registry")); err != nil || !fi.IsDir() {
		return fmt.Errorf("--samples %q: it has no folder registry: want Colony's folder examples", o.Samples)
	}
	if fi, err := os.Stat(o.SampleBinaries); err != nil || !fi.IsDir() {
		return fmt.Errorf("--sample-binaries %q: no such folder: want the one that \"make build\" leaves, bin/samples", o.SampleBinaries)
	}
	return nil
}

// A listenAddr is an address to listen on and the flag that sets it.
type listenAddr struct{ flag, addr string }

func (o Options) addresses() []listenAddr {
	return []listenAddr{
		{"--http", o.HTTPAddr},
		{"--co-mqtt", o.COMQTTAddr},
		{"--lo-mqtt", o.LOMQTTAddr},
		{"--lo-http", o.LOHTTPAddr},
		{"--co-mqtt-tls", o.COTLSAddr},
		{"--lo-mqtt-tls", o.LOTLSAddr},
		{"--co-enrol", o.COEnrolAddr},
		{"--lo-enrol", o.LOEnrolAddr},
		{"--co-https", o.COHTTPSAddr},
		{"--lo-https", o.LOHTTPSAddr},
	}
}

// checkPorts makes sure that the fleet can listen on its addresses: that no other
// process does, nor another part of the fleet.
func (o Options) checkPorts() error {
	var errs []error
	for _, a := range o.addresses() {
		l, err := net.Listen("tcp", a.addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, fmt.Errorf("%s %s: something else listens there; choose another with %s", a.flag, a.addr, a.flag))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s %s: %w; choose another with %s", a.flag, a.addr, err, a.flag))
		default:
			defer l.Close() // after the others, so that two parts with one address are found
		}
	}
	return errors.Join(errs...)
}

// RegistryHost is the name under which packages and images of the CO's own
// registry are referred to.
const RegistryHost = "registry.colony"
