package gate

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/limit"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/internal/allowance"
)

// limits are how many requests a gate lets pass.
type limits struct {
	address, principal, failures *limit.Table
	open                         *limit.Places

	refused *prometheus.CounterVec
	lines   *allowance.Allowance
	log     *slog.Logger
}

func newLimits(o Options) *limits {
	l := &limits{
		address: limit.NewTable(o.Limits.Address), principal: limit.NewTable(o.Limits.Principal), failures: limit.NewTable(o.Limits.Failures),
		open: limit.NewPlaces(o.Limits.Open),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "colony_co_requests_limited_total", Help: "Requests to the HTTP API that were too many, by the limit of access.limits: address, principal, failures, or open.",
		}, []string{"limit"}),
		lines: allowance.New(logEvery, logBurst), log: o.Logger,
	}
	o.Registerer.MustRegister(l.refused)
	return l
}

// over answers a request that is beyond a limit, and reports whether it is.
func (l *limits) over(w http.ResponseWriter, r *http.Request, name string, wait time.Duration) bool {
	if wait <= 0 {
		return false
	}
	seconds := int(math.Ceil(wait.Seconds()))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	l.refuse(w, r, name, fmt.Sprintf("too many requests: ask again in %d s", seconds))
	return true
}

// refuse answers a request that is beyond a limit.
func (l *limits) refuse(w http.ResponseWriter, r *http.Request, name, why string) {
	l.refused.WithLabelValues(name).Inc()
	if ok, leftOut := l.lines.Allow(); ok {
		l.log.WarnContext(r.Context(), "request refused: too many", "limit", "access.limits."+name, "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "left_out_before", leftOut)
	}
	problem.Write(w, http.StatusTooManyRequests, why)
}

// limitedBy returns the name under which a principal is limited. It is the same for all tokens of a
// person.
func limitedBy(p access.Principal) string {
	if p.Issuer != "" {
		return p.Issuer + " " + p.Subject
	}
	return p.Name
}

// knows reports whether a token was seen before and counted then.
func (g *Gate) knows(text string) bool {
	g.mu.Lock()
	_, known := g.known[sha256.Sum256([]byte(text))]
	g.mu.Unlock()
	return known || g.o.Provider != nil && g.o.Provider.Knows(text)
}
