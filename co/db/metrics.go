package db

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics measure the database as the CO uses it. They may be used concurrently.
type metrics struct {
	queries, transactions *prometheus.HistogramVec

	connections, most, waits, waited *prometheus.Desc
	// pools are by the value of the label; they are complete before the metrics are registered.
	pools map[string]func() *pgxpool.Stat
}

// databaseBuckets are from a read of a cached row to what a person gives up on, in seconds.
var databaseBuckets = []float64{.001, .005, .025, .1, .5, 2, 10, 30}

func newMetrics() *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"pool"}, labels...), nil)
	}
	return &metrics{
		queries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "colony_co_db_query_seconds", Help: "Time of queries until their rows were read, by the first word of the statement and outcome: ok or failed. Those of the feed of events are left out.",
			Buckets: databaseBuckets,
		}, []string{"statement", "outcome"}),
		transactions: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "colony_co_db_transaction_seconds", Help: "Time of transactions, with the wait for a connection and repetitions, by outcome: ok or failed.",
			Buckets: databaseBuckets,
		}, []string{"outcome"}),
		connections: desc("colony_co_db_connections", "Connections to the database: used, or idle. The feed of events has a pool of its own.", "state"),
		most:        desc("colony_co_db_connections_max", "The most connections that a pool may have."),
		waits:       desc("colony_co_db_connection_waits_total", "Times that a connection was waited for, as none was idle."),
		waited:      desc("colony_co_db_connection_wait_seconds_total", "Time of those waits."),
		pools:       map[string]func() *pgxpool.Stat{},
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.queries.Describe(out)
	m.transactions.Describe(out)
	for _, d := range []*prometheus.Desc{m.connections, m.most, m.waits, m.waited} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.queries.Collect(out)
	m.transactions.Collect(out)
	for pool, stat := range m.pools {
		s := stat()
		for state, n := range map[string]int32{"used": s.AcquiredConns(), "idle": s.IdleConns()} {
			out <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(n), pool, state)
		}
		out <- prometheus.MustNewConstMetric(m.most, prometheus.GaugeValue, float64(s.MaxConns()), pool)
		out <- prometheus.MustNewConstMetric(m.waits, prometheus.CounterValue, float64(s.EmptyAcquireCount()), pool)
		out <- prometheus.MustNewConstMetric(m.waited, prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds(), pool)
	}
}

func outcome(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// ended measures a transaction.
func (m *metrics) ended(took time.Duration, err error) {
	m.transactions.WithLabelValues(outcome(err)).Observe(took.Seconds())
}

// A query is one that is traced.
type query struct {
	statement string
	began     time.Time
}

type queryKey struct{}

// statements are the first words that have a label of their own.
var statements = map[string]bool{
	"select": true, "insert": true, "update": true, "delete": true, "with": true, "begin": true, "commit": true, "rollback": true, "copy": true,
}

// statementOf returns the first word of a statement, or other.
func statementOf(sql string) string {
	sql = strings.TrimLeft(sql, " \t\n(")
	end := strings.IndexFunc(sql, func(r rune) bool { return r < 'A' || r > 'z' })
	if end < 0 {
		end = len(sql)
	}
	if word := strings.ToLower(sql[:end]); statements[word] {
		return word
	}
	return "other"
}

// TraceQueryStart implements pgx.QueryTracer.
func (m *metrics) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, queryKey{}, query{statementOf(data.SQL), time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (m *metrics) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if q, ok := ctx.Value(queryKey{}).(query); ok {
		m.queries.WithLabelValues(q.statement, outcome(data.Err)).Observe(time.Since(q.began).Seconds())
	}
}
