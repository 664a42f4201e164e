package en

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign"
)

// handler serves the agent's status to the machine it runs on.
func (e *EN) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // a reader that is disconnected needs no answer
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		e.writeMetrics(w)
	})
	return mux
}

// writeMetrics writes the agent's metrics in the text format of Prometheus.
func (e *EN) writeMetrics(w io.Writer) {
	begin := func(name, kind, help string) {
		_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	gauge := func(name, help string, value uint64) {
		begin(name, "gauge", help)
		_, _ = fmt.Fprintf(w, "%s %d\n", name, value)
	}
	byReason := func(name, help string, refused map[sign.Reason]uint64) {
		begin(name, "counter", help)
		for _, reason := range sign.Reasons() {
			_, _ = fmt.Fprintf(w, "%s{reason=%q} %d\n", name, reason, refused[reason])
		}
	}
	pending, states := uint64(0), map[string]int{}
	for _, r := range e.runner.Records() {
		states[string(r.State)]++
		pending += uint64(len(r.Reports))
	}
	gauge("colony_en_link_up", "1 while the agent is connected to the LO.", flag(e.link.Up()))
	gauge("colony_en_reports_pending", "Reports that the LO has not acknowledged.", pending)
	gauge("colony_en_disk_full", "1 while the disk of the state directory has no room.", flag(e.disk.Problem() != ""))
	gauge("colony_en_clock_unsynced", "1 while the machine's clock is not synchronised: times of the node may be wrong.", flag(e.opts.Unsynced()))
	gauge("colony_en_desired_checked", "1 where the signatures of desired states are checked.", flag(e.opts.RootKeyFile != ""))
	byReason("colony_en_desired_refused_total", "Desired states that were refused, by the reason.", e.runner.Refused())
	if number, ok := e.identity.Listed(); ok {
		gauge("colony_en_revocations_number", "Number of the list of revoked keys in force; 0: there is none.", number)
		byReason("colony_en_revocations_refused_total", "Lists of revoked keys that were refused, by the reason.", e.identity.Refused())
	}
	commands := e.commands.Totals()
	gauge("colony_en_commands_running", "Commands that are executed now.", uint64(commands.Running))
	gauge("colony_en_commands_waiting", "Commands that wait to be executed, or for the time of the CO.", uint64(commands.Waiting))
	gauge("colony_en_commands_held", "Commands that the agent remembers, so that none is executed twice.", uint64(commands.Held))
	begin("colony_en_commands_total", "counter", "Commands that have ended, by state.")
	for _, state := range command.States()[1:] { // without running
		_, _ = fmt.Fprintf(w, "colony_en_commands_total{state=%q} %d\n", state, commands.Results[state])
	}
	byReason("colony_en_commands_refused_total", "Commands that the CO did not sign, by the reason.", commands.Refused)
	begin("colony_en_deployments", "gauge", "Deployments on the node, by state.")
	for _, state := range slices.Sorted(maps.Keys(states)) {
		_, _ = fmt.Fprintf(w, "colony_en_deployments{state=%q} %d\n", state, states[state])
	}
}

// flag is 1 for what is true.
func flag(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
