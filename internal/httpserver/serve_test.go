package httpserver_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/httpserver"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// get asks on a connection of its own.
func get(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestServesUntilStopped(t *testing.T) {
	t.Parallel()
	l := listen(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	s := httpserver.Start(l, httpserver.New(h, httpserver.Limits{}, nil), func(err error) { t.Errorf("the server failed: %v", err) })
	if body, err := get(t.Context(), l.Addr().String()); body != "hello" || err != nil {
		t.Errorf("answer %q, %v", body, err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if _, err := get(t.Context(), l.Addr().String()); err == nil {
		t.Error("a request after Stop was answered")
	}
}

// TestStopDoesNotWaitForever stops a server with a request that ends only with its
// connection.
func TestStopDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	l, serving := listen(t), make(chan struct{})
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(serving)
		<-r.Context().Done()
	})
	s := httpserver.Start(l, httpserver.New(h, httpserver.Limits{}, nil), func(err error) { t.Errorf("the server failed: %v", err) })
	asked := make(chan error, 1)
	go func() {
		_, err := get(context.WithoutCancel(t.Context()), l.Addr().String())
		asked <- err
	}()
	<-serving
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop: error %v, want %v", err, context.Canceled)
	}
	if err := <-asked; err == nil {
		t.Error("the request that was cut off got an answer")
	}
}

func TestFailureIsReported(t *testing.T) {
	t.Parallel()
	l, failed := listen(t), make(chan error, 1)
	s := httpserver.Start(l, httpserver.New(http.NotFoundHandler(), httpserver.Limits{}, nil), func(err error) { failed <- err })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !strings.Contains(err.Error(), "serve http on "+l.Addr().String()) {
		t.Errorf("reported %q, want the address in it", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// TestStopDoesNotWaitForUnusedConnections stops a server with a connection that a client
// made in advance.
func TestStopDoesNotWaitForUnusedConnections(t *testing.T) {
	t.Parallel()
	l := listen(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	s := httpserver.Start(l, httpserver.New(h, httpserver.Limits{}, nil), func(err error) { t.Errorf("the server failed: %v", err) })
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	// The server accepts in order: after this answer it has the other one.
	if body, err := get(t.Context(), l.Addr().String()); body != "hello" || err != nil {
		t.Fatalf("answer %q, %v", body, err)
	}
	// Shutdown by itself would wait until the connection is 5 s old.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
}
