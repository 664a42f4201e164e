package remotewrite

import (
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// memory is a Store of rules of the site home.
type memory struct {
	mu       sync.Mutex
	rules    []fleet.MetricRule
	messages map[string][]fleet.Message
	read     fleet.Positions
	page     int // messages in a page; 0 means all
	away     error
	changed  notify.Signal
}

func newMemory(rules ...fleet.MetricRule) *memory {
	for i := range rules {
		rules[i].Site = "home"
	}
	return &memory{rules: rules, messages: map[string][]fleet.Message{}, read: fleet.Positions{}, changed: notify.New()}
}

// add stores a message that arrived at the site so many milliseconds after start.
func (m *memory) add(rule, topic, payload string, millis int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := start.Add(time.Duration(millis) * time.Millisecond)
	list := m.messages[rule]
	m.messages[rule] = append(list, fleet.Message{
		Site: "home", Rule: rule, Position: fleet.Position{Seq: uint64(len(list) + 1)}, Received: start, SiteTime: &at,
		Message: protocol.DataMessage{Topic: topic, Payload: []byte(payload)},
	})
}

func (m *memory) MetricRules(_ context.Context, name string) ([]fleet.MetricRule, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []fleet.MetricRule
	for _, r := range m.rules {
		if at := m.read[r.Rule]; name == reader && at.Seq < uint64(len(m.messages[r.Rule])) {
			r.After = fleet.Positions{r.Rule: at}
			out = append(out, r)
		}
	}
	return out, m.away
}

func (m *memory) Messages(_ context.Context, f fleet.MessageFilter) (fleet.MessagePage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.messages[f.Rule][f.After[f.Rule].Seq:]
	limit := f.Limit
	if m.page > 0 {
		limit = m.page
	}
	page := fleet.MessagePage{More: len(list) > limit}
	page.Messages = slices.Clone(list[:min(limit, len(list))])
	page.Read = fleet.Positions{f.Rule: {Seq: f.After[f.Rule].Seq + uint64(len(page.Messages))}, "other": {Seq: 7}}
	return page, m.away
}

func (m *memory) SaveRead(_ context.Context, _ string, _ protocol.SiteID, at fleet.Positions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return m.away
	}
	maps.Copy(m.read, at)
	m.changed.Notify()
	return nil
}

// untilRead waits until all that is stored was read.
func (m *memory) untilRead(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	for {
		m.mu.Lock()
		done := true
		for rule, list := range m.messages {
			done = done && m.read[rule].Seq == uint64(len(list))
		}
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-m.changed.C():
		case <-deadline:
			t.Fatal("not read in time")
		}
	}
}

// start is when the messages of the tests begin.
var start = time.Now().Add(-time.Minute).Truncate(time.Second)

// run runs a Writer until the test ends or stop is called.
func run(t *testing.T, m *memory, url string, change ...func(*Options)) (w *Writer, stop func()) {
	t.Helper()
	o := Options{
		Store: m, URL: url, Interval: time.Millisecond, MinRetry: time.Millisecond, MaxRetry: 5 * time.Millisecond, Timeout: 5 * time.Second,
		Registerer: prometheus.NewRegistry(),
	}
	for _, f := range change {
		f(&o)
	}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

// count returns the value of a counter.
func count(c prometheus.Counter) int {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		return -1
	}
	return int(families[0].GetMetric()[0].GetCounter().GetValue())
}

// A server takes remote writes and decides about each.
type server struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	got      []sample
	requests []*http.Request
	// answer decides about a request; nil: all are accepted.
	answer func(n int, samples []sample) (status int, header, value string)
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t}
	h := httptest.NewServer(s)
	s.url = h.URL + "/api/v1/write"
	t.Cleanup(h.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	samples := decode(s.t, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	status := http.StatusNoContent
	if s.answer != nil {
		var header, value string
		if status, header, value = s.answer(len(s.requests), samples); header != "" {
			w.Header().Set(header, value)
		}
	}
	w.WriteHeader(status)
	if status/100 == 2 {
		s.got = append(s.got, samples...)
	} else {
		_, _ = io.WriteString(w, "so it is")
	}
}

// received returns the samples that were accepted and how many requests there were.
func (s *server) received() ([]sample, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got), len(s.requests)
}

// decode reads the body of a request, by the protocol and not by the code under test.
func decode(t *testing.T, body []byte) (out []sample) {
	t.Helper()
	request, err := snappy.Decode(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	each(t, request, func(field protowire.Number, series []byte, _ uint64) {
		if field != 1 {
			t.Errorf("field %d of a request", field)
		}
		labels, names := map[string]string{}, []string{}
		each(t, series, func(field protowire.Number, b []byte, _ uint64) {
			switch field {
			case 1:
				var pair [3]string
				each(t, b, func(f protowire.Number, text []byte, _ uint64) { pair[f] = string(text) })
				labels[pair[1]] = pair[2]
				names = append(names, pair[1])
			case 2:
				v := sample{}
				v.metric, v.site, v.rule, v.topic, v.field = labels["__name__"], labels["site"], labels["rule"], labels["topic"], labels["field"]
				each(t, b, func(f protowire.Number, _ []byte, n uint64) {
					if f == 1 {
						v.value = math.Float64frombits(n)
					} else {
						v.millis = int64(n)
					}
				})
				out = append(out, v)
			}
		})
		if !slices.IsSorted(names) {
			t.Errorf("labels are not sorted: %q", names)
		}
	})
	return out
}

// each walks the fields of a protobuf message.
func each(t *testing.T, b []byte, f func(protowire.Number, []byte, uint64)) {
	t.Helper()
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		b = b[n:]
		var text []byte
		var v uint64
		switch kind {
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		default:
			v, n = protowire.ConsumeVarint(b)
		}
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		f(number, text, v)
		b = b[n:]
	}
}
