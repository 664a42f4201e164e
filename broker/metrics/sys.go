package metrics

import (
	runtimemetrics "runtime/metrics"
	"time"
)

// Sys returns the values of the $SYS topics by their names below $SYS/broker, which are those
// of Mosquitto, and how long the broker runs.
func (m *Metrics) Sys() (values map[string]int64, uptime time.Duration) {
	in, out := m.messagesIn(), m.messagesOut()
	heap := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(heap)
	return map[string]int64{
		"clients/connected":          m.Clients.now.Load(),
		"clients/active":             m.Clients.now.Load(),
		"clients/total":              m.Clients.now.Load(),
		"clients/disconnected":       0, // no session outlives its connection
		"clients/inactive":           0,
		"clients/maximum":            m.Clients.most.Load(),
		"bytes/received":             m.bytesIn.Load(),
		"bytes/sent":                 m.bytesOut.Load(),
		"load/bytes/received":        m.bytesIn.Load(),
		"load/bytes/sent":            m.bytesOut.Load(),
		"packets/received":           m.packetsIn.Load(),
		"packets/sent":               m.packetsOut.Load(),
		"messages/received":          in,
		"messages/sent":              out,
		"messages/inflight":          m.Inflight.Load(),
		"messages/dropped":           m.droppedMessages.Load(),
		"publish/messages/received":  in,
		"publish/messages/sent":      out,
		"publish/messages/dropped":   m.droppedMessages.Load(),
		"retained messages/count":    m.held.Retained(),
		"store/messages/count":       m.held.Retained(),
		"store/messages/bytes":       m.held.RetainedBytes(),
		"subscriptions/count":        m.subscriptions.Load(),
		"shared_subscriptions/count": m.shared.Load(),
		"heap/current":               int64(heap[0].Value.Uint64()),
		"time":                       time.Now().Unix(),
		"started":                    m.begun.Unix(),
	}, time.Since(m.begun)
}
