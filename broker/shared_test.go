package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
)

// widely is an access control that lets everybody subscribe with wildcards, as devices may, and lets the client
// "intruder" receive nothing.
type widely struct{ free }

func (widely) MaySubscribe(id access.Identity, topic string) bool {
	return strings.ContainsAny(topic, "+#") || id.Name != "intruder"
}

// A member of a shared subscription that may not receive a topic gets nothing of it, and no other member misses
// what its turn would have been: online, with a session, away, and where the others lag behind.
func TestSharedWithOneThatMayNot(t *testing.T) {
	t.Parallel()
	const filter, topic, messages = "$share/g/t/#", "t/1", 8
	for name, expiry := range map[string]uint32{"without sessions": 0, "with sessions": 3600} {
		for _, qos := range []byte{0, 1} {
			t.Run(fmt.Sprintf("%s, QoS %d", name, qos), func(t *testing.T) {
				t.Parallel()
				b, reg := start(t, widely{}, stored(t, sessions.Limits{}))
				intruder, worker := dialStored(t, b, "intruder", false, lasting(expiry)), dialStored(t, b, "worker", false, lasting(expiry))
				for _, r := range []*raw{intruder, worker} {
					if got := r.subscribe(filter, qos); got != qos {
						t.Fatalf("subscribe: 0x%02x", got)
					}
				}
				send := func() {
					for i := range messages {
						put(t, b, broker.Message{Topic: topic, Payload: fmt.Append(nil, i), QoS: qos})
					}
				}
				receive := func() {
					for i := range messages {
						if p := worker.wantMessage(fmt.Sprint(i), false); qos > 0 {
							worker.ack(packets.Puback, p.PacketID)
						}
					}
				}
				send()
				receive()
				if expiry > 0 && qos > 0 {
					until(t, "all is acknowledged", func() bool { return metric(t, reg, "session_messages") == 0 })
					leave(t, reg, worker)
					send()
					worker = dialStored(t, b, "worker", true, lasting(expiry))
					receive()
				}
				intruder.ping() // and nothing before its answer
			})
		}
	}
}

// The same where the member that may receive a topic is the one that lags behind.
func TestSharedWithOneThatMayNotWhileOthersLag(t *testing.T) {
	t.Parallel()
	b, _ := start(t, widely{}, func(o *broker.Options) { o.Limits.WriteBuffer = 64 << 10 })
	intruder, slow := guest(t, b, "intruder"), dialRaw(t, b.Addr("main"))
	slow.mustConnect("slow", func(p *packets.Packet) { p.Properties.ReceiveMaximum = 1 })
	intruder.subscribe("$share/g/t/#", 1)
	slow.subscribe("$share/g/t/#", 1)
	slow.subscribe("fill", 1)
	for range 3 { // one is sent, and the others wait for its acknowledgement
		put(t, b, broker.Message{Topic: "fill", Payload: make([]byte, 16_000), QoS: 1})
	}
	for i := range 2 {
		put(t, b, broker.Message{Topic: "t/1", Payload: fmt.Append(nil, i), QoS: 1})
	}
	for range 3 {
		slow.ack(packets.Puback, slow.want(packets.Publish).PacketID)
	}
	for i := range 2 {
		slow.ack(packets.Puback, slow.wantMessage(fmt.Sprint(i), false).PacketID)
	}
	intruder.ping()
}
