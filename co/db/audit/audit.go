// Package auditdb is the CO's audit in PostgreSQL. Errors are of the protocol's kinds.
package auditdb

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct{ db *db.DB }

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{pool} }

// Add adds a row. A second outcome of one intent is left out; the error is then of kind Conflict, as only one writer
// writes the outcome of an intent, and another one was first.
func (s *Store) Add(ctx context.Context, r audit.Row) error {
	other := false
	err := s.db.Tx(ctx, "write the audit", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		db.QueueAudit(b, r)
		switch r.Kind {
		case audit.Intent:
			b.Queue(`insert into audit_open (id, at) values ($1, $2)`, r.ID, r.At)
		case audit.Outcome, audit.Settled:
			b.Queue(`delete from audit_open where id = $1`, r.Of)
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil || r.Kind != audit.Outcome {
			return err
		}
		return tx.QueryRow(ctx, `select exists (select from audit where of = $1 and kind = $2 and id <> $3)`, r.Of, r.Kind, r.ID).Scan(&other)
	})
	if err == nil && other {
		return protocol.Errorf(protocol.Conflict, "the operation %s has an outcome already, which is not the one that is to be written: %d %s", r.Of, r.Status, r.Detail)
	}
	return err
}

func scanRow(row pgx.CollectableRow) (r audit.Row, err error) {
	err = row.Scan(&r.ID, &r.At, &r.Kind, &r.Of, &r.Principal, &r.Role, &r.Token, &r.Remote, &r.Operation, &r.Target, &r.Status, &r.Commits, &r.Detail, &r.Issuer, &r.Subject)
	r.At = r.At.UTC()
	if len(r.Commits) == 0 {
		r.Commits = nil
	}
	return r, err
}

// sealAtOnce is how many rows one call of Seal takes.
const sealAtOnce = 1000

// Seal gives the oldest rows that have none their places in the chain, and returns the end of the chain and how many
// rows it took. ctx is of a lease that one replica has.
func (s *Store) Seal(ctx context.Context) (position int64, hash audit.Hash, sealed int, err error) {
	err = s.db.Tx(ctx, "seal the audit", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		var err error
		if position, hash, err = end(ctx, tx); err != nil {
			return err
		}
		found, err := tx.Query(ctx, `select `+db.AuditColumns+` from audit where position is null order by at, id limit $1`, sealAtOnce)
		if err != nil {
			return err
		}
		rows, err := pgx.CollectRows(found, scanRow)
		if err != nil || len(rows) == 0 {
			return err
		}
		batch := &pgx.Batch{}
		for _, r := range rows {
			if hash, err = audit.Chain(hash, r); err != nil {
				return err
			}
			position++
			batch.Queue(`update audit set position = $2, hash = $3 where id = $1`, r.ID, position, slices.Clone(hash[:]))
		}
		sealed = len(rows)
		return tx.SendBatch(ctx, batch).Close()
	})
	return position, hash, sealed, err
}

// end returns the end of the chain.
func end(ctx context.Context, tx pgx.Tx) (position int64, hash audit.Hash, err error) {
	var b []byte
	err = tx.QueryRow(ctx, `select position, hash from audit where position is not null order by position desc limit 1`).Scan(&position, &b)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, hash, nil
	}
	copy(hash[:], b)
	return position, hash, err
}

// At returns the hash that the row at a position has; 0 is before the first one. The error is of kind NotFound where
// there is no such row.
func (s *Store) At(ctx context.Context, position int64) (hash audit.Hash, err error) {
	if position == 0 {
		return hash, nil
	}
	var b []byte
	err = s.db.QueryRow(ctx, `select hash from audit where position = $1`, position).Scan(&b)
	if errors.Is(err, pgx.ErrNoRows) {
		return hash, protocol.Errorf(protocol.NotFound, "no row of the audit has the position %d: begin again with the first", position)
	}
	copy(hash[:], b)
	return hash, pgdb.Classify("read the audit", err)
}

