// Package desireddb is the part of the record that says what sites should run: what the
// deployments repo wants, what people ask for beside it, the positions of both, and the
// specifications that they name.
package desireddb

import "github.com/colonyfleet/colony/co/db"

// Desired is what sites should run. Its methods may be called concurrently.
type Desired struct {
	db *db.DB
}

// New returns that part of a record, in a database that stays the caller's to close.
func New(pool *db.DB) *Desired { return &Desired{db: pool} }
