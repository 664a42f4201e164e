package fleetdb

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const siteView = `select s.id, s.online, s.changed_at, s.version, s.problem, s.nodes,
	case when s.online then s.nodes_online else 0 end, case when s.online then 0 else s.nodes end,
	(select sum(n) from unnest(s.states[1:7]) as n), s.generation, s.adopted, s.desired_commit, s.journal_epoch, s.journal_seq,
	s.events_lost, s.last_event_at, greatest(s.last_event_at, st.reported_at)
	from unnest($1::text[]) with ordinality as k (id, number), lateral (select * from sites where id = k.id limit 1) s
	left join lateral (select reported_at from streams where site = s.id and stream = '' limit 1) st on true order by k.number`

func scanSite(row pgx.CollectableRow) (v fleet.Site, err error) {
	err = row.Scan(&v.ID, &v.Online, &v.OnlineSince, &v.Version, &v.Problem, &v.Nodes, &v.NodesOnline, &v.NodesUnknown, &v.Deployments,
		&v.Generation, &v.Adopted, &v.Commit, &v.JournalEpoch, &v.JournalSeq, &v.EventsLost, &v.LastEventAt, &v.ReportedAt)
	return v, err
}

// Sites lists all sites by id.
func (s *Store) Sites(ctx context.Context, p fleet.Page) (sites []fleet.Site, next string, err error) {
	return s.SitesLike(ctx, fleet.SiteFilter{}, p)
}

// SitesLike lists the sites that a filter picks, by id. A page may hold fewer than its
// limit though there are more, as one of Deployments.
func (s *Store) SitesLike(ctx context.Context, f fleet.SiteFilter, p fleet.Page) (sites []fleet.Site, next string, err error) {
	keys, next, err := siteSource(f).list(ctx, s.db, p, 1)
	if err != nil {
		return nil, "", pgdb.Classify("list sites", err)
	}
	ids, _ := columns(keys)
	sites, err = pgdb.Rows(ctx, s.db, scanSite, siteView, ids)
	return sites, next, pgdb.Classify("list sites", err)
}

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

// CountSites counts what a filter picks.
func (s *Store) CountSites(ctx context.Context, f fleet.SiteFilter) (fleet.Total, error) {
	total, err := siteSource(f).count(ctx, s.db)
	return total, pgdb.Classify("count sites", err)
}

func siteSource(f fleet.SiteFilter) source {
	offline := f.Online != nil && !*f.Online
	src := source{add: func(s *statement, last key, limit int) {
		s.add(`select id as a, '' as b, online, version from sites where id > $`, last[0])
		if offline {
			s.add(` and not online`) // by the index of those that are impaired
		}
		s.add(` order by id limit $`, limit)
	}}
	if f.Version.All() && f.Text == "" && (f.Online == nil || offline) {
		return src
	}
	src.residual = func(s *statement) {
		choose(s, "version", f.Version)
		s.add(" and ")
		contains(s, "a", f.Text)
		if f.Online != nil {
			s.add(" and online = $", *f.Online)
		}
	}
	return src
}

// Summary counts the fleet.
func (s *Store) Summary(ctx context.Context) (fleet.Summary, error) {
	sum, err := s.sums(ctx)
	delete(sum.Deployments, lifecycle.Deleted)
	return sum, err
}

// sums adds up the counters of all sites, with the deployments in every state.
func (s *Store) sums(ctx context.Context) (sum fleet.Summary, err error) {
	var states [8]int
	err = s.db.QueryRow(ctx, `select count(*), count(*) filter (where online), coalesce(sum(nodes), 0), coalesce(sum(nodes_online) filter (where online), 0),
		coalesce(sum(nodes) filter (where not online), 0), (select count(*) from apps), array[coalesce(sum(states[1]), 0), coalesce(sum(states[2]), 0),
			coalesce(sum(states[3]), 0), coalesce(sum(states[4]), 0), coalesce(sum(states[5]), 0), coalesce(sum(states[6]), 0),
			coalesce(sum(states[7]), 0), coalesce(sum(states[8]), 0)] from sites`).
		Scan(&sum.Sites, &sum.SitesOnline, &sum.Nodes, &sum.NodesOnline, &sum.NodesUnknown, &sum.Apps, &states)
	if err != nil {
		return sum, pgdb.Classify("count the fleet", err)
	}
	counts := projection.Count(states)
	sum.Deployments = map[lifecycle.State]int{}
	for _, state := range lifecycle.States {
		sum.Deployments[state] = counts.Of(state)
	}
	return sum, nil
}

// Site returns one site. The error of one that does not exist lists some that do.
func (s *Store) Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	found, err := pgdb.Rows(ctx, s.db, scanSite, siteView, []string{string(id)})
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
		if _, err := db.LockSite(ctx, tx, site); err != nil {
			return err
		}
		var online bool
		var session, before string
		err := tx.QueryRow(ctx, `select online, session, problem from sites where id = $1`, site).Scan(&online, &session, &before)
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
		if err == nil && p.Online && p.Session != session { // the same presence comes again with the CO's connection to its broker
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
