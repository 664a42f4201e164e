package fleetdb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// reportedAt is when the site s last reported: events, or how far its journal is.
const reportedAt = `greatest(s.last_event_at, (select st.reported_at from streams st where st.site = s.id and st.stream = ''))`

const siteColumns = `select s.id, s.online, s.changed_at, s.version, n.nodes,
	case when s.online then n.online else 0 end, case when s.online then 0 else n.nodes end, d.deployments,
	s.generation, s.adopted, s.desired_commit, s.journal_epoch, s.journal_seq, s.events_lost, s.last_event_at, ` + reportedAt + `
	from sites s,
	lateral (select count(*) as nodes, count(*) filter (where online) as online from nodes where site = s.id) n,
	lateral (select count(*) as deployments from deployments where site = s.id and archived_at is null) d`

func scanSite(row pgx.CollectableRow) (v fleet.Site, err error) {
	err = row.Scan(&v.ID, &v.Online, &v.OnlineSince, &v.Version, &v.Nodes, &v.NodesOnline, &v.NodesUnknown, &v.Deployments,
		&v.Generation, &v.Adopted, &v.Commit, &v.JournalEpoch, &v.JournalSeq, &v.EventsLost, &v.LastEventAt, &v.ReportedAt)
	return v, err
}

// Sites lists the sites by id.
func (s *Store) Sites(ctx context.Context, p fleet.Page) (sites []fleet.Site, next string, err error) {
	keys, err := after(p, 1)
	if err != nil {
		return nil, "", err
	}
	sites, err = pgdb.Rows(ctx, s.db, scanSite, siteColumns+` where s.id > $1 order by s.id limit $2`, keys[0], fleet.Size(p.Limit)+1)
	if err != nil {
		return nil, "", pgdb.Classify("list sites", err)
	}
	sites, next = cut(sites, p, func(v fleet.Site) []string { return []string{string(v.ID)} })
	return sites, next, nil
}

// Site returns one site. The error of one that does not exist lists some that do.
func (s *Store) Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	found, err := pgdb.Rows(ctx, s.db, scanSite, siteColumns+` where s.id = $1`, id)
	v, err := pgdb.One("site", found, err)
	if err == nil || protocol.KindOf(err) != protocol.NotFound {
		return v, err
	}
	known, _, listErr := s.Sites(ctx, fleet.Page{Limit: 10})
	if listErr != nil {
		return v, listErr
	}
	ids := make([]string, len(known))
	for i := range known {
		ids[i] = string(known[i].ID)
	}
	return v, protocol.Errorf(protocol.NotFound,
		"no site %q; there is %s: a site exists once its LO has connected, or when it was created", id, orNothing(ids))
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
// replaced (another Session) is ignored. A site that is not recorded yet is created.
func (s *Store) SetSitePresence(ctx context.Context, site protocol.SiteID, p protocol.Presence) error {
	return s.db.Tx(ctx, "record presence of site", func(tx pgx.Tx) error {
		if _, err := lockSite(ctx, tx, site); err != nil {
			return err
		}
		var online bool
		var session string
		err := tx.QueryRow(ctx, `select online, session from sites where id = $1`, site).Scan(&online, &session)
		if err != nil || (!p.Online && p.Session != session && online) {
			return err
		}
		_, err = tx.Exec(ctx, `update sites set online = $2, session = $3, version = coalesce(nullif($4, ''), version),
			changed_at = case when online <> $2 or changed_at is null then now() else changed_at end where id = $1`,
			site, p.Online, p.Session, p.Version)
		if err != nil || p.Online == online {
			return err
		}
		kind := fleet.SiteOffline
		if p.Online {
			kind = fleet.SiteOnline
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{{Kind: kind, Site: site, Message: p.Version}})
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
		gone, err := pgdb.Rows(ctx, tx, pgx.RowTo[protocol.SiteID], `update sites set online = false, changed_at = now()
			where online and id <> all($1) returning id`, ids)
		if err != nil {
			return err
		}
		events := make([]fleet.Event, len(gone))
		for i, id := range gone {
			events[i] = fleet.Event{Kind: fleet.SiteOffline, Site: id, Message: "no report since the CO started"}
		}
		return db.WriteEvents(ctx, tx, events)
	})
}

// A siteRow is what a writer to a site needs of its row.
type siteRow struct {
	version    string
	generation uint64
	commit     string
	adopted    uint64
	stream.Position
	gap  bool
	lost uint64
	now  time.Time // the transaction began
}

// lockSite locks the row of a site until the transaction ends, making it where
// there is none: all writers of a site follow one another. It writes nothing to a
// row that is there.
func lockSite(ctx context.Context, tx pgx.Tx, site protocol.SiteID) (siteRow, error) {
	rows, err := lockSites(ctx, tx, []protocol.SiteID{site})
	return rows[site], err
}

// lockSites is lockSite for some sites. It locks them in the order of their ids, as all
// writers of several do.
func lockSites(ctx context.Context, tx pgx.Tx, sites []protocol.SiteID) (map[protocol.SiteID]siteRow, error) {
	rows := make(map[protocol.SiteID]siteRow, len(sites))
	ids := slices.Sorted(slices.Values(pgdb.Texts(sites)))
	for range 2 {
		_, err := pgdb.Rows(ctx, tx, func(row pgx.CollectableRow) (r siteRow, err error) {
			var id protocol.SiteID
			err = row.Scan(&id, &r.version, &r.generation, &r.commit, &r.adopted, &r.Epoch, &r.Seq, &r.Retired, &r.gap, &r.lost, &r.now)
			rows[id] = r
			return r, err
		}, `select id, version, generation, desired_commit, adopted, journal_epoch, journal_seq, retired_epochs, gap, events_lost, now()
			from sites where id = any($1) order by id for no key update`, ids)
		if err != nil || len(rows) == len(ids) {
			return rows, err
		}
		if _, err := tx.Exec(ctx, `insert into sites (id) select unnest($1::text[]) on conflict do nothing`, ids); err != nil {
			return rows, err
		}
	}
	return rows, fmt.Errorf("lock %d sites: %d are there after all were made", len(ids), len(rows))
}
