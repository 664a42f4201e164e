package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// patience is how long a test waits for what must happen, also on a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a Server until the test ends or stop, and returns its base URL.
func serve(t *testing.T, o Options) (base string, stop func()) {
	t.Helper()
	var err error
	if o.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") })
	o.Logger = slog.New(slog.DiscardHandler)
	s := New(o)
	ran := make(chan error, 1)
	go func() { ran <- s.Run() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	return "http://" + o.Listener.Addr().String(), stop
}

func get(t *testing.T, url string) (status int, body []byte, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, Options{Status: func() any { return map[string]int{"generation": 7} }})
	for path, want := range map[string]map[string]any{
		"/healthz": {"status": "ok"}, "/readyz": {"status": "ready"}, "/status": {"generation": float64(7)},
	} {
		status, body, err := get(t, base+path)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: status %d, error %v", path, status, err)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if _, body, err := get(t, base+"/metrics"); err != nil || string(body) != "metrics" {
		t.Errorf("/metrics: %q, error %v", body, err)
	}
	if status, _, err := get(t, base+"/v2/"); err != nil || status != http.StatusNotFound {
		t.Errorf("/v2/ without images: status %d, error %v, want 404", status, err)
	}
}

// TestStopCutsOff stops a Server while a node pulls an image that does not end.
func TestStopCutsOff(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{})
	base, stop := serve(t, Options{Images: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	})})
	pulled := make(chan error, 1)
	go func() {
		_, _, err := get(t, base+"/v2/app/blobs/x")
		pulled <- err
	}()
	<-reached
	stop()
	if err := <-pulled; err == nil {
		t.Error("the pull ended without an error")
	}
}
