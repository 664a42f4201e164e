package broker_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// socketFrom is socket with an address of the loopback network as that of the client.
func (s *siege) socketFrom(address string) net.Conn {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.Dial("tcp", s.b.Addr("attacked"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Connections from many addresses hold all places of a broker and say nothing, or two bytes: clients of another address
// get in all the same, and stay.
func TestSilentFloodFromManyAddresses(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		for name, said := range map[string]string{"nothing": "", "two bytes": "\x10\x0a"} {
			if w.web && said != "" {
				continue // they are no HTTP, and end it
			}
			t.Run(w.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := attackedAs(t, w, parts{}, limits.Limits{ // 18 for clients, two on trial
					Connections: 28, ConnectTimeout: patience, ConnectLimits: limits.ConnectLimits{MachineConnections: 8},
				})
				flood := func(n int) {
					for i := range n {
						if _, err := s.socketFrom(fmt.Sprintf("127.0.1.%d", i%6+1)).Write([]byte(said)); err != nil && said != "" {
							return // it has given way already
						}
					}
				}
				flood(24)
				until(t, "all places are taken", func() bool { return metric(t, s.reg, "refused_total", "connections") >= 2 })
				for i := range 10 {
					until(t, "a client gets in", func() bool { return s.joins(fmt.Sprint("app@", i)) })
					flood(6)
				}
				if got := metric(t, s.reg, "clients_connected"); got != 10 {
					t.Errorf("%v clients are connected, want all 10", got)
				}
				if got := metric(t, s.reg, "refused_total", "tls"); got != 0 && said == "" {
					t.Errorf("%v connections that said nothing count as failed TLS handshakes", got)
				}
			})
		}
	}
}

// A client over TLS that says nothing until its time is up, or leaves, or gives way, has not failed its handshake.
func TestSilenceIsNoFailedHandshake(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		if !w.tls {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			var log lines
			s := attackedAs(t, w, parts{}, limits.Limits{Connections: 3, ConnectTimeout: 200 * time.Millisecond}, log.logged)
			silent := s.socketFrom("127.0.0.1")
			leaves := s.socketFrom("127.0.0.1")
			if _, err := leaves.Write([]byte{0x16, 3, 1, 2, 0, 1}); err != nil { // a ClientHello begins
				t.Fatal(err)
			}
			_ = leaves.Close()
			_ = silent.SetReadDeadline(time.Now().Add(patience))
			if _, err := silent.Read(make([]byte, 1)); err == nil {
				t.Error("a silent connection gets bytes")
			}
			until(t, "it is counted as timed out", func() bool { return metric(t, s.reg, "refused_total", "timeout") > 0 })
			until(t, "one gives way", func() bool { // unless their time is up before
				for range 3 {
					s.socketFrom("127.0.0.1")
				}
				s.socketFrom("127.0.0.2")
				return log.count("connection closed that had not identified itself") > 0
			})
			if got := metric(t, s.reg, "refused_total", "tls"); got != 0 || log.count("TLS handshake failed") > 0 {
				t.Errorf("%v failed handshakes are counted", got)
			}
			bad := s.socketFrom("127.0.0.3")
			if _, err := bad.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			until(t, "what is no TLS is a failed handshake", func() bool {
				return metric(t, s.reg, "refused_total", "tls") == 1 && log.count("TLS handshake failed") == 1
			})
		})
	}
}

