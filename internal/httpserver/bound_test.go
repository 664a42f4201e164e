package httpserver

import (
	"math"
	"net"
	"net/http"
	"testing"

	"github.com/colonyfleet/colony/internal/descriptors"
)

func TestConnections(t *testing.T) {
	t.Parallel()
	for most, want := range map[uint64]int{0: 64, 128: 64, 1024: 256, 20_000: 5000, 1 << 20: 1 << 14, math.MaxUint64: 1 << 14} {
		if got := connections(most); got != want {
			t.Errorf("with %d descriptors: %d connections, want %d", most, got, want)
		}
	}
}

// counted is a listener that counts what it has accepted.
type counted struct {
	net.Listener
	accepted chan net.Conn
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted <- conn
	}
	return conn, err
}

// TestBound opens more connections than a server takes: the last one is served once another ends.
func TestStartBoundsConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := counted{l, make(chan net.Conn, mostConns+1)}
	limit := connections(descriptors.Limit())
	if limit > 2000 {
		limit = 2000 // as many as a test may open
	}
	server := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Limits{}, nil)
	s := Start(bound(c, limit), server, func(err error) { t.Error(err) })
	t.Cleanup(func() {
		if err := s.Stop(t.Context()); err != nil {
			t.Log(err)
		}
	})
	var open []net.Conn
	t.Cleanup(func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range limit {
		open = append(open, dial())
		<-c.accepted
	}
	last := dial()
	defer last.Close()
	select {
	case <-c.accepted:
		t.Fatalf("connection %d was accepted while %d are open", limit+1, limit)
	default:
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	<-c.accepted
}
