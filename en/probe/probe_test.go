package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/internal/memnet"
	"github.com/colonyfleet/colony/protocol"
)

type execer func(ctx context.Context, command []string) (engine.ExecResult, error)

func (e execer) Exec(ctx context.Context, _ engine.ID, command []string) (engine.ExecResult, error) {
	return e(ctx, command)
}

func port(t *testing.T, addr string) uint16 {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
		case "/moved":
			http.Redirect(w, r, "/nowhere", http.StatusFound)
		default:
			http.Error(w, "the database\nis away", http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	p := New(nil, nil)
	for _, c := range []struct {
		path string
		ok   bool
		want string
	}{{"/ok", true, ""}, {"ok", true, ""}, {"/moved", true, ""}, {"/bad", false, "503 Service Unavailable: is away"}, {"/%zz", false, "path is wrong"}} {
		h := protocol.Health{HTTP: c.path, Port: port(t, srv.Listener.Addr().String())}
		ok, message, err := p.Probe(t.Context(), plan.Target{IP: "127.0.0.1", Health: h})
		if ok != c.ok || err != nil || !strings.Contains(message, c.want) {
			t.Errorf("%s: %v, %q, %v; want %v and %q", c.path, ok, message, err, c.ok, c.want)
		}
	}
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := plan.Target{Health: protocol.Health{Port: port(t, l.Addr().String())}} // no IP: the host's network
	p := New(nil, nil)
	if ok, message, err := p.Probe(t.Context(), target); !ok || err != nil {
		t.Errorf("open port: %v, %q, %v", ok, message, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if ok, message, err := p.Probe(t.Context(), target); ok || err != nil || !strings.Contains(message, "refused") {
		t.Errorf("closed port: %v, %q, %v", ok, message, err)
	}
}

// TestInMemory probes a container on a network in memory: both kinds of probe use the Dial that the prober is given.
func TestInMemory(t *testing.T) {
	t.Parallel()
	network := memnet.New(1)
	l, err := network.Host("10.88.0.2").Listen(t.Context(), "tcp", "10.88.0.2:8080")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ok" {
			http.Error(w, "no disk", http.StatusServiceUnavailable)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the server ended: %v", err)
		}
	})
	p := New(nil, network.Host("node").DialContext)
	for _, c := range []struct {
		name   string
		health protocol.Health
		ok     bool
		want   string
	}{
		{"http", protocol.Health{HTTP: "/ok", Port: 8080}, true, ""},
		{"http, unhealthy", protocol.Health{HTTP: "/bad", Port: 8080}, false, "503 Service Unavailable: no disk"},
		{"tcp", protocol.Health{Port: 8080}, true, ""},
		{"tcp, closed port", protocol.Health{Port: 8081}, false, "refused"},
	} {
		ok, message, err := p.Probe(t.Context(), plan.Target{IP: "10.88.0.2", Health: c.health})
		if ok != c.ok || err != nil {
			t.Errorf("%s: healthy %t, %v; want %t", c.name, ok, err, c.ok)
		}
		if !strings.Contains(message, c.want) {
			t.Errorf("%s: message %q, want %q", c.name, message, c.want)
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		result  engine.ExecResult
		err     error
		ok      bool
		want    string
		wantErr bool
	}{
		{name: "healthy", ok: true},
		{name: "unhealthy", result: engine.ExecResult{ExitCode: 3, Output: []byte("first\nno\x00 disk\n")}, want: "exited with 3: no  disk"},
		{name: "no such command", err: engine.Errorf(protocol.StartFailed, "no such file"), want: "could not run: no such file"},
		{name: "container gone", err: protocol.Errorf(protocol.NotFound, "does not run"), wantErr: true},
		{name: "engine away", err: engine.Errorf(protocol.EngineUnavailable, "away"), wantErr: true},
		{name: "long answer", result: engine.ExecResult{ExitCode: 1, Output: []byte(strings.Repeat("é", 4000))}, want: "ééé"},
	} {
		p := New(execer(func(context.Context, []string) (engine.ExecResult, error) { return c.result, c.err }), nil)
		ok, message, err := p.Probe(t.Context(), plan.Target{Health: protocol.Health{Command: []string{"check"}}})
		if ok != c.ok || (err != nil) != c.wantErr || !strings.Contains(message, c.want) || len(message) > maxAnswer {
			t.Errorf("%s: %v, %q, %v", c.name, ok, message, err)
		}
	}
}

func TestSlowProbeIsUnhealthyAndCancelledOneIsNot(t *testing.T) {
	t.Parallel()
	p := New(execer(func(ctx context.Context, _ []string) (engine.ExecResult, error) {
		<-ctx.Done()
		return engine.ExecResult{}, ctx.Err()
	}), nil)
	target := plan.Target{Health: protocol.Health{Command: []string{"hang"}}, Timeout: time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), target.Timeout)
	defer cancel()
	if ok, message, err := p.Probe(ctx, target); ok || err != nil || !strings.Contains(message, "longer than 1ms") {
		t.Errorf("slow: %v, %q, %v", ok, message, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if ok, message, err := p.Probe(ctx, target); ok || err == nil {
		t.Errorf("cancelled: %v, %q, %v; want an error", ok, message, err)
	}
}
