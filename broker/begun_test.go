package broker_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/limits"
)

// full is the siege of a broker whose silent connections stay until they are closed.
func full(t *testing.T, w way, l limits.Limits) *siege {
	t.Helper()
	l.ConnectTimeout = patience
	return attacked(t, w, l)
}

// silent opens connections that say nothing, not even what TLS and WebSocket begin with. The function closes them.
func (s *siege) silent(n int) (end func()) {
	list := make([]net.Conn, 0, n)
	for range n {
		c := s.socket()
		s.t.Cleanup(func() { _ = c.Close() })
		list = append(list, c)
	}
	return func() {
		for _, c := range list {
			_ = c.Close()
		}
	}
}

// joins reports whether a client is accepted over the transport of the siege; it stays connected then.
func (s *siege) joins(id string) bool {
	s.t.Helper()
	c, err := s.dial()
	if err != nil {
		return false
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if s.greet(rawOver(s.t, c), id) != nil {
		_ = c.Close()
		return false
	}
	return true
}

// fills checks that n clients have room at once, each counted once, and no further one.
func (s *siege) fills(n int) {
	s.t.Helper()
	for i := range n {
		until(s.t, "there is room for a client", func() bool { return s.joins(fmt.Sprint("c", i)) })
	}
	if s.joins("one more") {
		s.t.Errorf("more than %d clients are connected", n)
	}
}

// A connection counts from its accept on, before TLS and WebSocket have begun, and once.
func TestSilentConnectionsCount(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name+"/in all", func(t *testing.T) {
			t.Parallel()
			s := full(t, w, limits.Limits{Connections: 3})
			end := s.silent(6)
			until(t, "those above the limit are closed", func() bool { return metric(t, s.reg, "refused_total", "connections") >= 3 })
			end()
			s.fills(3)
		})
		t.Run(w.name+"/of an address", func(t *testing.T) {
			t.Parallel()
			s := full(t, w, limits.Limits{ConnectLimits: limits.ConnectLimits{ConnectionsPerAddress: 3}})
			end := s.silent(3 + 64 + 5) // 64 wait for the reason
			until(t, "those above the limit are closed", func() bool { return metric(t, s.reg, "refused_total", "address_limit") >= 5 })
			dialFrom(t, "127.0.0.2", s.b.Addr("main")).mustConnect("elsewhere", nil)
			end()
			s.fills(3)
			if !s.joins("c0") {
				t.Error("a client cannot take over its own connection")
			}
		})
		t.Run(w.name+"/begun per second", func(t *testing.T) {
			t.Parallel()
			s := full(t, w, limits.Limits{ConnectLimits: limits.ConnectLimits{ConnectRatePerAddress: 0.001}})
			end := s.silent(1 + 64 + 5)
			until(t, "those above the limit are closed", func() bool { return metric(t, s.reg, "refused_total", "address_limit") >= 5 })
			end()
			until(t, "the rate is the reason", func() bool {
				r := dialRaw(t, s.b.Addr("main"))
				defer func() { _ = r.conn.Close() }()
				if s.greet(r, "late") == nil {
					t.Fatal("a connection too many is accepted")
				}
				return metric(t, s.reg, "refused_total", fmt.Sprintf("0x%02x", packets.ErrConnectionRateExceeded.Code)) > 0
			})
		})
	}
}
