package identitydb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

const unenrolled = ` from sites s where not exists (select from machines where name = s.id || $1)`

// Unenrolled returns the first sites, by id, whose LO was never enrolled, and how many there are.
func (s *Store) Unenrolled(ctx context.Context, limit int) (list []fleet.Unenrolled, total int, err error) {
	if err := s.db.QueryRow(ctx, `select count(*)`+unenrolled, ofLO).Scan(&total); err != nil || total == 0 || limit == 0 {
		return nil, total, pgdb.Classify("count the sites that are not enrolled", err)
	}
	list, err = pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (u fleet.Unenrolled, err error) {
		return u, row.Scan(&u.Site, &u.Nodes, &u.Token)
	}, `select s.id, s.nodes, (select max(expires_at) from join_tokens where site = s.id and kind = 'lo' and used < uses and expires_at > now())`+
		unenrolled+` order by s.id limit $2`, ofLO, limit)
	return list, total, pgdb.Classify("list the sites that are not enrolled", err)
}
