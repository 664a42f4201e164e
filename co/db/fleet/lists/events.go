package listdb

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

const eventColumns = `select id, time, site_time, site_time_unsynced, kind, site, node, deployment, from_state, to_state, phase, pulled_bytes,
	total_bytes, app_version, code, message from events`

func scanEvent(row pgx.CollectableRow) (e fleet.Event, err error) {
	err = row.Scan(&e.ID, &e.Time, &e.SiteTime, &e.Unsynced, &e.Kind, &e.Site, &e.Node, &e.Deployment, &e.From, &e.To, &e.Phase, &e.Pulled,
		&e.Total, &e.AppVersion, &e.Code, &e.Message)
	return e, err
}

// Events returns events in the order of their ids, all that were committed before the
// call included. A caller that continues with the last id as After misses none.
func (s *Lists) Events(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	if err := s.db.SequenceAll(ctx); err != nil {
		return nil, err
	}
	return readEvents(ctx, s.db, f)
}

// Feed is Events without those that have no id yet, over connections that only the feed
// and its sequencer use.
func (s *Lists) Feed(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	return readEvents(ctx, s.db.Feed, f)
}

func readEvents(ctx context.Context, from pgdb.Querier, f fleet.EventFilter) (events []fleet.Event, err error) {
	own, err := within(ctx, from, f.Site, f.Within)
	if err == nil {
		f.Kinds = slices.Compact(slices.Sorted(slices.Values(f.Kinds)))
		find := fewParts
		if len(own) > mostParts && len(f.Kinds) == 0 {
			find = manySites
		}
		events, err = find(ctx, from, f, own)
	}
	if err != nil {
		return nil, pgdb.Classify("list events", err)
	}
	if f.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

// sorted is the order in which events are looked for.
func sorted(f fleet.EventFilter) string {
	if f.Newest {
		return " order by id desc"
	}
	return " order by id"
}

// mostParts is how many parts of an index one query looks at for some sites.
const mostParts = 64

// fewParts returns events by one query, in which each part of an index is looked at by itself.
func fewParts(ctx context.Context, from pgdb.Querier, f fleet.EventFilter, own []string) ([]fleet.Event, error) {
	s, limit := &statement{}, fleet.Size(f.Limit)
	if apart := parts(f.Kinds, own); len(apart) == 1 {
		selectEvents(s, f, f.Kinds, own)
	} else {
		s.add(eventColumns + " where false")
		for _, part := range apart {
			s.add(" union all (")
			selectEvents(s, f, part.kinds, part.sites)
			s.add(sorted(f)+" limit $)", limit)
		}
	}
	s.add(sorted(f)+" limit $", limit)
	return rows(ctx, from, scanEvent, s)
}

// manySites returns events of many sites. They may be a large part of all events: then they are among the next ones. Or
// they may be rare: then each site is read by itself. The first way is tried, and given up after as many events as the
// second one may read.
func manySites(ctx context.Context, from pgdb.Querier, f fleet.EventFilter, own []string) ([]fleet.Event, error) {
	next, each, limit := &statement{}, &statement{}, fleet.Size(f.Limit)
	next.add("select * from ("+eventColumns+" where id > $"+withoutResults(f)+sorted(f)+" limit $) w where site = any($::text[])"+sorted(f)+" limit $", f.After, limit*len(own), own, limit)
	events, err := rows(ctx, from, scanEvent, next)
	if err != nil || len(events) == limit {
		return events, err
	}
	each.add("select e.* from (select id from unnest($::text[]) as own, lateral (select id from events where site = own and id > $"+withoutResults(f)+sorted(f)+" limit $) t"+
		sorted(f)+" limit $) k, lateral ("+eventColumns+" where id = k.id limit 1) e"+sorted(f), own, f.After, limit, limit)
	return rows(ctx, from, scanEvent, each)
}

// A part is what is looked for by itself.
type part struct{ kinds, sites []string }

// parts returns each kind, and with it each site where they are few: each has its own part of an index.
func parts(kinds, sites []string) (out []part) {
	each := func(list []string, apart bool) [][]string {
		if len(list) < 2 || !apart {
			return [][]string{list}
		}
		return slices.Collect(slices.Chunk(list, 1))
	}
	for _, k := range each(kinds, true) {
		for _, own := range each(sites, len(sites)*max(1, len(kinds)) <= mostParts) {
			out = append(out, part{k, own})
		}
	}
	return out
}

// selectEvents appends only the conditions that are asked for, so that each has its index.
func selectEvents(s *statement, f fleet.EventFilter, kinds, sites []string) {
	s.add(eventColumns+" where id > $", f.After)
	if len(sites) == 1 {
		s.add(" and site = $", sites[0])
	} else if sites != nil {
		s.add(" and site = any($::text[])", sites)
	}
	if f.Deployment != "" {
		s.add(" and deployment = $ and deployment <> ''", string(f.Deployment))
	}
	if f.Node != "" {
		s.add(" and node = $ and node <> ''", string(f.Node))
	}
	if len(kinds) > 0 {
		s.add(" and kind = $", kinds[0])
	}
	s.add(withoutResults(f))
}

// withoutResults is the condition that leaves out what nodes reported of commands, where that is asked for.
func withoutResults(f fleet.EventFilter) string {
	if !f.WithoutResults {
		return ""
	}
	return " and kind <> '" + string(protocol.CommandResult) + "'"
}

// LastEvent returns the greatest id that an event ever had, 0 where there was none.
func (s *Lists) LastEvent(ctx context.Context) (id int64, err error) {
	if err := s.db.SequenceAll(ctx); err != nil {
		return 0, err
	}
	err = s.db.QueryRow(ctx, `select last from event_sequence`).Scan(&id)
	return id, pgdb.Classify("read last event", err)
}

// FirstEvent returns the least id of the events that are kept.
func (s *Lists) FirstEvent(ctx context.Context) (id int64, err error) {
	err = s.db.QueryRow(ctx, `select greatest(min(first), 1) from event_partitions`).Scan(&id)
	return id, pgdb.Classify("read the first event", err)
}
