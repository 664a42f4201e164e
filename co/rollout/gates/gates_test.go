package gates

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
)

var about = rollout.About{Fleet: "meter", Revision: 3, App: "meter", Version: "1.1.0", Commit: "abc", Wave: 1, Gate: "g"}

// server starts Prometheus, which scrapes nothing: its own numbers and those of expressions are enough.
func server(t *testing.T) string {
	t.Helper()
	dir, addr := t.TempDir(), freeport.Addr(t)
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte("global: {scrape_interval: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("prometheus is not installed: run scripts/setup --with-test-peers as root")
	}
	p := testproc.New(t, "prometheus", filepath.Join(dir, "log"))
	p.Start(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	t.Cleanup(p.Stop)
	testpart.Within(t, time.Minute, "Prometheus is ready", func() error {
		resp, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	return "http://" + addr
}

// What a real Prometheus answers is within the bounds, is not, or is no answer.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	a := New([]Source{{Name: "prom", Prometheus: server(t) + "/"}})
	least, most := 1.0, 2.0
	for query, want := range map[string]rollout.Answer{
		"vector(1.5)": {}, "1.5": {}, "vector(1) or label_replace(vector(2), \"a\", \"b\", \"\", \"\")": {},
		"vector(2.5)": {Reason: "it is 2.5, and at most 2 passes"}, "0": {Reason: "it is 0, and at least 1 passes"},
		"vector(1) or label_replace(vector(3), \"a\", \"b\", \"\", \"\")": {Reason: "it is 3"},
		"0/0":            {Reason: "no finite number"},
		"absent_metric":  {Reason: "the query yields no series", Unknown: true},
		"sum(":           {Reason: "400 Bad Request", Unknown: true},
		"vector(1)[1m:]": {Reason: `a result of type "matrix"`, Unknown: true},
	} {
		g := rollout.Gate{Name: "g", Source: "prom", Query: query, Min: &least, Max: &most}
		if got := a.Ask(t.Context(), &g, about); got.Gate != "g" || got.Unknown != want.Unknown || (got.Reason == "") != (want.Reason == "") || !strings.Contains(got.Reason, want.Reason) {
			t.Errorf("%s: %+v, want %+v", query, got, want)
		}
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   rollout.Answer
	}{
		"passes": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"pass": true}`) }, rollout.Answer{}},
		"fails": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"pass": false, "reason": "tests\nfail"}`)
		}, rollout.Answer{Reason: "tests fail"}},
		"no reason": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"pass": false}`) }, rollout.Answer{Reason: "does not pass"}},
		"no word":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }, rollout.Answer{Reason: "want {", Unknown: true}},
		"fault":     {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }, rollout.Answer{Reason: "500 Internal Server Error: broken", Unknown: true}},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, rollout.Answer{Reason: "302", Unknown: true}},
		"large":     {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, mostBytes+1)) }, rollout.Answer{Reason: "more than", Unknown: true}},
		"silent":    {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, rollout.Answer{Reason: "deadline exceeded", Unknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var got rollout.About
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil || got != about || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("asked %+v, %v, by %q", got, err, r.Header.Get("Authorization"))
				}
				c.answer(w, r)
			}))
			defer s.Close()
			a := New([]Source{{Name: "hook", Webhook: s.URL, TokenFile: token, Timeout: time.Second}})
			got := a.Ask(t.Context(), &rollout.Gate{Name: "g", Source: "hook"}, about)
			if got.Unknown != c.want.Unknown || (got.Reason == "") != (c.want.Reason == "") || !strings.Contains(got.Reason, c.want.Reason) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	a := New([]Source{{Name: "hook", Webhook: "http://" + freeport.Addr(t)}, {Name: "lost", Webhook: "http://127.0.0.1:1", TokenFile: "/absent"}})
	for _, source := range []string{"hook", "lost", "unknown"} {
		if got := a.Ask(t.Context(), &rollout.Gate{Name: "g", Source: source}, about); !got.Unknown || got.Reason == "" {
			t.Errorf("%s: %+v", source, got)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	n := 1.0
	a := New([]Source{{Name: "prom", Prometheus: "http://p"}, {Name: "hook", Webhook: "http://h"}})
	for _, c := range []struct {
		gate rollout.Gate
		want string
	}{
		{rollout.Gate{Source: "prom", Query: "up", Min: &n}, ""},
		{rollout.Gate{Source: "hook"}, ""},
		{rollout.Gate{Source: "other"}, "has prom, hook"},
		{rollout.Gate{Source: "prom", Query: "up"}, "want a query, and min or max"},
		{rollout.Gate{Source: "prom", Max: &n}, "want a query"},
		{rollout.Gate{Source: "hook", Max: &n}, "leave out"},
	} {
		if err := a.Check(&c.gate); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.gate, err, c.want)
		}
	}
	if err := New(nil).Check(&rollout.Gate{Source: "prom"}); err == nil || !strings.Contains(err.Error(), "has no sources of gates") {
		t.Errorf("without sources: %v", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := Validate([]Source{{Name: "prom", Prometheus: "https://p.example/prom", TokenFile: "/etc/token"}, {Name: "hook", Webhook: "http://h"}}); err != nil {
		t.Error(err)
	}
	for want, s := range map[string]Source{
		`gates[0].name "A"`: {Name: "A", Webhook: "http://h"}, "one of both": {Name: "a"}, "want it or webhook": {Name: "a", Webhook: "http://h", Prometheus: "http://p"},
		`webhook "h"`: {Name: "a", Webhook: "h"}, "absolute path": {Name: "a", Webhook: "http://h", TokenFile: "t"}, "at most 1m": {Name: "a", Webhook: "http://h", Timeout: time.Hour},
	} {
		if err := Validate([]Source{s}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	if err := Validate([]Source{{Name: "a", Webhook: "http://h"}, {Name: "a", Webhook: "http://h"}}); err == nil || !strings.Contains(err.Error(), "another one has it") {
		t.Errorf("twice: %v", err)
	}
}
