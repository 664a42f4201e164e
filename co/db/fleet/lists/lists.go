// Package listdb reads the record of the fleet for people: lists with filters, pages and
// counts, each by an index, and single rows. It writes nothing.
package listdb

import "github.com/colonyfleet/colony/co/db"

// Lists reads the record. Its methods may be called concurrently.
type Lists struct {
	db *db.DB
}

// New returns the reader of a record, in a database that stays the caller's to close.
func New(pool *db.DB) *Lists { return &Lists{db: pool} }
