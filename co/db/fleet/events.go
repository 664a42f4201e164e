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
		err := tx.QueryRow(ctx, `select exists (select from events where kind in ('file_ignored', 'deployment_waiting', 'site_added')
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
	// Only the conditions that are asked for, so that each has its index.
	sql, args := eventColumns+" where id > $1", []any{f.After}
	add := func(condition string, wanted bool, value any) {
		if wanted {
			args = append(args, value)
			sql += fmt.Sprintf(" and "+condition, len(args))
		}
	}
	add("site = $%d", f.Site != "", f.Site)
	add("deployment = $%d and deployment <> ''", f.Deployment != "", f.Deployment)
	add("node = $%d", f.Node != "", f.Node)
	add("kind = any($%d)", len(f.Kinds) > 0, f.Kinds)
	sql += " order by id"
	if f.Newest {
		sql += " desc"
	}
	args = append(args, fleet.Size(f.Limit))
	events, err := pgdb.Rows(ctx, from, scanEvent, sql+fmt.Sprintf(" limit $%d", len(args)), args...)
	if err != nil {
		return nil, pgdb.Classify("list events", err)
	}
	if f.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

// LastEvent returns the greatest id that an event ever had, 0 where there was none.
func (s *Store) LastEvent(ctx context.Context) (id int64, err error) {
	if err := s.db.SequenceAll(ctx); err != nil {
		return 0, err
	}
	err = s.db.QueryRow(ctx, `select last from event_sequence`).Scan(&id)
	return id, pgdb.Classify("read last event", err)
}