// Chain returns up to n rows of the chain after a position, in its order.
func (s *Store) Chain(ctx context.Context, after int64, n int) ([]audit.Sealed, error) {
	list, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (r audit.Sealed, err error) {
		var hash []byte
		err = row.Scan(&r.ID, &r.At, &r.Kind, &r.Of, &r.Principal, &r.Role, &r.Token, &r.Remote, &r.Operation, &r.Target, &r.Status, &r.Commits, &r.Detail, &r.Issuer, &r.Subject, &r.Position, &hash)
		r.At = r.At.UTC()
		if len(r.Commits) == 0 {
			r.Commits = nil
		}
		copy(r.Hash[:], hash)
		return r, err
	}, `select `+db.AuditColumns+`, position, hash from audit where position > $1 order by position limit $2`, after, n)
	return list, pgdb.Classify("read the audit", err)
}

// Entries returns a page of operations with what became of them, the newest first, and the cursor of the next page.
// A cursor that is none is of kind Invalid.
func (s *Store) Entries(ctx context.Context, f audit.Filter, p fleet.Page) (list []audit.Entry, next string, err error) {
	before, id := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "" // after all
	if p.Cursor != "" {
		if before, id, err = fleet.ParseTimeCursor(p.Cursor); err != nil {
			return nil, "", err
		}
	}
	n := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (e audit.Entry, err error) {
		err = row.Scan(&e.ID, &e.At, &e.Kind, &e.Principal, &e.Role, &e.Token, &e.Remote, &e.Operation, &e.Target, &e.Status, &e.Commits, &e.Detail, &e.DoneAt, &e.Issuer, &e.Subject)
		return e, err
	}, `select a.id, a.at, a.kind, a.principal, a.role, a.token, a.remote, a.operation, a.target,
			coalesce(o.status, a.status), coalesce(o.commits, a.commits), coalesce(o.detail, a.detail), o.at, a.issuer, a.subject
		from audit a left join lateral (select * from audit o where o.of = a.id order by o.kind = 'outcome' desc limit 1) o on true
		where a.of = '' and (a.at, a.id) < ($1, $2) and a.at >= $3
		and ($4::timestamptz is null or a.at < $4) and ($5 = '' or a.principal = $5) and ($6 = '' or starts_with(a.target, $6)) and ($7 = '' or a.kind = $7)
		order by a.at desc, a.id desc limit $8`, before, id, f.Since, optional(f.Until), f.Principal, f.Target, f.Kind, n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list the audit", err)
	}
	list, next = fleet.Cut(list, n, func(last audit.Entry) string { return fleet.TimeCursor(last.At, last.ID) })
	return list, next, nil
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Open returns the ids of up to n intents that have no outcome, and were written before a time, the oldest first.
func (s *Store) Open(ctx context.Context, before time.Time, n int) ([]string, error) {
	list, err := pgdb.Rows(ctx, s.db, pgx.RowTo[string], `select id from audit_open where at < $1 order by at, id limit $2`, before, n)
	return list, pgdb.Classify("read the audit", err)
}

// PushedTo returns the commit of the deployments repo up to which pushes are recorded; empty: none was yet.
func (s *Store) PushedTo(ctx context.Context) (commit string, err error) {
	err = s.db.QueryRow(ctx, `select commit from audit_pushed`).Scan(&commit)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return commit, pgdb.Classify("read the audit", err)
}

// AddPushes adds rows of commits that no operation made, and notes that all up to the commit to are recorded; nothing where that
// was not from any more. ctx is of a lease that one replica has.
func (s *Store) AddPushes(ctx context.Context, from, to string, rows []audit.Row) error {
	return s.db.Tx(ctx, "write the audit", func(tx pgx.Tx) error {
		if err := s.db.Fence(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `insert into audit_pushed as p (commit) values ($2) on conflict (one) do update set commit = $2 where p.commit = $1`, from, to)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		b := &pgx.Batch{}
		for _, r := range rows {
			db.QueueAudit(b, r)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// CommitsOf returns the commits of intents that there are; nil for one that has no outcome yet.
func (s *Store) CommitsOf(ctx context.Context, intents []string) (map[string][]string, error) {
	out := map[string][]string{}
	_, err := pgdb.Rows(ctx, s.db, func(row pgx.CollectableRow) (none struct{}, err error) {
		var id string
		var commits []string
		err = row.Scan(&id, &commits)
		out[id] = commits
		return none, err
	}, `select a.id, (select o.commits from audit o where o.of = a.id order by o.kind = 'outcome' desc limit 1) from audit a where a.id = any ($1) and a.kind = 'intent'`, pgdb.Filled(intents))
	return out, pgdb.Classify("read the audit", err)
}
