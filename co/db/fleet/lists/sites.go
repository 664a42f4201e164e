package listdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/projection"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
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
func (s *Lists) Sites(ctx context.Context, p fleet.Page) (sites []fleet.Site, next string, err error) {
	return s.SitesLike(ctx, fleet.SiteFilter{}, p)
}

// SitesLike lists the sites that a filter picks, by id. A page may hold fewer than its
// limit though there are more, as one of Deployments.
func (s *Lists) SitesLike(ctx context.Context, f fleet.SiteFilter, p fleet.Page) (sites []fleet.Site, next string, err error) {
	own, err := within(ctx, s.db, "", f.Within)
	if err != nil {
		return nil, "", pgdb.Classify("list sites", err)
	}
	keys, next, err := siteSource(f, own).list(ctx, s.db, p, 1)
	if err != nil {
		return nil, "", pgdb.Classify("list sites", err)
	}
	ids, _ := columns(keys)
	sites, err = pgdb.Rows(ctx, s.db, scanSite, siteView, ids)
	return sites, next, pgdb.Classify("list sites", err)
}

// CountSites counts what a filter picks.
func (s *Lists) CountSites(ctx context.Context, f fleet.SiteFilter) (fleet.Total, error) {
	own, err := within(ctx, s.db, "", f.Within)
	if err != nil {
		return fleet.Total{}, pgdb.Classify("count sites", err)
	}
	total, err := siteSource(f, own).count(ctx, s.db)
	return total, pgdb.Classify("count sites", err)
}

func siteSource(f fleet.SiteFilter, own []string) source {
	offline := f.Online != nil && !*f.Online
	src := source{add: func(s *statement, last key, limit int) {
		s.add(`select id as a, '' as b, online, version from sites where id > $`, last[0])
		if own != nil {
			s.add(` and id = any($::text[])`, own)
		}
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

// Summary counts the fleet, or what of it is at some sites.
func (s *Lists) Summary(ctx context.Context, set siteset.Set) (fleet.Summary, error) {
	sum, err := s.sums(ctx, set)
	delete(sum.Deployments, lifecycle.Deleted)
	return sum, err
}

// sums adds up the counters of sites, with the deployments in every state.
func (s *Lists) sums(ctx context.Context, set siteset.Set) (sum fleet.Summary, err error) {
	own, err := within(ctx, s.db, "", set)
	if err != nil {
		return sum, pgdb.Classify("count the fleet", err)
	}
	var states [8]int
	err = s.db.QueryRow(ctx, `select count(*), count(*) filter (where online), coalesce(sum(nodes), 0), coalesce(sum(nodes_online) filter (where online), 0),
		coalesce(sum(nodes) filter (where not online), 0), (select count(*) from apps), array[coalesce(sum(states[1]), 0), coalesce(sum(states[2]), 0),
			coalesce(sum(states[3]), 0), coalesce(sum(states[4]), 0), coalesce(sum(states[5]), 0), coalesce(sum(states[6]), 0),
			coalesce(sum(states[7]), 0), coalesce(sum(states[8]), 0)] from sites where $1::text[] is null or id = any($1)`, own).
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

// Site returns one site.
func (s *Lists) Site(ctx context.Context, id protocol.SiteID) (fleet.Site, error) {
	found, err := pgdb.Rows(ctx, s.db, scanSite, siteView, []string{string(id)})
	v, err := pgdb.One("site", found, err)
	if err == nil {
		v.ClockUnsynced, err = s.clockUnsynced(ctx, id)
	}
	return v, err
}

// clockUnsynced reports whether the last event that a site wrote has the mark of a clock that was
// not synchronised. It looks at the last ten events of the site, some of which may be the CO's own.
func (s *Lists) clockUnsynced(ctx context.Context, id protocol.SiteID) (bool, error) {
	found, err := pgdb.Rows(ctx, s.db, pgx.RowTo[bool], `select site_time_unsynced from (
		select id, site_time, site_time_unsynced from events where site = $1 order by id desc limit 10) last where site_time is not null order by id desc limit 1`, id)
	return len(found) > 0 && found[0], pgdb.Classify("read the clock of site "+string(id), err)
}
