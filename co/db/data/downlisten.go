package datadb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// downChannel is the SQL expression of the channel on which a transaction notifies of a
// site that it queued machine data for.
const downChannel = `'colony_down_' || current_schema()`

// ListenDown calls wake for each site that any replica queued machine data for,
// and with "" where some may have been missed, until ctx ends.
func (s *Store) ListenDown(ctx context.Context, wake func(site protocol.SiteID)) {
	s.db.Listen(ctx, pgdb.Channel{Name: downChannel, About: "machine data"}, func(_ context.Context, _ *pgx.Conn, site string) error {
		wake(protocol.SiteID(site))
		return nil
	})
}
