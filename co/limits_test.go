package co_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/access/limit"
	"github.com/colonyfleet/colony/internal/testpart"
)

// slowly lets n requests through at once, and then one in half an hour: none while a test runs.
func slowly(n int) limit.Rate { return limit.Rate{PerSecond: 1.0 / 1800, Burst: n} }

// asks sends requests until one is too many, and returns how many were not.
func (b *bench) asks(path, text string, most int) (passed int) {
	b.t.Helper()
	for passed < most {
		req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.co.HTTPAddr()+path, http.NoBody)
		if err != nil {
			b.t.Fatal(err)
		}
		if text != "" {
			req.Header.Set("Authorization", "Bearer "+text)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			b.t.Fatal(err)
		}
		if resp.StatusCode == http.StatusTooManyRequests {
			seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil || seconds < 1 || seconds > 1800 || resp.Header.Get("Content-Type") != "application/problem+json" {
				b.t.Errorf("%s: %v", path, resp.Header)
			}
			return passed
		}
		passed++
	}
	return passed
}

// TestLimitOfPrincipal has a program ask too often, by two tokens of one name, and another one beside it.
func TestLimitOfPrincipal(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required, o.Access.Limits = true, limit.Limits{Principal: slowly(5)}
	})
	_, first := b.tokenOf("ci", access.ReadOnly, time.Hour)
	_, second := b.tokenOf("ci", access.ReadOnly, time.Hour)
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	if n := b.asks("/api/v1/sites", first, 3); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	if n := b.asks("/api/v1/sites", second, 10); n != 2 {
		t.Errorf("%d requests with another token of the name, want 2", n)
	}
	if _, said := b.ask(http.MethodGet, "/api/v1/sites", first, ""); !strings.Contains(said, "too many requests: ask again in") {
		t.Error(said)
	}
	_, said := b.ask(http.MethodGet, "/metrics", admin, "")
	if !strings.Contains(said, `colony_co_requests_limited_total{limit="principal"} 2`) {
		t.Errorf("the metric: %.2000s", said)
	}
}

// TestLimitOfOpenRequests has a program keep streams open, by two tokens of one name, and another one beside it.
func TestLimitOfOpenRequests(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required, o.Access.Limits = true, limit.Limits{Open: 2}
	})
	_, first := b.tokenOf("ci", access.ReadOnly, time.Hour)
	_, second := b.tokenOf("ci", access.ReadOnly, time.Hour)
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	follow := func(text string) (end context.CancelFunc) {
		t.Helper()
		ctx, end := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.co.HTTPAddr()+"/api/v1/events", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+text)
		req.Header.Set("Accept", "text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("a stream: %v %v", resp, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return end
	}
	end := follow(first)
	defer follow(second)()
	if status, said := b.ask(http.MethodGet, "/api/v1/sites", first, ""); status != http.StatusTooManyRequests || !strings.Contains(said, "2 requests of ci are under way") {
		t.Errorf("beside two streams: %d %s", status, said)
	}
	if status, said := b.ask(http.MethodGet, "/api/v1/sites", admin, ""); status != http.StatusOK {
		t.Errorf("somebody else: %d %s", status, said)
	}
	end()
	testpart.Eventually(t, "a stream that has ended counts no more", func() bool {
		status, _ := b.ask(http.MethodGet, "/api/v1/sites", first, "")
		return status == http.StatusOK
	})
	if _, said := b.ask(http.MethodGet, "/metrics", admin, ""); !strings.Contains(said, `colony_co_requests_limited_total{limit="open"}`) {
		t.Errorf("the metric: %.2000s", said)
	}
}

