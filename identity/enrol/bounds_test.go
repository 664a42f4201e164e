package enrol_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
)

// A deadlined records the deadline for what is read.
type deadlined struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error {
	d.until = t
	return nil
}

// A body says what the deadline is when it is read.
type body struct {
	*strings.Reader
	w    *deadlined
	seen []time.Time
}

func (b *body) Read(p []byte) (int, error) {
	b.seen = append(b.seen, b.w.until)
	return b.Reader.Read(p)
}

// TestSlowBody checks that a question has one deadline as a whole, which the decision does not
// have, and that a body that is too long keeps it.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	for text, whole := range map[string]bool{`{"site":`: true, `{}` + strings.Repeat(" ", 1<<20): false} {
		s := enrol.NewServer(enrol.ServerOptions{Registrar: &registrar{}, Tier: identity.LO, Logger: slog.New(slog.DiscardHandler)})
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		b := &body{Reader: strings.NewReader(text), w: w}
		before := time.Now()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/enrol/v1/join", b))
		if len(b.seen) == 0 || !b.seen[0].After(before) || b.seen[0].After(time.Now().Add(10*time.Second)) {
			t.Fatalf("deadlines %v: want one, at most 10 s away", b.seen)
		}
		for _, at := range b.seen {
			if !at.Equal(b.seen[0]) {
				t.Errorf("the deadline moved from %s to %s", b.seen[0], at)
			}
		}
		if w.until.IsZero() != whole {
			t.Errorf("a body of %d bytes: after it the deadline is %s", len(text), w.until)
		}
		if w.Code != http.StatusUnprocessableEntity {
			t.Errorf("a body of %d bytes: %d", len(text), w.Code)
		}
	}
}

// A counted is a listener that counts its connections.
type counted struct {
	net.Listener
	mu                sync.Mutex // protects what follows
	open, most, total int
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.total = c.open+1, c.total+1
	c.most = max(c.most, c.open)
	return &countedConn{Conn: conn, of: c}, nil
}

func (c *counted) numbers() (most, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most, c.total
}

type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.open--
	})
	return c.Conn.Close()
}

// TestManyConnections checks that a client that opens connections without end gets a bounded number
// of them, and that the next ones are served as those end.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	f := newFleet(t, identity.OfCO(), identity.LO)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit, all = 256, 300
	conns := make([]net.Conn, all)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", raw.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	l := &counted{Listener: raw}
	server := enrol.Start(l, enrol.ServerOptions{
		Holder: f.holder, Registrar: f.registrar, Tier: identity.LO, Logger: slog.New(slog.DiscardHandler),
		Authority: func() (*identity.Authority, error) { return f.root, nil },
	}, func(err error) { t.Errorf("the server failed: %v", err) })
	defer func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	wait := func(want int) {
		t.Helper()
		tick, late := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
		defer tick.Stop()
		for {
			if _, total := l.numbers(); total >= want {
				return
			}
			select {
			case <-tick.C:
			case <-late:
				_, total := l.numbers()
				t.Fatalf("%d connections accepted after a minute, want %d", total, want)
			}
		}
	}
	wait(limit)
	for _, c := range conns {
		_ = c.Close()
	}
	wait(all)
	if most, _ := l.numbers(); most > limit {
		t.Errorf("%d connections at a time, want at most %d", most, limit)
	}
	m := f.machine(t, identity.OfLO("plant1"), identity.OfCO())
	m.Addresses = []string{raw.Addr().String()}
	if _, err := enrol.Join(t.Context(), m, f.token); err != nil {
		t.Errorf("a machine, after them: %v", err)
	}
}
