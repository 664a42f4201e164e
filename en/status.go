package en

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/colonyfleet/colony/protocol/sign"
)

// handler serves the agent's status to the machine it runs on.
func (e *EN) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // a reader that is disconnected needs no answer
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		up, states := 0, map[string]int{}
		if e.link.Up() {
			up = 1
		}
		full := 0
		if e.disk.Problem() != "" {
			full = 1
		}
		pending := 0
		for _, r := range e.runner.Records() {
			states[string(r.State)]++
			pending += len(r.Reports)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_link_up gauge\ncolony_en_link_up %d\n", up)
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_reports_pending gauge\ncolony_en_reports_pending %d\n", pending)
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_disk_full gauge\ncolony_en_disk_full %d\n", full)
		unsynced := 0
		if e.opts.Unsynced() {
			unsynced = 1
		}
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_clock_unsynced gauge\ncolony_en_clock_unsynced %d\n", unsynced)
		checked := 0
		if e.opts.RootKeyFile != "" {
			checked = 1
		}
		_, _ = fmt.Fprintf(w, "# TYPE colony_en_desired_checked gauge\ncolony_en_desired_checked %d\n", checked)
		refused := e.runner.Refused()
		_, _ = fmt.Fprintln(w, "# TYPE colony_en_desired_refused_total counter")
		for _, reason := range sign.Reasons() {
			_, _ = fmt.Fprintf(w, "colony_en_desired_refused_total{reason=%q} %d\n", reason, refused[reason])
		}
		if list := e.revocations; list != nil {
			_, _ = fmt.Fprintf(w, "# TYPE colony_en_revocations_number gauge\ncolony_en_revocations_number %d\n", list.Number())
			refused := list.Refused()
			_, _ = fmt.Fprintln(w, "# TYPE colony_en_revocations_refused_total counter")
			for _, reason := range sign.Reasons() {
				_, _ = fmt.Fprintf(w, "colony_en_revocations_refused_total{reason=%q} %d\n", reason, refused[reason])
			}
		}
		_, _ = fmt.Fprintln(w, "# TYPE colony_en_deployments gauge")
		for _, state := range slices.Sorted(maps.Keys(states)) {
			_, _ = fmt.Fprintf(w, "colony_en_deployments{state=%q} %d\n", state, states[state])
		}
	})
	return mux
}
