package inprocess

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTransport reaches a server of the process by its address, and others by the network.
func TestTransport(t *testing.T) {
	t.Parallel()
	echo := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, name+" "+string(b))
		})
	}
	l := Listen("127.0.0.1:1") // without a listener
	s := &http.Server{Handler: echo("own")}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	network := httptest.NewServer(echo("network"))
	defer network.Close()
	transport := l.Transport()
	client := &http.Client{Transport: transport}
	long := strings.Repeat("x", 1<<20)
	for base, want := range map[string]string{"http://" + l.Addr().String(): "own " + long, network.URL: "network " + long} {
		for range 2 {
			resp, err := client.Post(base, "text/plain", strings.NewReader(long))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil || string(b) != want {
				t.Errorf("%s: %.20s %v", base, b, err)
			}
		}
	}
	transport.CloseIdleConnections()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if _, err := client.Get("http://" + l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
