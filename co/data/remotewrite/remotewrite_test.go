package remotewrite

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// temperature is the sample of the rule a, so many milliseconds after start.
func temperature(topic string, value float64, millis int64) sample {
	return sample{series{"temperature", "home", "a", topic, ""}, start.UnixMilli() + millis, value}
}

var plain = fleet.MetricRule{Rule: "a", Metric: "temperature"}

func same(t *testing.T, want, got []sample) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(sample{}, series{})); d != "" {
		t.Errorf("samples (-want +got)\n%s", d)
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	m := newMemory(plain, fleet.MetricRule{Rule: "b", Metric: "machine", Fields: []string{"/speed", "/axes/1/~1load~0", "/no"}})
	m.add("a", "line/1", " 20.5\n", 0)
	m.add("a", "line/2", "-3e2", 1)
	m.add("a", "line/1", "21", 2)
	m.add("a", "line/1", "warm", 3)  // no number
	m.add("a", "line/1", "NaN", 4)   // nor is this
	m.add("a", "line/1", "", 5)      // a deletion, which says nothing
	m.add("a", "line/1", "22", 2)    // the same time once more: the last counts
	m.add("a", "line/1", "19.5", -5) // the clock of the site was put back
	m.add("b", "m", `{"speed": 12.25, "axes": [{}, {"/load~": 0.5}], "no": "7"}`, 10)
	m.add("b", "m", `{"speed": true, "axes": {}}`, 11)
	m.add("b", "m", `no JSON`, 12)
	s := newServer(t)
	file := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(file, []byte("Bearer x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, _ := run(t, m, s.url, func(o *Options) { o.Headers, o.CredentialFile = map[string]string{"X-Scope-OrgID": "me"}, file })
	m.untilRead(t)
	machine := func(field string, value float64) sample {
		return sample{series{"machine", "home", "b", "m", field}, start.UnixMilli() + 10, value}
	}
	got, requests := s.received()
	same(t, []sample{
		machine("/axes/1/~1load~0", 0.5), machine("/speed", 12.25),
		temperature("line/1", 19.5, -5), temperature("line/1", 20.5, 0), temperature("line/1", 22, 2), temperature("line/2", -300, 1),
	}, got)
	if requests != 1 || count(w.metrics.sent) != 6 || count(w.metrics.skipped) != 2+1+3+3 {
		t.Errorf("%d requests, %d sent, %d skipped", requests, count(w.metrics.sent), count(w.metrics.skipped))
	}
	for name, want := range map[string]string{
		"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0",
		"X-Scope-Orgid": "me", "Authorization": "Bearer x",
	} {
		if got := s.requests[0].Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestServerThatFails answers with what comes and goes, until it takes the samples.
func TestServerThatFails(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	m.page = 2
	for i := range int64(6) {
		m.add("a", "t", strconv.FormatInt(i, 10), i)
	}
	s := newServer(t)
	fails := []int{500, 503, 429, 401, 404, 502, 408}
	s.answer = func(n int, _ []sample) (int, string, string) {
		if n <= len(fails) {
			return fails[n-1], "", ""
		}
		return http.StatusOK, "", ""
	}
	w, _ := run(t, m, s.url)
	m.untilRead(t)
	got, requests := s.received()
	var want []sample
	for i := range int64(6) {
		want = append(want, temperature("t", float64(i), i))
	}
	same(t, want, got)
	if requests != len(fails)+3 || count(w.metrics.retries) != len(fails) || count(w.metrics.sent) != 6 {
		t.Errorf("%d requests, %d tried again, %d sent", requests, count(w.metrics.retries), count(w.metrics.sent))
	}
}

// TestRetryAfter waits as long as the server says, by either form of the header.
// TestRedirection has a server send the writer elsewhere, to a page that answers 200
// in the log: nothing was accepted there.
func TestRedirection(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	m.add("a", "line/1", "1", 0)
	s := newServer(t)
	s.answer = func(n int, _ []sample) (int, string, string) {
		switch {
		case s.requests[n-1].Method == http.MethodGet:
			return http.StatusOK, "", ""
		case n <= 3:
			return http.StatusFound, "Location", "/login"
		default:
			return http.StatusNoContent, "", ""
		}
	}
	w, _ := run(t, m, s.url)
	m.untilRead(t)
	got, requests := s.received()
	same(t, []sample{temperature("line/1", 1, 0)}, got)
	if requests != 4 || count(w.metrics.retries) != 3 {
		t.Errorf("%d requests, %d retries", requests, count(w.metrics.retries))
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "Thu, 01 Jan 2026 00:00:09 GMT": 9 * time.Second, "Thu, 01 Jan 2020 00:00:00 GMT": 0,
		"86400": maxRetryAfter, "-1": 0, "soon": 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	m := newMemory(plain)
	m.add("a", "t", "1", 0)
	s := newServer(t)
	var first, second time.Time
	s.answer = func(n int, _ []sample) (int, string, string) {
		if n == 1 {
			first = time.Now()
			return http.StatusServiceUnavailable, "Retry-After", "1"
		}
		second = time.Now()
		return http.StatusOK, "", ""
	}
	run(t, m, s.url)
	m.untilRead(t)
	if _, n := s.received(); n != 2 || second.Sub(first) < time.Second {
		t.Errorf("%d requests, the second after %v; the server wanted 1 s", n, second.Sub(first))
	}
}

// TestRefusedSamples has a server that refuses a request for any value of 13: only
// what it cannot take is left out.
func TestRefusedSamples(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	var want []sample
	for i := range int64(100) {
		value := i
		if i == 30 || i == 31 || i == 99 {
			value = 13
		} else if i == 13 {
			value = 1000
		}
		m.add("a", "t", strconv.FormatInt(value, 10), i)
		if value != 13 {
			want = append(want, temperature("t", float64(value), i))
		}
	}
	s := newServer(t)
	s.answer = func(_ int, samples []sample) (int, string, string) {
		for _, v := range samples {
			if v.value == 13 {
				return http.StatusBadRequest, "", ""
			}
		}
		return http.StatusOK, "", ""
	}
	w, _ := run(t, m, s.url)
	m.untilRead(t)
	got, _ := s.received()
	same(t, want, got)
	if n := count(w.metrics.refused.WithLabelValues("400")); n != 3 {
		t.Errorf("%d samples are said to be refused, want 3", n)
	}
}

// TestAllRefused has a server that takes nothing, then one that does again: the search
// for the bad samples has an end, and the messages are not read again.
func TestAllRefused(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	m.page = 100
	for i := range int64(1000) {
		m.add("a", "t", "1", i)
	}
	s := newServer(t)
	s.answer = func(_ int, samples []sample) (int, string, string) {
		if samples[0].value == 1 {
			return http.StatusUnprocessableEntity, "", ""
		}
		return http.StatusOK, "", ""
	}
	w, _ := run(t, m, s.url)
	m.untilRead(t)
	if _, n := s.received(); n > 200+9*(maxSplits+1) || count(w.metrics.refused.WithLabelValues("422")) != 1000 {
		t.Errorf("%d requests, %d refused", n, count(w.metrics.refused.WithLabelValues("422")))
	}
	m.add("a", "t", "2", 1000)
	m.untilRead(t)
	got, _ := s.received()
	same(t, []sample{temperature("t", 2, 1000)}, got)
}

// TestNothingIsLeftOutByARestart stops the Writer while the server is away, and while
// the record is, and starts it again.
func TestNothingIsLeftOutByARestart(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	m.page = 3
	var want []sample
	for i := range int64(10) {
		m.add("a", "t", strconv.FormatInt(i, 10), i)
		want = append(want, temperature("t", float64(i), i))
	}
	s := newServer(t)
	tried := make(chan struct{}, 1000)
	up := false
	s.answer = func(n int, _ []sample) (int, string, string) {
		tried <- struct{}{}
		if n == 1 || up {
			return http.StatusOK, "", ""
		}
		return http.StatusInternalServerError, "", ""
	}
	_, stop := run(t, m, s.url)
	for range 3 {
		<-tried
	}
	stop()
	m.away = protocol.Errorf(protocol.Unavailable, "away")
	s.mu.Lock()
	up = true
	s.mu.Unlock()
	run(t, m, s.url)
	m.mu.Lock()
	m.away = nil
	m.mu.Unlock()
	m.untilRead(t)
	got, _ := s.received()
	same(t, want, got)
}

// TestOneWriter takes its turn with the lock, and gives it up when it is lost.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	m := newMemory(plain)
	s := newServer(t)
	grants, lost, released := 0, make(chan context.CancelFunc, 1), make(chan struct{}, 2)
	_, stop := run(t, m, s.url, func(o *Options) {
		o.Lock = func(ctx context.Context) (context.Context, func(), error) {
			if grants++; grants == 1 {
				return nil, nil, protocol.Errorf(protocol.Unavailable, "the database is away")
			}
			held, cancel := context.WithCancel(ctx)
			lost <- cancel
			return held, func() { cancel(); released <- struct{}{} }, nil
		}
	})
	first := <-lost
	m.add("a", "t", "1", 0)
	m.untilRead(t)
	first()
	<-released
	<-lost
	m.add("a", "t", "2", 1)
	m.untilRead(t)
	stop()
	<-released
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "prometheus:9090", "ftp://x/y"} {
		if _, err := New(Options{URL: url}); err == nil || !strings.Contains(err.Error(), "no store") || !strings.Contains(err.Error(), "want one such as http://") {
			t.Errorf("url %q: %v", url, err)
		}
	}
}

// The time of a clock that was not synchronised counts unless it cannot be right: then that of the
// CO does.
func TestTimeOfAWrongClock(t *testing.T) {
	t.Parallel()
	received := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		site     time.Time
		unsynced bool
		want     time.Time
	}{
		"hours in the queue":                     {received.Add(-5 * time.Hour), true, received.Add(-5 * time.Hour)},
		"a clock that began in 1970":             {time.Unix(1000, 0), true, received},
		"a clock that is a year ahead":           {received.AddDate(1, 0, 0), true, received},
		"a synchronised clock says what it says": {received.AddDate(1, 0, 0), false, received.AddDate(1, 0, 0)},
		"years in the queue of a clock in step":  {received.AddDate(-2, 0, 0), false, received.AddDate(-2, 0, 0)},
		"a clock that is a few seconds ahead":    {received.Add(5 * time.Second), true, received.Add(5 * time.Second)},
	} {
		m := fleet.Message{Received: received, SiteTime: &tt.site}
		m.Message.Payload, m.Message.Properties = []byte("1"), stream.MarkUnsynced([]string{"unit", "C"}, tt.unsynced)
		got, _ := samplesOf(fleet.MetricRule{Metric: "m"}, m)
		if len(got) != 1 || got[0].millis != tt.want.UnixMilli() {
			t.Errorf("%s: %+v, want the time %s", name, got, tt.want)
		}
	}
}

// TestRulesAtOnce sends samples of several rules at a time, so that a server that takes its time for each request takes as much from
// many rules as it can.
func TestRulesAtOnce(t *testing.T) {
	t.Parallel()
	var rules []fleet.MetricRule
	for i := range 4 * atOnce {
		r := plain
		r.Rule = fmt.Sprint("rule", i)
		rules = append(rules, r)
	}
	m := newMemory(rules...)
	for _, r := range rules {
		for i := range int64(pageMessages) {
			m.add(r.Rule, "t", "1", i)
		}
	}
	var now, most atomic.Int32
	together := make(chan struct{})
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		if n == atOnce {
			once.Do(func() { close(together) })
		}
		select {
		case <-together:
		case <-time.After(patience):
			t.Error("requests come one after the other")
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(s.Close)
	run(t, m, s.URL)
	m.untilRead(t)
	if n := most.Load(); n != atOnce {
		t.Errorf("%d requests at a time, want %d", n, atOnce)
	}
}
