// Package lo is the Local Orchestrator of a site, put together from its parts: the
// site's MQTT broker; the records of the nodes and the loop that decides (control);
// the journal, its uplink and the link to the CO; machine data in both directions; the
// image cache and the HTTP interface. It wires the parts and has no state of its own.
//
// No part waits for the CO: without it the site goes on with the desired state that it
// has, and the journal grows.
package lo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/hostclock"
	"github.com/colonyfleet/colony/internal/stopper"
)

// An LO is one Local Orchestrator. Start and Stop are called once each.
type LO struct{ *parts }

// New returns an LO that is not started. The error lists every fault of o.
func New(o Options) (*LO, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("options of the LO:\n%w", err)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	o.Unsynced = hostclock.Marks(o.Unsynced, o.Now != nil)
	o.SinceBoot = hostclock.Elapsed(o.SinceBoot, o.Now != nil)
	if o.Boot == "" && o.Now == nil {
		o.Boot = hostclock.Boot()
	}
	if o.Boot == "" {
		o.Boot = o.Random.Text("boot")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	watched := disk.Watch(o.Disk, o.StateDir)
	o.Disk = watched
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "colony_lo_http_tls_errors_total", Help: "Connections to the ports of the LO for HTTP that ended within the handshake of TLS."})
	return &LO{&parts{opts: o, disk: watched, group: stopper.New(), proof: proof{tlsFailed: failed}}}, nil
}

// Start brings the LO up and returns when nodes can connect. It does not wait for
// the CO. When it fails nothing is left running.
func (l *LO) Start(ctx context.Context) error {
	if err := l.parts.start(ctx); err != nil {
		return errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
	}
	l.opts.Logger.InfoContext(ctx, "lo is up", "site_id", string(l.opts.Site), "mqtt", l.MQTTAddr(), "http", l.HTTPAddr(), "version", l.opts.Version)
	return nil
}

// Failed delivers the error of a part that cannot go on; the LO should be stopped.
func (l *LO) Failed() <-chan error { return l.group.Failed() }

// MQTTAddr returns where nodes connect.
func (l *LO) MQTTAddr() string { return l.broker.Addr(mqttListener) }

// MachineAddr returns where nodes connect with their certificates, "" where they have none.
func (l *LO) MachineAddr() string { return l.broker.Addr(machineListener) }

// EnrolAddr returns where nodes enrol, or "".
func (l *LO) EnrolAddr() string { return l.enrolAddr }

// ImagesAddr returns where nodes fetch images by mutual TLS, or "".
func (l *LO) ImagesAddr() string { return l.imagesAddr }

// HTTPAddr returns where the image cache, the metrics and the status are, or "".
func (l *LO) HTTPAddr() string {
	if l.listener == nil {
		return ""
	}
	return l.listener.Addr().String()
}

// Stop ends all parts, the last started first, each within ctx, and joins their errors.
func (l *LO) Stop(ctx context.Context) error { return l.group.Stop(ctx) }
