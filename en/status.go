package en

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/colonyfleet/colony/en/metrics"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/sign"
)

// handler serves the agent's status to the machine it runs on.
func (e *EN) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // a reader that is disconnected needs no answer
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = e.writeMetrics(r.Context(), w) // likewise
	})
	return mux
}

// writeMetrics writes the agent's metrics in the text format of Prometheus. The error is that of w.
func (e *EN) writeMetrics(ctx context.Context, w io.Writer) error {
	t := &metrics.Text{}
	e.partMetrics(t)
	if err := e.metrics.Write(ctx, t, e.run); err != nil {
		e.log.WarnContext(ctx, "what containers use is not known", "err", err)
	}
	_, err := w.Write(t.Bytes())
	return err
}

// partMetrics writes what the parts of the agent know.
func (e *EN) partMetrics(t *metrics.Text) {
	gauge := func(name, help string, value uint64) { t.Single(name, metrics.Gauge, help, float64(value)) }
	byReason := func(name, help string, refused map[sign.Reason]uint64) {
		t.Begin(name, metrics.Counter, help)
		for _, reason := range sign.Reasons() {
			t.Sample(name, float64(refused[reason]), "reason", string(reason))
		}
	}
	pending, states := uint64(0), map[lifecycle.State]int{}
	for _, r := range e.runner.Records() {
		states[r.State]++
		pending += uint64(len(r.Reports))
	}
	t.Single("colony_en_info", metrics.Gauge, "1. Its labels say which node the agent is of, and its release.", 1, "site", string(e.opts.Site), "node", string(e.opts.Node), "version", e.opts.Version)
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
	t.Begin("colony_en_commands_total", metrics.Counter, "Commands that have ended, by state.")
	for _, state := range command.States()[1:] { // without running
		t.Sample("colony_en_commands_total", float64(commands.Results[state]), "state", string(state))
	}
	byReason("colony_en_commands_refused_total", "Commands that the CO did not sign, by the reason.", commands.Refused)
	t.Begin("colony_en_deployments", metrics.Gauge, "Deployments on the node, by state.")
	for _, state := range lifecycle.States {
		t.Sample("colony_en_deployments", float64(states[state]), "state", string(state))
	}
}

// flag is 1 for what is true.
func flag(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}
