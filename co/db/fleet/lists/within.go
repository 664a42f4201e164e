package listdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// within returns the ids of the sites of a set, nil for that of all sites.
func within(ctx context.Context, from pgdb.Querier, set siteset.Set) ([]string, error) {
	switch {
	case set.All():
		return nil, nil
	case len(set.Beginnings()) == 0:
		return set.IDs(), nil
	}
	ids, err := pgdb.Rows(ctx, from, pgx.RowTo[string], `select id from sites where id = any($1::text[])
		or exists (select from unnest($2::text[]) as b where starts_with(id, b)) order by id`, set.IDs(), set.Beginnings())
	if ids == nil {
		ids = []string{} // none, and not all
	}
	return ids, err
}

// one returns the ids that a list looks at: that of a site, where one is named.
func one(site protocol.SiteID, sites []string) []string {
	if site == "" {
		return sites
	}
	return []string{string(site)}
}

// bySite appends a query of at most limit rows of a table after last, in the order of site and name: columns is what it
// selects, more appends further conditions. Of several sites each is looked at by itself, in the order of the index.
func bySite(s *statement, columns, table, name string, sites []string, last key, limit int, more func()) {
	if sites == nil || len(sites) == 1 {
		s.add(columns+` from `+table+` where (site, `+name+`) > ($, $)`, last[0], last[1])
		if sites != nil {
			s.add(` and site = $`, sites[0])
		}
		more()
		s.add(` order by site, `+name+` limit $`, limit)
		return
	}
	s.add(columns+` from (select own from unnest($::text[]) as own where own >= $ order by own) k, lateral (select * from `+table+
		` where site = own and (site, `+name+`) > ($, $)`, sites, last[0], last[0], last[1])
	more()
	s.add(` order by site, `+name+` limit $) t order by own, `+name+` limit $`, limit, limit)
}

// nothing is no further condition.
func nothing() {}
