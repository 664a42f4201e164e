// Package timing measures what the CO does for others: requests by HTTP, and calls of git.
package timing

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests measures requests by HTTP. It may be used concurrently.
type Requests struct {
	seconds *prometheus.HistogramVec
	now     func() time.Time
}

// NewRequests returns Requests, whose metric is registered with r.
func NewRequests(r prometheus.Registerer) (*Requests, error) {
	q := &Requests{now: time.Now, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "colony_co_http_request_seconds", Help: "Time to answer requests to the HTTP port by the pattern of their route, without event streams and WebSockets; none: there is no such route. The code is the first digit of the status, or cut where the answer broke off.",
		Buckets: []float64{.005, .025, .1, .25, 1, 5, 30},
	}, []string{"route", "method", "code"})}
	return q, r.Register(q.seconds)
}

// cut is the code of an answer whose connection was cut, as something failed in the middle of it.
const cut = "cut"

// noRoute is the label of requests that no route serves.
const noRoute = "none"

// methods are those with a label of their own.
var methods = map[string]bool{
	http.MethodGet: true, http.MethodHead: true, http.MethodPost: true, http.MethodPut: true, http.MethodPatch: true, http.MethodDelete: true,
}

// Handler returns next with its requests measured. Route returns the pattern of the route of a request, with its method or without; "" where
// there is none. It has as many values as there are routes.
func (q *Requests) Handler(next http.Handler, route func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" { // it lasts as long as its client stays
			next.ServeHTTP(w, r)
			return
		}
		began, a, returned := q.now(), &answer{ResponseWriter: w}, false
		defer func() {
			if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
				return
			}
			pattern, method := route(r), r.Method
			if _, path, ok := strings.Cut(pattern, " "); ok {
				pattern = path
			}
			if pattern == "" {
				pattern = noRoute
			}
			if !methods[method] {
				method = "other"
			}
			code := a.class()
			if !returned {
				code = cut
			}
			q.seconds.WithLabelValues(pattern, method, code).Observe(q.now().Sub(began).Seconds())
		}()
		next.ServeHTTP(a, r)
		returned = true
	})
}

// Route returns what names the route of a request: that of outer or, where that is the root, which inner serves, that of inner.
func Route(outer *http.ServeMux, inner func(*http.Request) string) func(*http.Request) string {
	return func(r *http.Request) string {
		if _, pattern := outer.Handler(r); pattern != "/" {
			return pattern
		}
		return inner(r)
	}
}

// An answer remembers the status.
type answer struct {
	http.ResponseWriter
	status int
}

// class is the first digit of the status, such as 2xx; an answer without one is 200, as net/http sends it.
func (a *answer) class() string {
	if a.status == 0 {
		return "2xx"
	}
	return strconv.Itoa(a.status/100) + "xx"
}

// WriteHeader notes the status; those that are not the last one do not count.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// ReadFrom has the answer below read, which may copy by the kernel.
func (a *answer) ReadFrom(r io.Reader) (int64, error) { return io.Copy(a.ResponseWriter, r) }

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
