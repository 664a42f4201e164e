package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/testpart"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a record of events, and of positions.
type memory struct {
	mu        sync.Mutex
	events    []fleet.Event
	first     int64
	positions map[string]int64
	away      error
}

func (m *memory) add(kinds ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range kinds {
		m.events = append(m.events, fleet.Event{ID: int64(len(m.events) + 1), Kind: k, Site: "plant-1"})
	}
}

func (m *memory) Events(_ context.Context, f fleet.EventFilter) (out []fleet.Event, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if e.ID > f.After && e.ID >= m.first && slices.Contains(f.Kinds, e.Kind) && f.Within.Has(e.Site) && len(out) < f.Limit {
			out = append(out, e)
		}
	}
	return out, m.away
}

func (m *memory) FirstEvent(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.first, 1), m.away
}

func (m *memory) LastEvent(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.events)), m.away
}

func (m *memory) Position(_ context.Context, name string) (int64, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, known := m.positions[name]
	return id, known, m.away
}

func (m *memory) SavePosition(_ context.Context, name string, id int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.positions[name] = id
	return m.away
}

func (m *memory) at(name string) int64 {
	id, _, _ := m.Position(context.Background(), name)
	return id
}

// receiver is where posts arrive. It answers with the next of its answers, and 204 where there is none.
type receiver struct {
	mu      sync.Mutex
	answers []int
	got     []Message
	headers []http.Header
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) > 0 {
		status := r.answers[0]
		r.answers = r.answers[1:]
		http.Error(w, "not now", status)
		return
	}
	var m Message
	body, err := io.ReadAll(q.Body)
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.got, r.headers = append(r.got, m), append(r.headers, q.Header)
	w.WriteHeader(http.StatusNoContent)
}

// ids are those of the events that were accepted, in the order in which they were.
func (r *receiver) ids() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, m := range r.got {
		if m.Missed > 0 {
			out = append(out, fmt.Sprintf("missed %d", m.Missed))
		}
		for _, e := range m.Events {
			out = append(out, fmt.Sprint(e.ID))
		}
	}
	return strings.Join(out, " ")
}

