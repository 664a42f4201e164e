// Package upkeepdb keeps the record of the fleet in order by itself: it compares counters
// with what they count, makes partitions ahead of time, and removes what is older than it is
// to be kept.
package upkeepdb

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/db"
)

// Upkeep looks after the record. Its methods may be called concurrently, and by any number of
// programs on one database.
type Upkeep struct {
	db *db.DB
	// repaired counts what CheckCounters repaired.
	repaired prometheus.Counter
}

// New returns the upkeep of a record, in a database that stays the caller's to close. It
// is made once for a database and its metrics.
func New(pool *db.DB) *Upkeep {
	return &Upkeep{
		db:       pool,
		repaired: db.Counter(pool.Metrics, "colony_co_counters_repaired_total", "Counters of sites and deployments that differed from what they count."),
	}
}
