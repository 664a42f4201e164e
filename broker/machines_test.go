package broker_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/protocol"
)

// parts lets all in, and takes whose client id has an @ for clients, and the others for machines of Colony.
type parts struct{ free }

func (parts) Connect(i access.ConnectInfo) (access.Identity, error) {
	id := access.Identity{Name: i.ClientID, Node: protocol.NodeID(i.ClientID)}
	if strings.Contains(i.ClientID, "@") {
		id.Node, id.Client = "", i.ClientID
	}
	return id, nil
}

// Clients that connect without end, and connections that say nothing, leave machines of Colony what is kept for them:
// a client gets the reason, a silent connection gives way, and a client that is there may come back.
func TestConnectionsKeptForMachines(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := attackedAs(t, w, parts{}, limits.Limits{ // 18 for clients, two on trial
				Connections: 28, ConnectTimeout: patience, ConnectLimits: limits.ConnectLimits{MachineConnections: 8},
			})
			greet := func(id string) (*raw, error) {
				t.Helper()
				c, err := s.dial()
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { _ = c.Close() })
				r := rawOver(t, c)
				return r, s.greet(r, id)
			}
			for i := range 18 {
				if _, err := greet(fmt.Sprint("app@", i)); err != nil {
					t.Fatalf("client %d: %v", i, err)
				}
			}
			if _, err := greet("late@0"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("0x%02x", packets.ErrQuotaExceeded.Code)) {
				t.Errorf("a client too many: %v, want 0x97", err)
			}
			if _, err := greet("app@7"); err != nil {
				t.Errorf("a client that takes over its own connection: %v", err)
			}
			end := s.silent(10)
			defer end()
			until(t, "silent connections gave way", func() bool { return metric(t, s.reg, "refused_total", "connections") >= 8 })
			for i := range 8 {
				until(t, "a machine is let in", func() bool { // one on trial may give way to the next
					_, err := greet(fmt.Sprint("gw-", i))
					return err == nil
				})
			}
			if _, err := greet("late@1"); err == nil {
				t.Error("a client took what is kept for machines")
			}
		})
	}
}

// Connections that say nothing hold all places of an address, and those to wait there: a machine with a certificate
// gets in from the same address, and no other client.
func TestMachineAtFullAddress(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		if !w.tls {
			continue
		}
		for what, l := range map[string]limits.ConnectLimits{"in all": {ConnectionsPerAddress: 3}, "begun per second": {ConnectRatePerAddress: 0.001}} {
			t.Run(w.name+"/"+what, func(t *testing.T) {
				t.Parallel()
				s := attackedAs(t, w, parts{}, limits.Limits{ConnectTimeout: patience, ConnectLimits: l})
				end := s.silent(3 + 64 + 5) // 64 wait for the reason
				defer end()
				until(t, "the address has as many as may wait", func() bool { return metric(t, s.reg, "refused_total", "address_limit") >= 5 })
				if s.joins("gw-0") || s.joins("app@0") {
					t.Error("a client without a certificate got in")
				}
				s.tls.Certificates = []tls.Certificate{s.cert}
				for i := range 5 { // they count for no address
					if id := fmt.Sprint("gw-", i); !s.joins(id) {
						t.Errorf("machine %s did not get in", id)
					}
				}
			})
		}
	}
}

// A held connection waits with the server's first answer until its owner lets it go on.
type held struct {
	net.Conn
	answered sync.Once
	got, on  chan struct{}
}

func (h *held) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.answered.Do(func() { close(h.got) })
	<-h.on
	return n, err
}

// A machine that is within its TLS handshake, at an address where as many wait as may, stays while 200 connections come that say
// nothing, and gets in.
func TestMachineWithinItsHandshake(t *testing.T) {
	t.Parallel()
	w := ways[slices.IndexFunc(ways, func(w way) bool { return w.tls && !w.web })]
	s := attackedAs(t, w, parts{}, limits.Limits{ConnectTimeout: patience, ConnectLimits: limits.ConnectLimits{ConnectionsPerAddress: 3}})
	defer s.silent(3 + 64)()
	s.tls.Certificates, s.tls.ServerName = []tls.Certificate{s.cert}, "127.0.0.1"
	h := &held{Conn: s.socket(), got: make(chan struct{}), on: make(chan struct{})}
	t.Cleanup(func() { _ = h.Close() })
	c := tls.Client(h, s.tls)
	done := make(chan error, 1)
	go func() { done <- c.Handshake() }()
	<-h.got
	defer s.silent(200)()
	until(t, "200 gave way", func() bool { return metric(t, s.reg, "refused_total", "address_limit") >= 200 })
	close(h.on)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.greet(rawOver(t, c), "gw-0"); err != nil {
		t.Error(err)
	}
}

// Half of the connections is the most that one address has where the configuration says nothing.
func TestDefaultsOfConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ all, machines, address int }{{896, 112, 448}, {100_000, 1024, 50_000}, {10, 1, 64}} {
		l := limits.Limits{Connections: c.all}
		if l.Defaults(); l.MachineConnections != c.machines || l.ConnectionsPerAddress != c.address {
			t.Errorf("of %d connections %d are kept for machines and %d are for an address, want %d and %d", c.all, l.MachineConnections, l.ConnectionsPerAddress, c.machines, c.address)
		}
	}
	var none limits.Limits
	if none.Defaults(); none.MachineConnections != 0 || none.ConnectionsPerAddress != 0 {
		t.Errorf("without a limit: %d and %d", none.MachineConnections, none.ConnectionsPerAddress)
	}
	l := limits.Limits{Connections: 40}
	if l.Defaults(); !strings.Contains(l.TooMany("", true), "33 of 40") {
		t.Errorf("of 40 connections: %s", l.TooMany("", true))
	}
	o := broker.Options{Access: parts{}, Logger: testLog(t), Limits: limits.Limits{Connections: 100, ConnectLimits: limits.ConnectLimits{MachineConnections: 80}}}
	if _, err := broker.New(o); err == nil || !strings.Contains(err.Error(), "limits.machineConnections") {
		t.Errorf("all connections for machines: %v", err)
	}
}
