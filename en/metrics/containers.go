package metrics

import (
	"github.com/colonyfleet/colony/en/engine"
)

// labels are those of a container.
func labels(id engine.ID) []string {
	return []string{"deployment", string(id.Deployment), "component", id.Component, "container", id.Name}
}

func containerCounts(t *Text, ids []engine.ID, containers map[engine.ID]container) {
	t.Begin("colony_en_container_running", Gauge, "1 for a container that runs, 0 for one that does not.")
	for _, id := range ids {
		running := 0.0
		if containers[id].running {
			running = 1
		}
		t.Sample("colony_en_container_running", running, labels(id)...)
	}
	t.Begin("colony_en_container_restarts_total", Counter, "Starts of a container after its first one; it begins again at 0 with another version.")
	for _, id := range ids {
		t.Sample("colony_en_container_restarts_total", float64(containers[id].restarts), labels(id)...)
	}
	t.Begin("colony_en_container_oom_kills_total", Counter, "Ends of a container in which the kernel had killed a process because memory was used up, since the agent started.")
	for _, id := range ids {
		t.Sample("colony_en_container_oom_kills_total", float64(containers[id].oomKills), labels(id)...)
	}
}

// always says of what every engine knows.
func always(engine.Usage) bool { return true }

func hasIO(u engine.Usage) bool { return u.HasIO }

func hasNetwork(u engine.Usage) bool { return u.HasNetwork }

// usageMetrics are what is written of each container that runs.
var usageMetrics = []struct {
	name, kind, help string
	known            func(engine.Usage) bool
	value            func(engine.Usage) float64
}{
	{"colony_en_container_cpu_seconds_total", Counter, "Time of processors that a container has used since its last start.", always, func(u engine.Usage) float64 { return u.CPU.Seconds() }},
	{"colony_en_container_memory_bytes", Gauge, "Memory that a container uses, without file pages that were not used for a while.", always, func(u engine.Usage) float64 { return float64(u.Memory) }},
	{"colony_en_container_memory_limit_bytes", Gauge, "Memory that a container may use; 0: there is no limit.", always, func(u engine.Usage) float64 { return float64(u.MemoryLimit) }},
	{"colony_en_container_disk_read_bytes_total", Counter, "Bytes that a container has read from block devices since its last start, where the kernel counts them.", hasIO, func(u engine.Usage) float64 { return float64(u.Read) }},
	{"colony_en_container_disk_written_bytes_total", Counter, "Bytes that a container has written to block devices since its last start, where the kernel counts them.", hasIO, func(u engine.Usage) float64 { return float64(u.Written) }},
	{"colony_en_container_network_received_bytes_total", Counter, "Bytes that came over the network of a container, where it has one of its own.", hasNetwork, func(u engine.Usage) float64 { return float64(u.Received) }},
	{"colony_en_container_network_sent_bytes_total", Counter, "Bytes that went over the network of a container, where it has one of its own.", hasNetwork, func(u engine.Usage) float64 { return float64(u.Sent) }},
}

func containerUsage(t *Text, used []engine.Usage) {
	for _, m := range usageMetrics {
		t.Begin(m.name, m.kind, m.help)
		for _, u := range used {
			if m.known(u) {
				t.Sample(m.name, m.value(u), labels(u.ID)...)
			}
		}
	}
}