// Each refusal of a client for a limit names the key of that limit, in the log or in what the client gets.
func TestRefusalsNameTheirLimit(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("a/", 10)
	subscribe := func(filters ...string) func(r *raw) {
		return func(r *raw) { r.write(subscribeWire(filters...)) }
	}
	for key, c := range map[string]struct {
		limits limits.Limits
		act    func(r *raw)
	}{
		"limits.levels":           {limits.Limits{Levels: 3}, subscribe(deep)},
		"limits.filters":          {limits.Limits{Filters: 1}, subscribe("a", "b")},
		"limits.filterBytes":      {limits.Limits{StateLimits: limits.StateLimits{FilterBytes: 10}}, subscribe(strings.Repeat("a", 11))},
		"limits.subscribeFilters": {limits.Limits{StateLimits: limits.StateLimits{SubscribeFilters: 1}}, subscribe("a", "b")},
		"limits.stateBytes":       {limits.Limits{StateLimits: limits.StateLimits{StateBytes: 100}}, subscribe("a")},
		"limits.packetBytes":      {limits.Limits{PacketBytes: 100}, func(r *raw) { r.publish("t", strings.Repeat("x", 200), 0, 0) }},
		"see limits.packetBytes":  {limits.Limits{PacketBytes: 100}, func(r *raw) { r.write("\x10\xc8\x01") }}, // a second CONNECT
		"limits.retainedBytes": {limits.Limits{RetainedBytes: 100}, func(r *raw) {
			r.send(packets.Packet{ProtocolVersion: 5, FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1, Retain: true}, TopicName: "t", PacketID: 1, Payload: []byte(strings.Repeat("x", 200))})
		}},
		"limits.userProperties": {limits.Limits{UserProperties: 1}, func(r *raw) {
			user := []packets.UserProperty{{Key: "a", Val: "b"}, {Key: "c", Val: "d"}}
			r.send(packets.Packet{ProtocolVersion: 5, FixedHeader: packets.FixedHeader{Type: packets.Publish}, TopicName: "t", Properties: packets.Properties{User: user}})
		}},
		"limits.unreadPerIdentity": {limits.Limits{UnreadPerIdentity: 1000}, func(r *raw) { r.write("\x30\x80\x80\x04", strings.Repeat("x", 3000)) }},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			var log lines
			b, _ := start(t, free{}, func(o *broker.Options) { log.logged(o); o.Limits = c.limits })
			r := dialRaw(t, b.Addr("main"))
			r.mustConnect("client", nil)
			c.act(r)
			until(t, "the log names the limit", func() bool { return log.has(key) })
		})
	}
	for key, l := range map[string]limits.Limits{
		"limits.connectBytes":          {ConnectBytes: 20},
		"limits.clientIDBytes":         {StateLimits: limits.StateLimits{ClientIDBytes: 10}},
		"limits.connectionsPerAddress": {ConnectLimits: limits.ConnectLimits{ConnectionsPerAddress: 1}},
		"limits.connectRatePerAddress": {ConnectLimits: limits.ConnectLimits{ConnectRatePerAddress: 0.001}},
		"limits.connections":           {Connections: 1},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			var log lines
			b, _ := start(t, free{}, func(o *broker.Options) { log.logged(o); o.Limits = l })
			until(t, "the log names the limit", func() bool {
				for range 2 {
					c, err := net.Dial("tcp", b.Addr("main"))
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close() //nolint:errcheck // it was refused
					id := strings.Repeat("x", 30)
					_, _ = c.Write(append([]byte{0x10, byte(13 + len(id)), 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60, 0, 0, byte(len(id))}, id...)) // it may be refused before
				}
				return log.has(key)
			})
		})
	}
}

// A connection that was refused, and that its client leaves open, counts until it is closed: it has its descriptor.
func TestRefusedConnectionsCount(t *testing.T) {
	t.Parallel()
	s := attackedAs(t, ways[0], parts{}, limits.Limits{Connections: 8})
	for i := range 12 { // one after the other
		_, _ = s.socketFrom("127.0.0.1").Write([]byte("\x10\x02\x00\x00")) // a CONNECT without a protocol; it may be closed before
		until(t, "it is refused", func() bool {
			return metric(t, s.reg, "refused_total", "malformed")+metric(t, s.reg, "refused_total", "connections") > float64(i)
		})
	}
	until(t, "some have no room", func() bool { return metric(t, s.reg, "refused_total", "connections") > 0 })
	until(t, "their places are free after a moment", func() bool { return s.joins("app@1") })
}
