// Package sessionsdb is the CO's record of sessions, which are programs in containers that persons use, and of what they showed. Errors are of the
// protocol's kinds.
package sessionsdb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct{ db *db.DB }

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{pool} }

// Open records a session that a CO, by a name that no other one has, carries from now on, with the first piece of its recording.
func (s *Store) Open(ctx context.Context, session *fleet.Session, carrier string, first []byte) error {
	return s.db.Tx(ctx, "record session", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`insert into sessions (id, site, node, deployment, component, container, arguments, terminal, principal, carrier, opened_at, recorded)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
			session.ID, session.Site, session.Node, session.Deployment, session.Component, session.Container, pgdb.Filled(session.Arguments), session.Terminal, session.Principal, carrier, session.OpenedAt, len(first))
		b.Queue(`insert into session_output (session, number, data) values ($1, 0, $2)`, session.ID, first)
		return tx.SendBatch(ctx, b).Close()
	})
}

// Append adds to the recording of a session that is open. It is durable when it returns nil. The error is of kind Conflict where the session has
// ended: another CO took it for abandoned.
func (s *Store) Append(ctx context.Context, id command.ID, chunk []byte) error {
	tag, err := s.db.Exec(ctx, `with s as (update sessions set recorded = recorded + length($2::bytea) where id = $1 and ended_at is null returning id, recorded)
		insert into session_output (session, number, data) select id, recorded - length($2::bytea), $2 from s`, id, chunk)
	if err == nil && tag.RowsAffected() == 0 {
		return protocol.Errorf(protocol.Conflict, "session %s has ended: nothing is added to its recording", id)
	}
	return pgdb.Classify("record what a session shows", err)
}

// Began records that the program of a session runs in a container.
func (s *Store) Began(ctx context.Context, id command.ID, component, container string) error {
	_, err := s.db.Exec(ctx, `update sessions set began_at = now(), component = $2, container = $3 where id = $1`, id, component, container)
	return pgdb.Classify("record the beginning of a session", err)
}

// digest is that of a recording, as SQL: $1 is the session.
const digest = `'sha256:' || encode(sha256(coalesce((select string_agg(data, ''::bytea order by number) from session_output where session = $1), ''::bytea)), 'hex')`

// End records how a session ended, and returns it. One that has ended stays as it is.
func (s *Store) End(ctx context.Context, id command.ID, e fleet.SessionEnd) (fleet.Session, error) {
	_, err := s.db.Exec(ctx, `update sessions set ended_at = now(), reason = $2, exit_code = $3, message = $4, digest = `+digest+` where id = $1 and ended_at is null`, id, e.Reason, e.ExitCode, e.Message)
	if err != nil {
		return fleet.Session{}, pgdb.Classify("record the end of a session", err)
	}
	return s.Session(ctx, id, siteset.Set{})
}

// Alive says that the sessions of a carrier go on, and returns those that must end, with the person that asked
// for that.
func (s *Store) Alive(ctx context.Context, carrier string) (map[command.ID]string, error) {
	type row struct {
		id command.ID
		by string
	}
	list, err := pgdb.Rows(ctx, s.db, func(r pgx.CollectableRow) (v row, err error) { return v, r.Scan(&v.id, &v.by) },
		`with a as (update sessions set alive_at = now() where carrier = $1 and ended_at is null and alive_at < now() - interval '5 s')
		select id, stopped_by from sessions where carrier = $1 and ended_at is null and stop_asked`, carrier)
	out := map[command.ID]string{}
	for _, v := range list {
		out[v.id] = v.by
	}
	return out, pgdb.Classify("look for sessions that are to end", err)
}

// Abandoned ends the sessions whose carrier was silent for a time: it was killed.
func (s *Store) Abandoned(ctx context.Context, silent time.Duration) error {
	ids, err := pgdb.Rows(ctx, s.db, pgx.RowTo[command.ID], `select id from sessions where ended_at is null and alive_at < now() - $1 * interval '1 s' limit 1000`, silent.Seconds())
	errs := []error{pgdb.Classify("look for abandoned sessions", err)}
	for _, id := range ids {
		_, err := s.End(ctx, id, fleet.SessionEnd{Reason: fleet.SessionCO, Message: "the CO that carried it ended without saying so: the node has hung the program up within 40 s"})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Stop asks for the end of a session that is open. The error is of kind NotFound where there is none at the sites of a set, and Conflict where it has
// ended.
func (s *Store) Stop(ctx context.Context, id command.ID, by string, within siteset.Set) error {
	session, err := s.Session(ctx, id, within)
	if err != nil {
		return err
	}
	tag, err := s.db.Exec(ctx, `update sessions set stop_asked = true, stopped_by = $2 where id = $1 and ended_at is null`, id, by)
	if err == nil && tag.RowsAffected() == 0 {
		return protocol.Errorf(protocol.Conflict, "session %s has ended already: %s", id, session.Reason)
	}
	return pgdb.Classify("ask for the end of a session", err)
}

const view = `select id, site, node, deployment, component, container, arguments, terminal, principal, opened_at, began_at, ended_at, reason, exit_code, message, stopped_by, recorded, digest
	from sessions s where ` + db.InSet + ` `

func scan(row pgx.CollectableRow) (s fleet.Session, err error) {
	err = row.Scan(&s.ID, &s.Site, &s.Node, &s.Deployment, &s.Component, &s.Container, &s.Arguments, &s.Terminal, &s.Principal, &s.OpenedAt, &s.BeganAt, &s.EndedAt, &s.Reason, &s.ExitCode, &s.Message, &s.StoppedBy, &s.Recorded, &s.Digest)
	s.OpenedAt = s.OpenedAt.UTC()
	return s, err
}

// Session returns a session at the sites of a set. The error is of kind NotFound where there is none.
func (s *Store) Session(ctx context.Context, id command.ID, within siteset.Set) (fleet.Session, error) {
	ids, beginnings := db.Sets(within)
	found, err := pgdb.Rows(ctx, s.db, scan, view+`and id = $3`, ids, beginnings, id)
	if err == nil && len(found) == 0 {
		return fleet.Session{}, protocol.Errorf(protocol.NotFound, "no session %q: colony session list shows which there are", id)
	}
	if err != nil {
		return fleet.Session{}, pgdb.Classify("read session", err)
	}
	return found[0], nil
}

// Sessions returns a page of the sessions that a filter picks, the newest first, and the cursor of the next page. A cursor that is none is of kind
// Invalid.
func (s *Store) Sessions(ctx context.Context, f fleet.SessionFilter, p fleet.Page) (list []fleet.Session, next string, err error) {
	before, id := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "" // after all
	if p.Cursor != "" {
		if before, id, err = fleet.ParseTimeCursor(p.Cursor); err != nil {
			return nil, "", err
		}
	}
	ids, beginnings := db.Sets(f.Within)
	n := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, scan, view+`and (opened_at, id) < ($3, $4) and ($5 = '' or site = $5) and ($6::boolean is null or (ended_at is null) = $6)
		order by opened_at desc, id desc limit $7`, ids, beginnings, before, id, f.Site, f.Open, n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list sessions", err)
	}
	list, next = fleet.Cut(list, n, func(last fleet.Session) string { return fleet.TimeCursor(last.OpenedAt, string(last.ID)) })
	return list, next, nil
}

// Recording returns the recording of a session from an offset on, at most about a megabyte at a time; nothing where it has no more yet.
func (s *Store) Recording(ctx context.Context, id command.ID, from int64) (data []byte, err error) {
	err = s.db.QueryRow(ctx, `select coalesce(string_agg(data, ''::bytea order by number), ''::bytea) from
		(select number, data from session_output where session = $1 and number >= $2 order by number limit 256) c`, id, from).Scan(&data)
	return data, pgdb.Classify("read the recording of a session", err)
}
