package co_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/testpart"
)

// A route is one that the CO serves.
type route struct{ method, path string }

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// routes returns all routes: those of the API's own description, and those beside it.
func (b *bench) routes() []route {
	b.t.Helper()
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	b.call(http.MethodGet, "/openapi.json", nil, &doc)
	var all []route
	for path, methods := range doc.Paths {
		for method := range methods {
			all = append(all, route{strings.ToUpper(method), placeholder.ReplaceAllString(path, "plant")})
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json", "/v2/", "/v2/_catalog", "/v2/samples/hello/tags/list", "/v2/samples/hello/manifests/1.0.0"} {
		all = append(all, route{http.MethodGet, path})
	}
	all = append(all, route{http.MethodPost, "/v2/a/blobs/uploads/"}, route{http.MethodPut, "/v2/samples/hello/manifests/1.0.0"})
	slices.SortFunc(all, func(a, b route) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

// TestStuckClientsHoldUpNobody has, at each route, a client whose header does not end,
// one whose body does not come, and one that asks on and on and reads no answer. Other
// clients are served by every route meanwhile.
func TestStuckClientsHoldUpNobody(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.pushSample()
	routes := b.routes()
	if len(routes) < 30 {
		t.Fatalf("only %d routes: %v", len(routes), routes)
	}
	for _, r := range routes {
		b.stuck(fmt.Sprintf("%s %s HTTP/1.1\r\nHos", r.method, r.path))
		if r.method != http.MethodGet {
			b.stuck(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: co\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", r.method, r.path))
			continue
		}
		for _, accept := range []string{"*/*", "text/event-stream"} {
			b.stuck(strings.Repeat(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: co\r\nAccept: %s\r\n\r\n", r.path, accept), 500))
		}
	}
	for _, r := range routes {
		if r.method != http.MethodGet || strings.HasSuffix(r.path, "/stream") {
			continue
		}
		// A busy machine may not be ready for a moment, and says so.
		testpart.Within(t, 2*time.Minute, r.method+" "+r.path+" is served beside stuck clients", func() error { return b.served(r.path) })
	}
	b.pushSample() // writes, too
}

// served returns an error where a path is not answered within a minute, or by a fault.
func (b *bench) served(path string) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.co.HTTPAddr()+path, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 500 {
		err = fmt.Errorf("%s: %.300s", resp.Status, body)
	}
	return err
}

// stuck opens a connection that sends text as far as it is taken, and reads nothing.
func (b *bench) stuck(text string) {
	b.t.Helper()
	c, err := net.Dial("tcp", b.co.HTTPAddr())
	if err != nil {
		b.t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.WriteString(c, text)
	}()
	b.t.Cleanup(func() { _ = c.Close(); <-ended })
}