// start runs a hook until the test ends, or stop is called.
func start(t *testing.T, m *memory, h Hook) (stop func()) {
	t.Helper()
	if err := Validate([]Hook{h}); err != nil {
		t.Fatal(err)
	}
	list, err := New(Options{
		Hooks: []Hook{h}, Events: m, Positions: m, Retry: retry.Policy{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Lock:   func(ctx context.Context, _ string) (context.Context, func(), error) { return ctx, func() {}, nil },
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); list[0].Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// TestPosts has a hook begin with what is new, go on after refusals, an outage of the record and a restart, and say what was
// removed before it could post it.
func TestPosts(t *testing.T) {
	t.Parallel()
	m := &memory{positions: map[string]int64{}}
	r := &receiver{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	h := Hook{Name: "ops", URL: s.URL, Kinds: []string{fleet.SiteOffline, fleet.ProposalOpened}}
	m.add(fleet.SiteOffline, fleet.SiteOnline)
	stop := start(t, m, h)
	testpart.Eventually(t, "the hook begins with what is new", func() bool { return m.at("ops") == 2 })
	r.mu.Lock()
	r.answers = []int{http.StatusServiceUnavailable, http.StatusFound, http.StatusNotFound}
	r.mu.Unlock()
	m.add(fleet.SiteOnline, fleet.SiteOffline, fleet.ProposalOpened, fleet.SiteOnline)
	testpart.Eventually(t, "events are posted", func() bool { return m.at("ops") == 6 })
	if got := r.ids(); got != "4 5" {
		t.Errorf("posted %s, want 4 5", got)
	}
	m.mu.Lock()
	m.away = errors.New("the database is away")
	m.mu.Unlock()
	m.add(fleet.SiteOffline)
	m.mu.Lock()
	m.away = nil
	m.mu.Unlock()
	testpart.Eventually(t, "the next event is posted", func() bool { return m.at("ops") == 7 })
	stop()
	for range 250 {
		m.add(fleet.SiteOffline)
	}
	stop = start(t, m, h)
	testpart.Eventually(t, "what came meanwhile is posted", func() bool { return m.at("ops") == 257 })
	stop()
	r.mu.Lock()
	posts, ids := len(r.got), r.headers[len(r.headers)-1].Get("Webhook-Id")
	r.got = nil
	r.mu.Unlock()
	if posts != 5 || ids != "ops-207" {
		t.Errorf("%d posts, the last one %s; want 5 of at most 100 events, and ops-207", posts, ids)
	}
	m.add(fleet.SiteOffline, fleet.SiteOffline, fleet.SiteOffline)
	m.first = 260
	start(t, m, h)
	testpart.Eventually(t, "what is left is posted", func() bool { return m.at("ops") == 260 })
	if got := r.ids(); got != "missed 2 260" {
		t.Errorf("posted %s, want missed 2 260", got)
	}
}

// TestAnotherRecord has a hook whose position is past all events: of a record that was lost.
func TestAnotherRecord(t *testing.T) {
	t.Parallel()
	m := &memory{positions: map[string]int64{"ops": 1000}}
	r := &receiver{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	m.add(fleet.SiteOffline)
	start(t, m, Hook{Name: "ops", URL: s.URL, Kinds: []string{fleet.SiteOffline}, Sites: []string{"plant-*"}})
	testpart.Eventually(t, "the hook begins with what is new", func() bool { return m.at("ops") == 1 })
	m.add(fleet.SiteOffline)
	testpart.Eventually(t, "the next event is posted", func() bool { return m.at("ops") == 2 })
	if got := r.ids(); got != "2" {
		t.Errorf("posted %s, want 2", got)
	}
}

// TestSignature has the example of Standard Webhooks, and a receiver that checks a post with the second of two secrets.
func TestSignature(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret + "\n")
	keys, err := secrets(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := signatures(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, text := range []string{"", "whsec_", "whsec_c2hvcnQ=", "secret of many letters and spaces", secret + "\nx"} {
		write(text)
		if _, err := secrets(path); err == nil || strings.Contains(err.Error(), "MfKQ9r8") || !strings.Contains(err.Error(), "want whsec_") {
			t.Errorf("%q: %v", text, err)
		}
	}
	write("whsec_" + strings.Repeat("QUJD", 10) + "\n" + secret)
	m, r := &memory{positions: map[string]int64{"ops": 0}}, &receiver{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	m.add(fleet.SiteOffline)
	start(t, m, Hook{Name: "ops", URL: s.URL, Kinds: []string{fleet.SiteOffline}, SecretFile: path})
	testpart.Eventually(t, "the event is posted", func() bool { return m.at("ops") == 1 })
	head := r.headers[0]
	body, err := json.Marshal(r.got[0])
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(head.Get("Webhook-Signature"))
	if want := signatures(keys, head.Get("Webhook-Id"), head.Get("Webhook-Timestamp"), body); len(all) != 2 || all[1] != want {
		t.Errorf("signatures %q, want %s as the second", all, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Hook{Name: "ops", URL: "https://chat.example/x", Kinds: []string{fleet.SiteOffline}}
	for want, change := range map[string]func(*Hook){
		"":                                func(*Hook) {},
		`webhooks[0].name ""`:             func(h *Hook) { h.Name = "" },
		`webhooks[0].url "chat"`:          func(h *Hook) { h.URL = "chat" },
		"webhooks[0].kinds: missing":      func(h *Hook) { h.Kinds = nil },
		`no events of kind "site_of"`:     func(h *Hook) { h.Kinds = []string{"site_of"} },
		`webhooks[0].sites: site "Plant"`: func(h *Hook) { h.Sites = []string{"Plant"} },
		"the list has no site":            func(h *Hook) { h.Sites = []string{} },
		`webhooks[0].secretFile "secret"`: func(h *Hook) { h.SecretFile = "secret" },
		"webhooks[0].timeout -1s":         func(h *Hook) { h.Timeout = -time.Second },
	} {
		h := good
		change(&h)
		if err := Validate([]Hook{h}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := Validate([]Hook{good, good}); err == nil || !strings.Contains(err.Error(), `webhooks[1].name "ops": another one has it`) {
		t.Error(err)
	}
}
