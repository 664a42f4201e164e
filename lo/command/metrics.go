package command

import (
	"encoding/binary"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/internal/random"
)

// metrics are what is counted of commands.
type metrics struct {
	results, refused *prometheus.CounterVec
	all              []prometheus.Collector
}

// newMetrics makes them; count returns what there is.
func newMetrics(count func() (held, open int, age time.Duration, known bool)) *metrics {
	m := &metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_command_results_total", Help: "Results of commands that were written down, by state.",
		}, []string{"state"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_lo_commands_refused_total", Help: "Commands that the LO refused for the whole site, by code.",
		}, []string{"code"}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m.all = []prometheus.Collector{
		m.results, m.refused,
		gauge("colony_lo_commands_held", "Commands that the LO remembers.", func() float64 {
			held, _, _, _ := count()
			return float64(held)
		}),
		gauge("colony_lo_commands_open", "Commands that have not ended at each node.", func() float64 {
			_, open, _, _ := count()
			return float64(open)
		}),
		gauge("colony_lo_co_time_age_seconds", "How long ago the LO asked for the time of the CO that it knows; -1: it knows none since its start.", func() float64 {
			_, _, age, known := count()
			if !known {
				return -1
			}
			return age.Seconds()
		}),
	}
	return m
}

func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	for _, c := range m.all {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// nonce draws the number of a question, of which no two are the same.
func nonce(source *random.Source) uint64 {
	var b [8]byte
	source.Fill("time-ask", b[:])
	return binary.LittleEndian.Uint64(b[:])
}
