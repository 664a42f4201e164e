// Package fleetdb is the CO's record of the fleet in PostgreSQL: the catalog, what
// should run, what runs, and every event. Errors are of the protocol's kinds; while the
// database is away they are Unavailable.
package fleetdb

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/co/db"
	desireddb "github.com/colonyfleet/colony/co/db/fleet/desired"
	journaldb "github.com/colonyfleet/colony/co/db/fleet/journal"
	listdb "github.com/colonyfleet/colony/co/db/fleet/lists"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct {
	*journaldb.Journal
	*listdb.Lists
	*desireddb.Desired

	db *db.DB
	// repaired counts what CheckCounters repaired.
	repaired prometheus.Counter
}

// New returns the record in a database, which stays the caller's to close. It is
// made once for a database and its metrics.
func New(pool *db.DB) *Store {
	return &Store{
		Journal:  journaldb.New(pool),
		Lists:    listdb.New(pool),
		Desired:  desireddb.New(pool),
		db:       pool,
		repaired: db.Counter(pool.Metrics, "counters_repaired_total", "Counters of sites and deployments that differed from what they count."),
	}
}
