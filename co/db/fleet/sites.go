package fleetdb

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// Connected returns all sites, and for each whether its LO was online at least once.
func (s *Store) Connected(ctx context.Context) (map[protocol.SiteID]bool, error) {
	out := map[protocol.SiteID]bool{}
	_, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var site protocol.SiteID
		var connected bool
		err = row.Scan(&site, &connected)
		out[site] = connected
		return none, err
	}, `select id, changed_at is not null from sites`)
	return out, pgdb.Classify("list sites", err)
}

// CreateSite records a site before its LO connects. One that exists is a Conflict.
func (s *Store) CreateSite(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	tag, err := s.db.Exec(ctx, `insert into sites (id) values ($1) on conflict do nothing`, id)
	if err != nil {
		return fleet.Site{}, pgdb.Classify("create site", err)
	}
	if tag.RowsAffected() == 0 {
		return fleet.Site{}, protocol.Errorf(protocol.Conflict, "site %s exists already", id)
	}
	return s.Site(ctx, id)
}

// SetSitePresence records that a site's LO is connected or not, and makes the
// event where that changed. The last will of a connection that a newer one has
// replaced (another Session) is ignored. A site that is not recorded yet is created. A presence that
// says nothing new, such as that after an adoption, which the journal of the site reports, costs one read.
func (s *Store) SetSitePresence(ctx context.Context, site protocol.SiteID, p protocol.Presence) error {
	if p.Online {
		var recorded bool
		err := s.db.QueryRow(ctx, `select exists (select from sites where id = $1 and online and session = $2 and version = coalesce(nullif($3, ''), version) and problem = $4)
			and not exists (select from restored_positions where site = $1)`, site, p.Session, p.Version, pgdb.Storable(p.Problem)).Scan(&recorded)
		if err != nil || recorded {
			return pgdb.Classify("look at presence of site", err)
		}
	}
	return s.db.Tx(ctx, "record presence of site", func(tx pgx.Tx) error {
		if _, err := db.LockSite(ctx, tx, site); err != nil {
			return err
		}
		var online, restored bool
		var session, before string
		err := tx.QueryRow(ctx, `select online, session, problem, exists (select from restored_positions where site = $1) from sites where id = $1`, site).
			Scan(&online, &session, &before, &restored)
		if err != nil || (!p.Online && p.Session != session && online) {
			return err
		}
		problem := pgdb.Storable(p.Problem)
		if !p.Online { // a last will is of before
			problem = before
		}
		_, err = tx.Exec(ctx, `update sites set online = $2, session = $3, version = coalesce(nullif($4, ''), version), problem = $5,
			changed_at = case when online <> $2 or changed_at is null then now() else changed_at end where id = $1`,
			site, p.Online, p.Session, p.Version, problem)
		if err == nil && p.Online && (p.Session != session || restored) { // the same presence comes again with the CO's connection to its broker
			b := &pgx.Batch{}
			db.QueuePresenceHeld(b, site, p.Held)
			err = tx.SendBatch(ctx, b).Close()
		}
		if err != nil {
			return err
		}
		var events []fleet.Event
		switch {
		case p.Online == online:
		case p.Online:
			events = append(events, fleet.Event{Kind: fleet.SiteOnline, Site: site, Message: p.Version})
		default:
			events = append(events, fleet.Event{Kind: fleet.SiteOffline, Site: site, Message: p.Version})
		}
		if problem != before {
			events = append(events, fleet.Event{Kind: fleet.SiteProblem, Site: site, Message: cmp.Or(problem, fleet.NoProblem)})
		}
		return db.WriteEvents(ctx, tx, events)
	})
}

// SetOfflineExcept records every site as offline that is recorded online and not
// among the connected: for a CO that has started and to which they have not reported.
func (s *Store) SetOfflineExcept(ctx context.Context, connected []protocol.SiteID) error {
	ids := make([]string, len(connected))
	for i := range connected {
		ids[i] = string(connected[i])
	}
	return s.db.Tx(ctx, "record sites as offline", func(tx pgx.Tx) error {
		lost, err := pgdb.Rows(ctx, tx, pgx.RowTo[protocol.SiteID], `update sites set online = false, changed_at = now()
			where online and id <> all($1) returning id`, ids)
		if err != nil {
			return err
		}
		events := make([]fleet.Event, len(lost))
		for i, id := range lost {
			events[i] = fleet.Event{Kind: fleet.SiteOffline, Site: id, Message: "no report since the CO started"}
		}
		return db.WriteEvents(ctx, tx, events)
	})
}
