package fleetdb

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// AddEvent records something that the CO itself observed. Its ID is given here, and its
// Time where it has none.
func (s *Store) AddEvent(ctx context.Context, e fleet.Event) error {
	return s.db.Tx(ctx, "record event", func(tx pgx.Tx) error { return db.WriteEvents(ctx, tx, []fleet.Event{e}) })
}

// Notice records an event, unless one of its kind and message is recorded: for what is
// found anew at each start.
func (s *Store) Notice(ctx context.Context, e fleet.Event) error {
	if err := s.db.SequenceAll(ctx); err != nil { // so that a notice of a moment ago is among the events
		return err
	}
	return s.db.Tx(ctx, "record event", func(tx pgx.Tx) error {
		var known bool
		err := tx.QueryRow(ctx, `select exists (select from events where kind in ('file_ignored', 'deployment_waiting', 'site_added', 'desired_position_refused')
			and kind = $1 and md5(message) = md5($2))`, e.Kind, e.Message).Scan(&known)
		if err != nil || known {
			return err
		}
		return db.WriteEvents(ctx, tx, []fleet.Event{e})
	})
}

// reachTimeout bounds RecordReach: the loop that follows the deployments repo waits for
// it.
const reachTimeout = 5 * time.Second

// RecordReach records that the remote of the deployments repo cannot be reached, for
// the reason err, or can be again where err is nil. Where that is not recorded within
// 5 s it is logged.
func (s *Store) RecordReach(ctx context.Context, remote string, err error) {
	e := fleet.Event{Kind: fleet.GitReachable, Message: remote}
	if err != nil {
		e.Kind, e.Message = fleet.GitUnreachable, err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := s.AddEvent(ctx, e); err != nil {
		s.db.Log.WarnContext(ctx, "event not recorded", "kind", e.Kind, "err", err)
	}
}

const eventColumns = `select id, time, site_time, kind, site, node, deployment, from_state, to_state, phase, pulled_bytes,
	total_bytes, app_version, code, message from events`

func scanEvent(row pgx.CollectableRow) (e fleet.Event, err error) {
	err = row.Scan(&e.ID, &e.Time, &e.SiteTime, &e.Kind, &e.Site, &e.Node, &e.Deployment, &e.From, &e.To, &e.Phase, &e.Pulled,
		&e.Total, &e.AppVersion, &e.Code, &e.Message)
	return e, err
}

// Events returns events in the order of their ids, all that were committed before the
// call included. A caller that continues with the last id as After misses none.
func (s *Store) Events(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	if err := s.db.SequenceAll(ctx); err != nil {
		return nil, err
	}
	return readEvents(ctx, s.db, f)
}

// Feed is Events without those that have no id yet, over connections that only the feed
// and its sequencer use.
func (s *Store) Feed(ctx context.Context, f fleet.EventFilter) ([]fleet.Event, error) {
	return readEvents(ctx, s.db.Feed, f)
}

func readEvents(ctx context.Context, from pgdb.Querier, f fleet.EventFilter) ([]fleet.Event, error) {
	direction := ""
	if f.Newest {
		direction = " desc"
	}
	limit := fleet.Size(f.Limit)
	s := &statement{}
	f.Kinds = slices.Compact(slices.Sorted(slices.Values(f.Kinds)))
	if len(f.Kinds) < 2 {
		selectEvents(s, f, f.Kinds)
	} else {
		// Each kind by its own part of the index.
		s.add(eventColumns + " where false")
		for _, kind := range f.Kinds {
			s.add(" union all (")
			selectEvents(s, f, []string{kind})
			s.add(" order by id"+direction+" limit $)", limit)
		}
	}
	s.add(" order by id"+direction+" limit $", limit)
	events, err := rows(ctx, from, scanEvent, s)
	if err != nil {
		return nil, pgdb.Classify("list events", err)
	}
	if f.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

// selectEvents appends only the conditions that are asked for, so that each has its index.
func selectEvents(s *statement, f fleet.EventFilter, kinds []string) {
	s.add(eventColumns+" where id > $", f.After)
	if f.Site != "" {
		s.add(" and site = $", string(f.Site))
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
}

// LastEvent returns the greatest id that an event ever had, 0 where there was none.
func (s *Store) LastEvent(ctx context.Context) (id int64, err error) {
	if err := s.db.SequenceAll(ctx); err != nil {
		return 0, err
	}
	err = s.db.QueryRow(ctx, `select last from event_sequence`).Scan(&id)
	return id, pgdb.Classify("read last event", err)
}
