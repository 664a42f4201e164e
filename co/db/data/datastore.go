// Package datadb is the CO's record of machine data in PostgreSQL: how far each stream
// of a site is committed, stored and retained messages, and the streams to the sites.
// The rules of machine data are part of the desired state of a site, which
// co/db/fleet writes; this package only reads them.
package datadb

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/db"
)

// A Store is the record of machine data. Its methods may be called concurrently.
type Store struct {
	db      *db.DB
	metrics metrics
	days    days
}

type metrics struct {
	messages, stored, late prometheus.Counter
}

// New returns the record of machine data in a database, which stays the caller's to
// close. It is made once for a database and its metrics.
func New(pool *db.DB) *Store {
	return &Store{db: pool, metrics: metrics{
		messages: db.Counter(pool.Metrics, "colony_co_data_messages_total", "Messages of machine data from sites that were committed."),
		stored:   db.Counter(pool.Metrics, "colony_co_data_messages_stored_total", "Messages of machine data that were written to PostgreSQL."),
		late:     db.Counter(pool.Metrics, "colony_co_data_messages_expired_total", "Messages of machine data that expired before they could be delivered."),
	}}
}
