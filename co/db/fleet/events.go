package fleetdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
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
