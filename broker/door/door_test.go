package door

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/metrics"
	"github.com/colonyfleet/colony/broker/peers"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/internal/refusals"
)

// A dead connection fails.
type dead struct {
	net.Conn
	err error
}

func (d dead) Read([]byte) (int, error)    { return 0, d.err }
func (d dead) Write([]byte) (int, error)   { return 0, d.err }
func (d dead) SetDeadline(time.Time) error { return nil }
func (d dead) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// A client that leaves in its TLS handshake, however the system says so, has not failed it.
func TestLeavingIsNoFailedHandshake(t *testing.T) {
	t.Parallel()
	none := func() int64 { return 0 }
	system := func(err error) error { return &net.OpError{Op: "write", Err: os.NewSyscallError("write", err)} }
	for cause, failed := range map[error]int{
		io.EOF: 0, system(syscall.ECONNRESET): 0, system(syscall.EPIPE): 0, net.ErrClosed: 0, os.ErrDeadlineExceeded: 0, errors.New("tls: no such version"): 1,
	} {
		log := slog.New(slog.DiscardHandler)
		m := metrics.New("test", metrics.Held{Retained: none, RetainedBytes: none, Waiting: none, Sessions: func() (s sessions.Stats) { return s }})
		d := New(Options{Limits: &limits.Limits{}, Metrics: m, Refused: refusals.New(log), Logger: log})
		entry, _ := peers.New(peers.Limits{}).Enter("192.0.2.1", time.Now(), io.NopCloser(nil))
		if got := d.Secure(tls.Server(dead{err: cause}, &tls.Config{MinVersion: tls.VersionTLS12}), entry, "main"); !errors.Is(got, cause) {
			t.Errorf("%v: the handshake ends with %v", cause, got)
		}
		reg := prometheus.NewRegistry()
		if err := m.Register(reg); err != nil {
			t.Fatal(err)
		}
		if got, err := testutil.GatherAndCount(reg, "colony_broker_refused_total"); err != nil || got != failed {
			t.Errorf("%v: %v kinds of failed handshakes are counted, want %v", cause, got, failed)
		}
	}
}
