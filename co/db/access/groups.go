package accessdb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// mostGroups bounds the groups of sites: each replica reads them all every two seconds.
const mostGroups = 1000

// SiteGroups returns all groups of sites, sorted by their names.
func (s *Store) SiteGroups(ctx context.Context) ([]access.SiteGroup, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (g access.SiteGroup, err error) {
		return g, row.Scan(&g.Name, &g.Sites)
	}, `select name, sites from site_groups order by name limit $1`, mostGroups)
	return list, pgdb.Classify("read the groups of sites", err)
}

// PutSiteGroup makes a group of sites, or gives it others, and returns those of before.
func (s *Store) PutSiteGroup(ctx context.Context, g access.SiteGroup) (before []string, err error) {
	err = s.db.Tx(ctx, "change a group of sites", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `lock table site_groups in share row exclusive mode`); err != nil { // they are counted
			return err
		}
		err := tx.QueryRow(ctx, `select sites from site_groups where name = $1`, g.Name).Scan(&before)
		if errors.Is(err, pgx.ErrNoRows) {
			var n int
			if err = tx.QueryRow(ctx, `select count(*) from site_groups`).Scan(&n); err == nil && n >= mostGroups {
				err = protocol.Errorf(protocol.Conflict, "there are %d groups of sites, which is the most: remove one", n)
			}
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into site_groups (name, sites) values ($1, $2) on conflict (name) do update set sites = excluded.sites`, g.Name, g.Sites)
		return err
	})
	return before, err
}

// RemoveSiteGroup removes a group of sites, and returns those that it had. The error is of kind NotFound where there is none.
func (s *Store) RemoveSiteGroup(ctx context.Context, name string) (before []string, err error) {
	err = s.db.QueryRow(ctx, `delete from site_groups where name = $1 returning sites`, name).Scan(&before)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, protocol.Errorf(protocol.NotFound, "no group of sites %q: colony group list shows them", name)
	}
	return before, pgdb.Classify("remove a group of sites", err)
}
