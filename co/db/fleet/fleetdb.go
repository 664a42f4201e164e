// Package fleetdb is the CO's record of the fleet in PostgreSQL: the catalog, what
// should run, what runs, and every event. Errors are of the protocol's kinds; while the
// database is away they are Unavailable.
package fleetdb

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/db"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct {
	db     *db.DB
	events prometheus.Counter
	// repaired counts what CheckCounters repaired.
	repaired prometheus.Counter
	// damaged counts StateDamaged events.
	damaged prometheus.Counter
	group   group // of the batches that are being committed
}

// New returns the record in a database, which stays the caller's to close. It is
// made once for a database and its metrics.
func New(pool *db.DB) *Store {
	return &Store{
		db:       pool,
		events:   db.Counter(pool.Metrics, "site_events_total", "Events of sites' journals that were committed."),
		damaged:  db.Counter(pool.Metrics, "state_damaged_total", "Files of state that sites and nodes reported as damaged."),
		repaired: db.Counter(pool.Metrics, "counters_repaired_total", "Counters of sites and deployments that differed from what they count."),
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }
