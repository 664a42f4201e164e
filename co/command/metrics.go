package command

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// metrics are what is counted of commands, of the sites whose events this CO commits.
type metrics struct {
	received         prometheus.Counter
	refused, results *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	m := metrics{
		received: f.NewCounter(prometheus.CounterOpts{Name: "colony_co_commands_received_total", Help: "Commands that sites have received, without those that they refused as a whole."}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_commands_refused_total", Help: "Commands that sites refused as a whole, by code.",
		}, []string{"code"}),
		results: f.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_command_results_total", Help: "How commands ended on nodes, by state.",
		}, []string{"state"}),
	}
	// Each series is there from the start: the increase of one that begins with 1 is 0.
	for _, c := range command.Codes() {
		m.refused.WithLabelValues(c.Label())
	}
	for _, s := range command.States() {
		if s.Ended() {
			m.results.WithLabelValues(s.Label())
		}
	}
	return m
}

// count counts what an event says of commands. One that cannot be read counts nothing: it is an anomaly of its site.
func (m *metrics) count(e *protocol.Event) {
	switch e.Kind { //nolint:exhaustive // the others are not about commands
	case protocol.CommandReceived:
		var t command.Received
		if command.Unmarshal(e.Body, &t) != nil {
			return
		}
		if t.Code == "" {
			m.received.Inc()
		} else {
			m.refused.WithLabelValues(t.Code.Label()).Inc()
		}
	case protocol.CommandResult:
		var r command.Result
		if command.Unmarshal(e.Body, &r) == nil && r.State.Ended() {
			m.results.WithLabelValues(r.State.Label()).Inc()
		}
	}
}
