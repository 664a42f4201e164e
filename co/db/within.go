package db

import (
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// InSet is the SQL condition that the column s.site is in a set of sites: $1 and $2 are what Sets returns.
const InSet = `(cardinality($1::text[]) + cardinality($2::text[]) = 0 or s.site = any($1) or exists (select from unnest($2::text[]) as b where starts_with(s.site, b)))`

// Sets returns the parameters of InSet: ids of sites, and beginnings of ids; both empty stand for all sites.
func Sets(set siteset.Set) (ids, beginnings []string) {
	return pgdb.Filled(set.IDs()), pgdb.Filled(set.Beginnings())
}
