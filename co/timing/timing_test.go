package timing

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestRequests has requests answered in each way that there is.
func TestRequests(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	q, err := NewRequests(registry)
	if err != nil {
		t.Fatal(err)
	}
	var clock time.Duration
	q.now = func() time.Time {
		clock += 500 * time.Millisecond
		return time.Unix(0, 0).Add(clock)
	}
	inner := http.NewServeMux()
	inner.HandleFunc("GET /sites/{site}", func(w http.ResponseWriter, r *http.Request) {
		switch r.PathValue("site") {
		case "absent":
			w.WriteHeader(http.StatusNotFound)
		case "early":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusServiceUnavailable)
		case "live":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		case "copied":
			if _, err := w.(*answer).ReadFrom(strings.NewReader("x")); err != nil {
				t.Error(err)
			}
		case "cut":
			panic(http.ErrAbortHandler)
		}
	})
	outer := http.NewServeMux()
	outer.Handle("/v2/", http.NotFoundHandler())
	outer.Handle("/", inner)
	h := q.Handler(outer, Route(outer, func(r *http.Request) string {
		_, pattern := inner.Handler(r)
		return pattern
	}))
	ask := func(method, path string, header ...string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		defer func() { _ = recover() }() // of the answer that is cut
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	for _, path := range []string{"/sites/a", "/sites/b", "/sites/absent", "/sites/early", "/sites/live", "/sites/copied", "/sites/cut", "/v2/x/y", "/nowhere"} {
		ask(http.MethodGet, path)
	}
	ask(http.MethodGet, "/sites/a", "Upgrade", "websocket")
	ask("BREW", "/nowhere")
	want := map[string]uint64{
		"/sites/{site} GET 2xx": 3, "/sites/{site} GET cut": 1, "/sites/{site} GET 4xx": 1, "/sites/{site} GET 5xx": 1, "/v2/ GET 4xx": 1, "none GET 4xx": 1, "none other 4xx": 1,
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	for _, m := range families[0].GetMetric() {
		l := m.GetLabel() // sorted by name: code, method, route
		key := l[2].GetValue() + " " + l[1].GetValue() + " " + l[0].GetValue()
		if n := m.GetHistogram().GetSampleCount(); n != want[key] || m.GetHistogram().GetSampleSum() != float64(n)/2 {
			t.Errorf("%s: %d requests of %g s, want %d of 0.5 s each", key, n, m.GetHistogram().GetSampleSum(), want[key])
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("not measured: %v", want)
	}
}

// TestGit notes calls that were ok and that failed.
func TestGit(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	note, err := NewGit(registry)
	if err != nil {
		t.Fatal(err)
	}
	note("fetch", time.Second, nil)
	note("fetch", time.Minute, errors.New("away"))
	if n := testutil.CollectAndCount(registry, "colony_co_git_seconds"); n != 2 {
		t.Errorf("%d series, want one for each outcome", n)
	}
}