// TestLimitOfAddress has an address ask too often: what load balancers and sites ask does not count.
func TestLimitOfAddress(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required, o.Access.Limits = true, limit.Limits{Address: slowly(6)}
	})
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	for _, path := range []string{"/healthz", "/readyz", "/v2/a/manifests/1", "/api/v1/specs/sha256:" + strings.Repeat("0", 64)} {
		if n := b.asks(path, "", 10); n != 10 {
			t.Errorf("%s: %d requests, want 10", path, n)
		}
	}
	if n := b.asks("/api/v1/sites", "", 2); n != 2 {
		t.Errorf("%d requests without a token, want 2", n)
	}
	if n := b.asks("/api/v1/sign-in", "", 2); n != 2 {
		t.Errorf("%d requests how to sign in, want 2", n)
	}
	if n := b.asks("/api/v1/sites", admin, 10); n != 2 {
		t.Errorf("%d requests with a token, want 2", n)
	}
	if n := b.asks("/v2/", admin, 10); n != 0 {
		t.Errorf("%d requests to the registry, want 0", n)
	}
	if n := b.asks("/healthz", "", 10); n != 10 {
		t.Errorf("%d requests of a load balancer, want 10", n)
	}
}

// TestProxies has requests come through a proxy: each client has the limit of an address for itself, and the audit names it.
func TestProxies(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required, o.Access.Limits, o.Access.Proxies = true, limit.Limits{Address: slowly(2)}, []string{"127.0.0.1"}
	})
	_, admin := b.tokenOf("root", access.Admin, time.Hour)
	from := func(client, method, path string) (status int, said string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+b.co.HTTPAddr()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+admin)
		req.Header.Set("X-Forwarded-For", client)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, said := from("192.0.2.1", http.MethodDelete, "/api/v1/sites/none"); status != http.StatusNotFound {
		t.Errorf("%d %s", status, said)
	}
	for client, want := range map[string]int{"192.0.2.2": http.StatusOK, "192.0.2.3": http.StatusOK} {
		for range 2 {
			if status, said := from(client, http.MethodGet, "/api/v1/sites"); status != want {
				t.Errorf("%s: %d %s", client, status, said)
			}
		}
		if status, said := from("9.9.9.9, "+client, http.MethodGet, "/api/v1/sites"); status != http.StatusTooManyRequests {
			t.Errorf("%s once more: %d %s", client, status, said)
		}
	}
	if status, said := from("192.0.2.1", http.MethodGet, "/api/v1/audit"); status != http.StatusOK || !strings.Contains(said, `"192.0.2.1:0"`) {
		t.Errorf("the audit: %d %s", status, said)
	}
	o := identified(t)
	o.Access.Proxies = []string{"proxy.example"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), `access.proxies: "proxy.example": want an address`) {
		t.Error(err)
	}
}

// TestLimitOfFailures has a client try tokens: those that were there before go on, from the same address,
// too.
func TestLimitOfFailures(t *testing.T) {
	t.Parallel()
	b := start(t, func(o *co.Options) {
		o.Access.Required, o.Access.Limits = true, limit.Limits{Failures: slowly(4)}
	})
	_, known := b.tokenOf("root", access.Admin, time.Hour)
	_, later := b.tokenOf("ann", access.Admin, time.Hour)
	if n := b.asks("/api/v1/sites", known, 10); n != 10 {
		t.Errorf("%d requests, want 10", n)
	}
	if n := b.asks("/api/v1/sites", "a.b.c", 10); n != 4 {
		t.Errorf("%d tries, want 4", n)
	}
	if n := b.asks("/api/v1/sites", later, 10); n != 0 {
		t.Errorf("%d requests with a token that nobody has seen, want 0: it may be one that is tried", n)
	}
	if n := b.asks("/api/v1/sites", known, 10); n != 10 {
		t.Errorf("%d requests with a known token, want 10", n)
	}
	if n := b.asks("/api/v1/sites", "", 10); n != 10 {
		t.Errorf("%d requests without a token, want 10: they try none", n)
	}
}

// TestLimitsAreChecked has a CO refuse limits that let nothing through.
func TestLimitsAreChecked(t *testing.T) {
	t.Parallel()
	o := identified(t)
	o.Access.Limits.Failures.Burst, o.Access.Limits.Open = 0, -1
	err := o.Validate()
	for _, want := range []string{"access.limits.failures.burst 0", "access.limits.open -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
