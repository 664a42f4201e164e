package broker

import (
	"fmt"
	runtimemetrics "runtime/metrics"
	"strconv"
	"time"
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
			b.retained.Expire(now)
			b.expireSessions()
		case <-tell.C:
			b.publishSys()
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *Broker) publishSys() {
	m := b.metrics
	in, out := m.messagesIn(), m.messagesOut()
	heap := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(heap)
	uptime := int64(time.Since(m.begun).Seconds())
	for name, v := range map[string]int64{
		"clients/connected":          m.clients.now.Load(),
		"clients/active":             m.clients.now.Load(),
		"clients/total":              m.clients.now.Load(),
		"clients/disconnected":       0, // no session outlives its connection
		"clients/inactive":           0,
		"clients/maximum":            m.clients.most.Load(),
		"bytes/received":             m.bytesIn.Load(),
		"bytes/sent":                 m.bytesOut.Load(),
		"load/bytes/received":        m.bytesIn.Load(),
		"load/bytes/sent":            m.bytesOut.Load(),
		"packets/received":           m.packetsIn.Load(),
		"packets/sent":               m.packetsOut.Load(),
		"messages/received":          in,
		"messages/sent":              out,
		"messages/inflight":          m.inflight.Load(),
		"messages/dropped":           m.droppedMessages.Load(),
		"publish/messages/received":  in,
		"publish/messages/sent":      out,
		"publish/messages/dropped":   m.droppedMessages.Load(),
		"retained messages/count":    int64(b.retained.Count()),
		"store/messages/count":       int64(b.retained.Count()),
		"store/messages/bytes":       b.retained.Bytes(),
		"subscriptions/count":        m.subscriptions.Load(),
		"shared_subscriptions/count": m.shared.Load(),
		"heap/current":               int64(heap[0].Value.Uint64()),
		"time":                       time.Now().Unix(),
		"started":                    m.begun.Unix(),
	} {
		b.publishSysTopic(name, strconv.FormatInt(v, 10))
	}
	b.publishSysTopic("uptime", fmt.Sprintf("%d seconds", uptime))
	b.publishSysTopic("version", "colony")
}

func (b *Broker) publishSysTopic(name, value string) {
	_ = b.distribute(&message{topic: sysPrefix + name, payload: []byte(value), retain: true}, b.pace.Waiting(0)) // nothing of QoS 0 is stored
}
