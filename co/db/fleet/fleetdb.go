// Package fleetdb is the CO's record of the fleet in PostgreSQL: the catalog, what
// should run, what runs, and every event. Errors are of the protocol's kinds; while the
// database is away they are Unavailable.
package fleetdb

import (
	"github.com/colonyfleet/colony/co/db"
	desireddb "github.com/colonyfleet/colony/co/db/fleet/desired"
	journaldb "github.com/colonyfleet/colony/co/db/fleet/journal"
	listdb "github.com/colonyfleet/colony/co/db/fleet/lists"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
)

// A Store is the record: its parts, with what belongs to none of them, which are the catalog,
// the presence of sites, their removal, and the events of the CO itself. Its methods may be
// called concurrently.
type Store struct {
	*journaldb.Journal
	*listdb.Lists
	*desireddb.Desired
	*upkeepdb.Upkeep

	db *db.DB
}

// New returns the record in a database, which stays the caller's to close. It is
// made once for a database and its metrics.
func New(pool *db.DB) *Store {
	return &Store{
		Journal: journaldb.New(pool),
		Lists:   listdb.New(pool),
		Desired: desireddb.New(pool),
		Upkeep:  upkeepdb.New(pool),
		db:      pool,
	}
}
