// Package sim is a site without gateways: simulated nodes that use the
// protocol of the agent to a real LO, so that an LO, its link and a CO can be
// tried with a thousand nodes on one machine.
//
// A simulated node is true on the wire and empty behind it. It connects with a
// last will, announces its presence and inventory, sends heartbeats, numbers its
// reports and keeps each until the LO has acknowledged it, as the agent does. It
// runs nothing: an assignment goes through INSTALLING or UPDATING to INSTALLED as
// fast as its reports are acknowledged, and churn makes containers restart and
// deployments fail that were never there.
//
// What happens to which node is decided by the seed. When it happens depends on
// the clock and on the LO.
package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

// Options of a Fleet. Site, URL, Nodes and Logger must be given.
type Options struct {
	Site  protocol.SiteID
	URL   string // of the LO's broker, such as tcp://127.0.0.1:1883
	Nodes int
	// Seed decides what churn does to whom, and is part of the names of the agents.
	Seed uint64

	// KeepAlive is that of the nodes' connections. 0 means 30 s.
	KeepAlive time.Duration
	// Heartbeat is the time between two of a node. 0 means 30 s.
	Heartbeat time.Duration
	// MaxBackoff caps the wait before a node connects again. 0 means 5 s.
	MaxBackoff time.Duration

	// Deployments are what each node runs from the beginning without an assignment, as
	// the nodes of a site whose LO was installed anew. An LO that has a desired state
	// removes it if that does not name it.
	Deployments []protocol.DeploymentName
	// SelfHeal makes a deployment that failed begin again with the next churn, as the
	// Deployments do, and not only where the LO assigns: more transitions than agents make.
	SelfHeal bool
	// Acknowledged is called after the LO has acknowledged a report, in the order of
	// the node's reports. It may be called for different nodes at once. May be nil.
	Acknowledged func(protocol.DeploymentStatus)

	Logger *slog.Logger
}

func (o *Options) complete() error {
	if _, err := protocol.ParseSiteID(string(o.Site)); err != nil {
		return fmt.Errorf("simulated site: %w", err)
	}
	if o.URL == "" || o.Nodes < 1 || o.Logger == nil {
		return errors.New("simulated site: want the URL of the LO, one node or more, and a logger")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.KeepAlive, 30*time.Second)
	def(&o.Heartbeat, 30*time.Second)
	def(&o.MaxBackoff, 5*time.Second)
	return nil
}

// Stats counts what the nodes did since the start.
type Stats struct {
	Up           int    // nodes that are connected and announced now
	Made         uint64 // reports
	Acknowledged uint64 // reports that the LO acknowledged
	Refused      uint64 // reports that the LO refused permanently: a fault of the LO or of this package
}

// A Node is the truth about one node: what the LO and the CO should say of it
// once everything has arrived.
type Node struct {
	ID          protocol.NodeID
	Online      bool
	Deployments map[protocol.DeploymentName]protocol.DeploymentStatus // the last report of each
}

// A Fleet is the simulated nodes of one site. Its methods may be called concurrently.
type Fleet struct {
	opts   Options
	nodes  []*node
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	rng   *rand.Rand
	churn float64
	tempo notify.Signal // churn is another one
	stats Stats
}

// New returns a fleet whose nodes are not connected. Their names are node-0001 and on.
func New(o Options) (*Fleet, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	f := &Fleet{opts: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), tempo: notify.New()} //nolint:gosec // chosen by the seed
	for i := range o.Nodes {
		f.nodes = append(f.nodes, newNode(f, i+1))
	}
	return f, nil
}

// Start connects the nodes, and keeps them connected until Stop or Leave. It does
// not wait for the LO. It is called once.
func (f *Fleet) Start(ctx context.Context) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	for _, n := range f.nodes {
		f.wg.Go(func() { n.run(run) })
		if err := n.join(ctx); err != nil {
			return errors.Join(err, f.Stop(ctx))
		}
	}
	f.wg.Go(func() { f.stir(run) })
	return nil
}

// Stop disconnects all nodes, without a goodbye and without their last wills, and
// waits for their goroutines or for ctx.
func (f *Fleet) Stop(ctx context.Context) error {
	if f.cancel != nil {
		f.cancel()
	}
	errs := make([]error, len(f.nodes))
	var wg sync.WaitGroup
	for i, n := range f.nodes {
		wg.Go(func() { errs[i] = n.disconnect(ctx) })
	}
	wg.Wait()
	f.wg.Wait()
	return errors.Join(errs...)
}

// Leave makes node i, from 0, say goodbye and go. Its reports wait.
func (f *Fleet) Leave(ctx context.Context, i int) error { return f.nodes[i].leave(ctx) }

// Join connects node i again after Leave.
func (f *Fleet) Join(ctx context.Context, i int) error { return f.nodes[i].join(ctx) }

// Churn sets how many reports per second the nodes together make by themselves:
// restarts, failures, recoveries. 0 ends it.
func (f *Fleet) Churn(perSecond float64) {
	f.mu.Lock()
	f.churn = perSecond
	f.mu.Unlock()
	f.tempo.Notify()
}

// Settled reports whether each node that has not left is connected and every
// report is acknowledged.
func (f *Fleet) Settled() bool {
	for _, n := range f.nodes {
		if !n.settled() {
			return false
		}
	}
	return true
}

// Truth returns what is true of each node now, in the order of the names.
func (f *Fleet) Truth() []Node {
	out := make([]Node, len(f.nodes))
	for i, n := range f.nodes {
		out[i] = n.truth()
	}
	return out
}

// Stats returns the counts.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	s := f.stats
	f.mu.Unlock()
	for _, n := range f.nodes {
		if n.announced() {
			s.Up++
		}
	}
	return s
}

func (f *Fleet) count(add func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.stats)
}

// stir makes churn.
func (f *Fleet) stir(ctx context.Context) {
	const step = 20 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	due := 0.0
	last := time.Now()
	for {
		f.mu.Lock()
		rate := f.churn
		f.mu.Unlock()
		var ticks <-chan time.Time // none while there is nothing to do
		if rate > 0 {
			ticks = tick.C
		}
		select {
		case <-ctx.Done():
			return
		case <-f.tempo.C():
			due, last = 0, time.Now()
			continue
		case <-ticks:
		}
		now := time.Now()
		due += rate * now.Sub(last).Seconds()
		last = now
		for ; due >= 1; due-- {
			f.mu.Lock()
			n, roll := f.nodes[f.rng.IntN(len(f.nodes))], f.rng.Uint64()
			f.mu.Unlock()
			n.disturb(roll)
		}
	}
}
