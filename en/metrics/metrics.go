// Package metrics counts what the agent and its container engine do, and writes it with what the containers use. The agent has no
// library for metrics: its memory is that of a gateway.
package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Runtime is a container engine with its host.
type Runtime interface {
	engine.Engine
	engine.Host
	engine.Positions
	engine.Programs
	engine.Meter
}

// Metrics count. They may be used concurrently.
type Metrics struct {
	mu            sync.Mutex // protects what follows
	pulls, starts map[string]uint64
	pullSeconds   durations
	probes        map[string]uint64
	states        map[protocol.DeploymentName]lifecycle.State
	transitions   map[lifecycle.State]uint64
	// containers are as the list has them that was begun last of those that came, which is applied.
	containers    map[engine.ID]container
	begun, listed uint64

	// writing has one scrape at a time.
	writing sync.Mutex
}

// A container is what lists said of it.
type container struct {
	running   bool
	restarts  uint32
	oomKills  uint64
	oomExited time.Time // when it ended last for want of memory
}

// The outcomes of what has no code of a failure.
const (
	ok    = "ok"
	ended = "ended" // the agent gave it up: it stops, or something else is desired
)

// The results of probes.
const (
	healthy    = "healthy"
	unhealthy  = "unhealthy"
	unanswered = "unanswered"
)

// New returns metrics that have counted nothing. Records are those that the agent begins with.
func New(records []plan.Record) *Metrics {
	m := &Metrics{
		pulls: map[string]uint64{ok: 0}, starts: map[string]uint64{ok: 0}, probes: map[string]uint64{healthy: 0, unhealthy: 0, unanswered: 0},
		states: map[protocol.DeploymentName]lifecycle.State{}, transitions: map[lifecycle.State]uint64{}, containers: map[engine.ID]container{},
	}
	for _, r := range records {
		m.states[r.Deployment] = r.State
	}
	return m
}

// Saved counts the transition of a record that was stored, where it is one.
func (m *Metrics) Saved(r plan.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[r.Deployment] != r.State {
		m.transitions[r.State]++
		m.states[r.Deployment] = r.State
	}
}

// Removed forgets a record.
func (m *Metrics) Removed(name protocol.DeploymentName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.states, name)
}

// Probe returns probe with its answers counted.
func (m *Metrics) Probe(probe func(context.Context, plan.Target) (bool, string, error)) func(context.Context, plan.Target) (bool, string, error) {
	return func(ctx context.Context, t plan.Target) (bool, string, error) {
		good, message, err := probe(ctx, t)
		result := unhealthy
		switch {
		case err != nil:
			result = unanswered
		case good:
			result = healthy
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.probes[result]++
		return good, message, err
	}
}

// Runtime returns run with what it does counted.
func (m *Metrics) Runtime(run Runtime) Runtime { return &counted{run, m} }

// counted is a Runtime that counts.
type counted struct {
	Runtime
	m *Metrics
}

// outcome names how a call ended, for the label.
func outcome(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return ok
	case ctx.Err() != nil:
		return ended
	default:
		return string(engine.CodeOf(err))
	}
}

// Pull counts the pull and its time.
func (c *counted) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	began := time.Now()
	err := c.Runtime.Pull(ctx, ref, report)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.pulls[outcome(ctx, err)]++
	if err == nil {
		c.m.pullSeconds.observe(time.Since(began).Seconds())
	}
	return err
}

// Start counts the start.
func (c *counted) Start(ctx context.Context, k engine.Container) error {
	err := c.Runtime.Start(ctx, k)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.starts[outcome(ctx, err)]++
	return err
}

// List remembers what it says of each container, so that a scrape need not ask.
func (c *counted) List(ctx context.Context) ([]engine.Status, error) {
	c.m.mu.Lock()
	c.m.begun++
	turn := c.m.begun
	c.m.mu.Unlock()
	list, err := c.Runtime.List(ctx)
	if err == nil {
		c.m.observe(turn, list)
	}
	return list, err
}

// observe applies a list, unless one that was begun later was applied before.
func (m *Metrics) observe(turn uint64, list []engine.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if turn < m.listed {
		return
	}
	m.listed = turn
	all := make(map[engine.ID]container, len(list))
	for _, s := range list {
		c := m.containers[s.ID]
		c.running, c.restarts = s.State == engine.Running, s.Restarts
		if s.OutOfMemory && !s.ExitedAt.Equal(c.oomExited) {
			c.oomKills++
			c.oomExited = s.ExitedAt
		}
		all[s.ID] = c
	}
	m.containers = all
}

// patience bounds what a scrape asks the container engine.
const patience = 5 * time.Second

// Write writes all metrics of the engine and the containers; run says what those use. With an error that is left out. Of several calls
// one works at a time.
func (m *Metrics) Write(ctx context.Context, t *Text, run engine.Meter) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ids, containers := m.counts(t)
	containerCounts(t, ids, containers)
	ids = slices.DeleteFunc(ids, func(id engine.ID) bool { return !containers[id].running })
	used, err := run.Usage(ctx, ids)
	containerUsage(t, used)
	return err
}

// counts writes the counters, and returns the containers. The caller must not change them.
func (m *Metrics) counts(t *Text) ([]engine.ID, map[engine.ID]container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.Begin("colony_en_transitions_total", Counter, "Transitions of deployments on the node, by the state that they led to.")
	for _, state := range lifecycle.States {
		t.Sample("colony_en_transitions_total", float64(m.transitions[state]), "state", string(state))
	}
	byLabel := func(name, help, label string, counts map[string]uint64) {
		t.Begin(name, Counter, help)
		for _, value := range slices.Sorted(maps.Keys(counts)) {
			t.Sample(name, float64(counts[value]), label, value)
		}
	}
	byLabel("colony_en_pulls_total", "Pulls of images by outcome: ok, also where the image was there; ended, as the agent gave it up; or the code of the failure.", "outcome", m.pulls)
	t.durations("colony_en_pull_seconds", "Time of pulls that were ok.", m.pullSeconds)
	byLabel("colony_en_starts_total", "Starts of containers by outcome: ok; ended, as the agent gave it up; or the code of the failure.", "outcome", m.starts)
	byLabel("colony_en_probes_total", "Probes of containers by result: healthy, unhealthy, or unanswered where the container could not be asked.", "result", m.probes)
	return slices.SortedFunc(maps.Keys(m.containers), engine.ID.Compare), m.containers
}
