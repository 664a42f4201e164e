package broker

import (
	"fmt"
	"strconv"
	"time"

	"github.com/colonyfleet/colony/broker/message"
)

// sysPrefix opens the topics on which the broker reports its counters. The names are
// those of Mosquitto, so that its dashboards work.
const sysPrefix = "$SYS/broker/"

// keepHouse forgets retained messages whose time is up, and publishes the $SYS
// topics. What it does each second costs nothing where nothing is due.
func (b *Broker) keepHouse() {
	expire, tell := time.NewTicker(time.Second), time.NewTicker(b.o.SysInterval)
	defer expire.Stop()
	defer tell.Stop()
	b.publishSys()
	for {
		select {
		case now := <-expire.C:
			b.routes.Retained.Expire(now)
			b.expireSessions()
		case <-tell.C:
			b.publishSys()
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *Broker) publishSys() {
	values, uptime := b.metrics.Sys()
	for name, v := range values {
		b.publishSysTopic(name, strconv.FormatInt(v, 10))
	}
	b.publishSysTopic("uptime", fmt.Sprintf("%d seconds", int64(uptime.Seconds())))
	b.publishSysTopic("version", "colony")
}

func (b *Broker) publishSysTopic(name, value string) {
	_ = b.routes.Distribute(&message.Message{Topic: sysPrefix + name, Payload: []byte(value), Retain: true}, b.pace.Waiting(0)) // nothing of QoS 0 is stored
}
