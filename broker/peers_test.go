package broker_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// dialFrom is dialRaw from another address of this machine.
func dialFrom(t *testing.T, from, addr string) *raw {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return rawOver(t, c)
}

// An address has so many connections, half open ones among them; others have theirs, and a client may take
// over its own.
func TestConnectionsPerAddress(t *testing.T) {
	t.Parallel()
	b, reg := start(t, free{}, limited(limits.Limits{ConnectLimits: limits.ConnectLimits{ConnectionsPerAddress: 3}}))
	first := guest(t, b, "c0")
	guest(t, b, "c1")
	dialRaw(t, b.Addr("main")).write("\x10") // half open
	until(t, "three connections count", func() bool {
		r := dialRaw(t, b.Addr("main"))
		ack := r.connect("c3", nil)
		_ = r.conn.Close()
		return ack.ReasonCode == 0x97
	})
	old := dialRaw(t, b.Addr("main"))
	old.version = 4
	if ack := old.connect("c3", nil); ack.ReasonCode != 3 {
		t.Errorf("MQTT 3.1.1: CONNACK %d, want 3", ack.ReasonCode)
	}
	dialFrom(t, "127.0.0.2", b.Addr("main")).mustConnect("elsewhere", nil)
	again := dialRaw(t, b.Addr("main"))
	again.mustConnect("c0", nil)
	first.wantCode(packets.Disconnect, 0x8e)
	if ack := dialRaw(t, b.Addr("main")).connect("elsewhere", nil); ack.ReasonCode != 0x97 {
		t.Errorf("taking over a client at another address: CONNACK 0x%02x, want 0x97", ack.ReasonCode)
	}
	if n := metric(t, reg, "refused_total", "0x97"); n < 3 {
		t.Errorf("%v refusals counted, want 3 at least", n)
	}
	again.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	until(t, "there is a place again", func() bool {
		return dialRaw(t, b.Addr("main")).connect("c4", nil).ReasonCode == 0
	})
}

// Above the limit so many wait for the reason; for a further one the oldest of them is closed.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	var log lines
	b, reg := start(t, free{}, func(o *broker.Options) {
		log.logged(o)
		o.Limits.ConnectionsPerAddress = 1
	})
	r := guest(t, b, "c")
	for range 80 { // they say nothing
		dialRaw(t, b.Addr("main"))
	}
	until(t, "16 are closed", func() bool { return metric(t, reg, "refused_total", "address_limit") >= 16 })
	until(t, "the log has some", func() bool { return log.has("connection closed", "127.0.0.1", "limits.connectionsPerAddress") })
	if n := log.count("connection closed"); n > 10 {
		t.Errorf("the log has %d closed connections, want 10", n)
	}
	dialFrom(t, "127.0.0.2", b.Addr("main")).mustConnect("elsewhere", nil)
	r.ping()
}

// An address that connects too often gets that reason, before its password is looked at.
func TestConnectRatePerAddress(t *testing.T) {
	t.Parallel()
	b, reg := start(t, noStrangers{}, limited(limits.Limits{ConnectLimits: limits.ConnectLimits{ConnectRatePerAddress: 0.001}}))
	guest(t, b, "c")
	for i := range 3 {
		r := dialRaw(t, b.Addr("main"))
		if ack := r.connect(fmt.Sprint("stranger", i), nil); ack.ReasonCode != 0x9f { // 0x87 is for access control to say
			t.Errorf("CONNACK 0x%02x, want 0x9f", ack.ReasonCode)
		}
		r.wantEnd()
	}
	dialFrom(t, "127.0.0.2", b.Addr("main")).mustConnect("elsewhere", nil)
	if n := metric(t, reg, "refused_total", "0x9f"); n != 3 {
		t.Errorf("%v refusals counted, want 3", n)
	}
}
