package broker_test

import (
	"bytes"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/limits"
)

// bottom is the socket of a connection.
func bottom(c net.Conn) syscall.Conn {
	for {
		over, wraps := c.(interface{ NetConn() net.Conn })
		if !wraps {
			return c.(syscall.Conn)
		}
		c = over.NetConn()
	}
}

// stops is an attacker that subscribes and has its system take nothing more: its buffer has no room for what was announced.
func (s *siege) stops() *raw {
	s.t.Helper()
	r := s.attacker("slow", nil)
	r.subscribe("much", 0)
	if err := bottom(r.conn).(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// awaitReset waits until the system has learnt that a connection was reset. Nothing is read: what the broker's system had
// for it would then be read too.
func (s *siege) awaitReset(c net.Conn) {
	s.t.Helper()
	raw, err := bottom(c).SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "the connection is reset", func() bool {
		reset := 0
		if err := raw.Control(func(fd uintptr) { reset, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR) }); err != nil {
			s.t.Fatal(err)
		}
		return reset != 0
	})
}

// A client that is ended because it does not read is ended at once: the system does not go on to offer it what it did
// not take, some MB for each, in connections that no limit counts.
func TestSlowClientsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name+"/its buffer is full", func(t *testing.T) {
			t.Parallel()
			s := attacked(t, w, limits.Limits{WriteBuffer: 1 << 20, PacketBytes: 1 << 20})
			r := s.stops()
			until(t, "it is disconnected", func() bool {
				put(t, s.b, broker.Message{Topic: "much", Payload: make([]byte, 128<<10)})
				return metric(t, s.reg, "dropped_total", "slow_client") == 1
			})
			s.awaitReset(r.conn)
		})
		t.Run(w.name+"/it takes nothing", func(t *testing.T) {
			t.Parallel()
			s := attacked(t, w, limits.Limits{WriteBuffer: 64 << 20, WriteTimeout: 200 * time.Millisecond})
			r := s.stops()
			for range 60 { // more than the systems of both ends keep, and less than may wait
				put(t, s.b, broker.Message{Topic: "much", Payload: make([]byte, 1<<20)})
			}
			until(t, "it is disconnected", func() bool { return metric(t, s.reg, "dropped_total", "write_timeout") == 1 })
			s.awaitReset(r.conn)
		})
		t.Run(w.name+"/it asks and asks", func(t *testing.T) {
			t.Parallel()
			s := attacked(t, w, limits.Limits{WriteBuffer: 1 << 20})
			r := s.attacker("asks", nil)
			filters := bytes.Repeat([]byte{0, 1, 't'}, 1000)
			length := 3 + len(filters)
			ask := append([]byte{packets.Unsubscribe<<4 | 2, byte(length) | 0x80, byte(length >> 7), 0, 1, 0}, filters...)
			for { // each answer has 1,000 bytes
				if _, err := r.conn.Write(ask); err != nil {
					break
				}
			}
			until(t, "it is counted", func() bool { return metric(t, s.reg, "dropped_total", "slow_client") == 1 })
		})
	}
}

// A client that reads slowly, and does read, is served to the end, whatever lies under MQTT.
func TestSlowClientsThatReadStay(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := attacked(t, w, limits.Limits{WriteBuffer: 64 << 20, WriteTimeout: patience})
			r := s.attacker("slow", nil)
			r.subscribe("much", 0)
			const messages = 20
			for i := range messages {
				put(t, s.b, broker.Message{Topic: "much", Payload: fmt.Append(make([]byte, 1<<20), i)})
			}
			if metric(t, s.reg, "write_buffer_bytes") == 0 {
				t.Error("nothing waits: the test shows nothing")
			}
			for i := range messages {
				p := r.want(packets.Publish)
				if got := string(p.Payload[1<<20:]); got != fmt.Sprint(i) {
					t.Errorf("message %d is %s", i, got)
				}
			}
			r.ping()
			if n := metric(t, s.reg, "dropped_total"); n != 0 {
				t.Errorf("%v dropped, want none", n)
			}
		})
	}
}
