// Package accessdb is the CO's record of the tokens of people and programs. Errors are of the protocol's kinds.
package accessdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// A Store is the record. Its methods may be called concurrently.
type Store struct{ db *db.DB }

// New returns the record in a database, which stays the caller's to close.
func New(pool *db.DB) *Store { return &Store{pool} }

// keepTokens is how long a token is kept after its end, so that its user reads why it is refused.
const keepTokens = `interval '30 days'`

// AddToken records a token. Tokens that ended long ago are removed.
func (s *Store) AddToken(ctx context.Context, t access.Token) error {
	return s.db.Tx(ctx, "add token", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`delete from access_tokens where expires_at < now() - ` + keepTokens)
		b.Queue(`insert into access_tokens (id, name, role, created_at, created_by, expires_at, key_id, sites) values ($1, $2, $3, $4, $5, $6, $7, $8)`,
			t.ID, t.Name, t.Role, t.CreatedAt, t.CreatedBy, t.Expires, t.Key, append([]string{}, t.Sites...))
		return tx.SendBatch(ctx, b).Close()
	})
}

const columns = `select id, name, role, created_at, created_by, expires_at, revoked_at, used_at, key_id, sites from access_tokens `

func scan(row pgx.CollectableRow) (t access.Token, err error) {
	return t, row.Scan(&t.ID, &t.Name, &t.Role, &t.CreatedAt, &t.CreatedBy, &t.Expires, &t.RevokedAt, &t.UsedAt, &t.Key, &t.Sites)
}

// Tokens returns a page of the tokens that have not ended, and of those that ended within a month, in the order of
// their making, and the cursor of the next page. A cursor that is none is of kind Invalid.
func (s *Store) Tokens(ctx context.Context, p fleet.Page) (list []access.Token, next string, err error) {
	var at time.Time
	var id string
	if p.Cursor != "" {
		if at, id, err = fleet.ParseTimeCursor(p.Cursor); err != nil {
			return nil, "", err
		}
	}
	n := fleet.Size(p.Limit)
	list, err = pgdb.Rows(ctx, s.db, scan, columns+`where expires_at >= now() - `+keepTokens+`
		and (created_at, id) > ($1, $2) order by created_at, id limit $3`, at, id, n+1)
	if err != nil {
		return nil, "", pgdb.Classify("list tokens", err)
	}
	list, next = fleet.Cut(list, n, func(last access.Token) string { return fleet.TimeCursor(last.CreatedAt, last.ID) })
	return list, next, nil
}

// TokensByID returns those of the tokens that are in the record.
func (s *Store) TokensByID(ctx context.Context, ids []string) ([]access.Token, error) {
	list, err := pgdb.Rows(ctx, s.db, scan, columns+`where id = any($1)`, ids)
	return list, pgdb.Classify("read tokens", err)
}

// TokensOfOtherKeys returns how many tokens count that another key signed.
func (s *Store) TokensOfOtherKeys(ctx context.Context, key string) (n int, err error) {
	err = s.db.QueryRow(ctx, `select count(*) from access_tokens where key_id not in ('', $1) and revoked_at is null and expires_at > now()`, key).Scan(&n)
	return n, pgdb.Classify("count tokens of other keys", err)
}

// RevokeToken ends a token; one that was revoked before stays so. The error is of kind NotFound where there is none.
func (s *Store) RevokeToken(ctx context.Context, id string) error {
	tag, err := s.db.Exec(ctx, `update access_tokens set revoked_at = coalesce(revoked_at, now()) where id = $1`, id)
	if err != nil {
		return pgdb.Classify("revoke token", err)
	}
	if tag.RowsAffected() == 0 {
		return protocol.Errorf(protocol.NotFound, "no token %q: colony token list shows their ids", id)
	}
	return nil
}

// TokensUsed records when tokens were used last, by id.
func (s *Store) TokensUsed(ctx context.Context, at map[string]time.Time) error {
	ids, times := make([]string, 0, len(at)), make([]time.Time, 0, len(at))
	for id, t := range at {
		ids, times = append(ids, id), append(times, t)
	}
	_, err := s.db.Exec(ctx, `update access_tokens t set used_at = greatest(t.used_at, u.at)
		from unnest($1::text[], $2::timestamptz[]) u(id, at) where t.id = u.id`, ids, times)
	return pgdb.Classify("record uses of tokens", err)
}
