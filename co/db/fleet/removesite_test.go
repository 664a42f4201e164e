package fleetdb_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// outliveSites are the tables that have a site and keep what they have for its time, or that
// are emptied otherwise when a site is removed.
var outliveSites = []string{"events", "event_outbox", "deployment_history", "anomalies", "data_messages", "proposal_effects", "revoked_keys", "revocation_lists", "sessions"}

// TestRemoveSiteKnowsAllTables finds each table that has a site, or that refers to one, among
// those that are emptied when a site is removed.
func TestRemoveSiteKnowsAllTables(t *testing.T) {
	t.Parallel()
	database := openDB(t)
	tables, err := pgdb.Rows(t.Context(), database, pgx.RowTo[string], `
		select distinct c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = current_schema() and c.relkind in ('r', 'p') and not c.relispartition and c.relname <> 'sites' and (
			exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'site' and not a.attisdropped)
			or exists (select from pg_constraint k where k.conrelid = c.oid and k.confrelid = 'sites'::regclass))
		order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) < 15 {
		t.Fatalf("%d tables have a site: %v", len(tables), tables)
	}
	for _, table := range tables {
		if slices.Contains(fleetdb.SiteTables, table) == slices.Contains(outliveSites, table) {
			t.Errorf("%s has a site: it belongs into siteTables, or into the tables that outlive a site, and only into one", table)
		}
	}
}
