package timing

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewGit returns what notes a call of git on the deployments repo or the CO's copy of it, and may be called concurrently. Its metric is
// registered with r.
func NewGit(r prometheus.Registerer) (func(command string, took time.Duration, err error), error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "colony_co_git_seconds", Help: "Time of calls of git for the deployments repo by command, such as fetch and push, and outcome: ok or failed. ls-remote, fetch and push reach the remote.",
		Buckets: []float64{.005, .025, .1, .25, 1, 5, 30, 120},
	}, []string{"command", "outcome"})
	return func(command string, took time.Duration, err error) {
		outcome := "ok"
		if err != nil {
			outcome = "failed"
		}
		seconds.WithLabelValues(command, outcome).Observe(took.Seconds())
	}, r.Register(seconds)
}
