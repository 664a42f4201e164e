package broker_test

import (
	"sync/atomic"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/limits"
)

// A verifier is an Access that takes its time for the second connection.
type verifier struct {
	free
	asked   *atomic.Int32
	begun   chan struct{} // closed when it looks at the second one
	release chan struct{}
}

func (v verifier) Connect(i access.ConnectInfo) (access.Identity, error) {
	if v.asked.Add(1) == 2 {
		close(v.begun)
		<-v.release
	}
	return v.free.Connect(i)
}

// A connection that gives way while its password is looked at does not take over that of its client, and counts once.
func TestGaveWayWhilePasswordIsVerified(t *testing.T) {
	t.Parallel()
	v := verifier{asked: new(atomic.Int32), begun: make(chan struct{}), release: make(chan struct{})}
	var log lines
	b, reg := start(t, v, func(o *broker.Options) {
		log.logged(o)
		o.Limits = limits.Limits{ConnectTimeout: patience, ConnectLimits: limits.ConnectLimits{ConnectionsPerAddress: 1}}
	})
	live := dialRaw(t, b.Addr("main"))
	live.mustConnect("app@1", nil)
	second := dialRaw(t, b.Addr("main"))
	second.write(wire(0x10, "\x00\x04MQTT\x05\x82\x00\x3c\x00"+text("app@1")+text("app@1")))
	<-v.begun
	for range 80 { // more than may wait for their refusal
		_ = dialRaw(t, b.Addr("main"))
	}
	until(t, "it gives way", func() bool { return metric(t, reg, "refused_total", "address_limit") > 0 })
	close(v.release)
	second.wantEnd()
	until(t, "the broker is done with it", func() bool {
		return log.has("gave way to another connection before its client was known") || metric(t, reg, "takeovers_total") > 0
	})
	live.ping()
	if n := metric(t, reg, "takeovers_total"); n != 0 {
		t.Errorf("%v connections were taken over", n)
	}
	if n := metric(t, reg, "refused_total", "0x97"); n != 0 {
		t.Errorf("%v connections that gave way are counted as refused too", n)
	}
}

// Nothing comes before CONNACK, also where a connection is taken over that waits for the disk to get it. [MQTT-3.14.0-1]
func TestTakeoverBeforeConnack(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			d := newHeldDisk()
			s := attackedAs(t, w, free{}, limits.Limits{ConnectTimeout: patience}, func(o *broker.Options) {
				o.Sessions = broker.Sessions{Dir: "sessions", Disk: d}
			})
			d.hold()
			connect := func() *raw {
				c, err := s.dial()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				r := rawOver(t, c)
				r.write(wire(0x10, "\x00\x04MQTT\x05\x80\x00\x3c\x05\x11\x00\x00\x0e\x10"+text("app")+text("app")))
				return r
			}
			first := connect()
			until(t, "the first connection is there", func() bool { return len(s.b.Clients()) == 1 })
			next := connect()
			if p, err := first.next(); err == nil {
				t.Errorf("packet %d with 0x%02x comes before CONNACK", p.FixedHeader.Type, p.ReasonCode)
			}
			d.release()
			next.want(packets.Connack) // it may have waited for too long
		})
	}
}
