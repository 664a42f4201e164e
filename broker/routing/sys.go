package routing

import (
	"fmt"
	"strconv"

	"github.com/colonyfleet/colony/broker/message"
	"github.com/colonyfleet/colony/broker/transport"
)

// sysPrefix opens the topics on which the broker reports its counters. The names are
// those of Mosquitto, so that its dashboards work.
const sysPrefix = "$SYS/broker/"

// PublishSys publishes the $SYS topics. It waits for subscribers as wait says for each.
func (r *Router) PublishSys(wait func() *transport.Waiting) {
	publish := func(name, value string) {
		_ = r.Distribute(&message.Message{Topic: sysPrefix + name, Payload: []byte(value), Retain: true}, wait()) // nothing of QoS 0 is stored
	}
	values, uptime := r.o.Metrics.Sys()
	for name, v := range values {
		publish(name, strconv.FormatInt(v, 10))
	}
	publish("uptime", fmt.Sprintf("%d seconds", int64(uptime.Seconds())))
	publish("version", "colony")
}
