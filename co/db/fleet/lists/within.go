package listdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// within returns the ids of the sites that a list looks at: that of the site, where one is named, else those of a set, nil for
// that of all sites.
func within(ctx context.Context, from pgdb.Querier, site protocol.SiteID, set siteset.Set) ([]string, error) {
	switch {
	case site != "":
		return []string{string(site)}, nil
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

// A keyed table has a row for each name of a site.
type keyed struct {
	columns string // select, and what
	table   string
	name    string // the column of the key beside site
}

// rows appends a query of at most limit rows after last, in the order of the key, of some sites, or of all where sites is nil;
// more appends further conditions. Of several sites each is looked at by itself, in the order of the index.
func (k keyed) rows(s *statement, sites []string, last key, limit int, more func()) {
	if sites == nil || len(sites) == 1 {
		s.add(k.columns+` from `+k.table+` where (site, `+k.name+`) > ($, $)`, last[0], last[1])
		if sites != nil {
			s.add(` and site = $`, sites[0])
		}
		more()
		s.add(` order by site, `+k.name+` limit $`, limit)
		return
	}
	s.add(k.columns+` from (select own from unnest($::text[]) as own where own >= $ order by own) k, lateral (select * from `+k.table+
		` where site = own and (site, `+k.name+`) > ($, $)`, sites, last[0], last[0], last[1])
	more()
	s.add(` order by site, `+k.name+` limit $) t order by own, `+k.name+` limit $`, limit, limit)
}

// nothing is no further condition.
func nothing() {}
