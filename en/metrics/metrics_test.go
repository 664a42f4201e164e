package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/memory"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/metricstest"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

var web = engine.Container{
	ID: engine.ID{Deployment: "shop", Component: "main", Name: "web"}, Digest: "sha256:1", Spec: protocol.Container{Name: "web", Image: "r/web"},
}

// text returns what m writes, which Prometheus can read.
func text(t *testing.T, m *Metrics, run engine.Meter) string {
	t.Helper()
	var out Text
	if err := m.Write(t.Context(), &out, run); err != nil {
		t.Fatal(err)
	}
	metricstest.Check(t, out.Bytes(), "colony_en_")
	return string(out.Bytes())
}

func wants(t *testing.T, got string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no %s in\n%s", line, got)
		}
	}
}

// TestEngineIsCounted pulls, starts, fails and lists by an engine that is counted.
func TestEngineIsCounted(t *testing.T) {
	t.Parallel()
	machine := memory.New(memory.Options{Usage: func(engine.Container) engine.Usage {
		return engine.Usage{CPU: 1500 * time.Millisecond, Memory: 7, MemoryLimit: 8, Read: 1, Written: 2, HasIO: true, Received: 3, Sent: 4, HasNetwork: true}
	}})
	m := New(nil)
	run := m.Runtime(machine)
	machine.Fail(memory.Pull, engine.Errorf(protocol.RegistryUnavailable, "away"), nil)
	if err := run.Pull(t.Context(), "r/web", nil); err == nil {
		t.Error("a pull that fails has no error")
	}
	if err := run.Pull(t.Context(), "r/web", nil); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run.Start(gone, web); err == nil {
		t.Error("a start that was given up has no error")
	}
	if err := run.Start(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if err := machine.Exit(web.ID, 1); err != nil {
		t.Fatal(err)
	}
	if err := run.Start(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if _, err := run.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	const of = `{deployment="shop",component="main",container="web"} `
	wants(t, text(t, m, run),
		`colony_en_pulls_total{outcome="`+string(protocol.RegistryUnavailable)+`"} 1`, `colony_en_pulls_total{outcome="ok"} 1`,
		"colony_en_pull_seconds_count 1", `colony_en_pull_seconds_bucket{le="+Inf"} 1`,
		`colony_en_starts_total{outcome="ended"} 1`, `colony_en_starts_total{outcome="ok"} 2`,
		"colony_en_container_running"+of+"1", "colony_en_container_restarts_total"+of+"1", "colony_en_container_oom_kills_total"+of+"0",
		"colony_en_container_cpu_seconds_total"+of+"1.5", "colony_en_container_memory_bytes"+of+"7", "colony_en_container_memory_limit_bytes"+of+"8",
		"colony_en_container_disk_read_bytes_total"+of+"1", "colony_en_container_disk_written_bytes_total"+of+"2",
		"colony_en_container_network_received_bytes_total"+of+"3", "colony_en_container_network_sent_bytes_total"+of+"4",
	)
	if err := machine.Exit(web.ID, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := run.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := text(t, m, run)
	wants(t, stopped, "colony_en_container_running"+of+"0")
	if strings.Contains(stopped, "colony_en_container_memory_bytes{") {
		t.Error("a container uses memory that does not run")
	}
	if err := run.Remove(t.Context(), web.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := run.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text(t, m, run), `container="web"`) {
		t.Error("a container that was removed is still shown")
	}
}

// TestOutOfMemory counts each end for want of memory once, however often it is listed, and no list that is older than the last one.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	m := New(nil)
	first := time.Unix(1000, 0)
	exit := func(at time.Time) []engine.Status {
		return []engine.Status{{ID: web.ID, State: engine.Exited, OutOfMemory: true, ExitedAt: at, Restarts: uint32(at.Sub(first).Seconds())}}
	}
	m.observe(1, exit(first))
	m.observe(2, exit(first))
	m.observe(4, exit(first.Add(time.Second)))
	m.observe(3, exit(first)) // it was begun before, and came later
	wants(t, text(t, m, memory.New(memory.Options{})),
		`colony_en_container_oom_kills_total{deployment="shop",component="main",container="web"} 2`, `colony_en_container_restarts_total{deployment="shop",component="main",container="web"} 1`)
}

// TestProbesAndTransitions counts answers of probes, and transitions that were stored.
func TestProbesAndTransitions(t *testing.T) {
	t.Parallel()
	m := New([]plan.Record{{Deployment: "shop", State: lifecycle.Installed}})
	for _, a := range []struct {
		ok  bool
		err error
	}{{true, nil}, {true, nil}, {false, nil}, {false, errors.New("away")}} {
		probe := m.Probe(func(context.Context, plan.Target) (bool, string, error) { return a.ok, "", a.err })
		if ok, _, err := probe(t.Context(), plan.Target{}); ok != a.ok || !errors.Is(err, a.err) {
			t.Errorf("probe answers %t, %v; want %t, %v", ok, err, a.ok, a.err)
		}
	}
	for _, s := range []lifecycle.State{lifecycle.Installed, lifecycle.Updating, lifecycle.Updating, lifecycle.Installed} {
		m.Saved(plan.Record{Deployment: "shop", State: s})
	}
	m.Removed("shop")
	m.Saved(plan.Record{Deployment: "shop", State: lifecycle.Installing})
	wants(t, text(t, m, memory.New(memory.Options{})),
		`colony_en_probes_total{result="healthy"} 2`, `colony_en_probes_total{result="unhealthy"} 1`, `colony_en_probes_total{result="unanswered"} 1`,
		`colony_en_transitions_total{state="INSTALLED"} 1`, `colony_en_transitions_total{state="UPDATING"} 1`, `colony_en_transitions_total{state="INSTALLING"} 1`,
		`colony_en_transitions_total{state="FAILED"} 0`)
}

// TestLabelsAreEscaped writes a value that has all that must be escaped.
func TestLabelsAreEscaped(t *testing.T) {
	t.Parallel()
	var out Text
	out.Single("colony_en_info", Gauge, "x", 1, "version", "a\"b\\c\nd")
	wants(t, string(out.Bytes()), `colony_en_info{version="a\"b\\c\nd"} 1`)
}
