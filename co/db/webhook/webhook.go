// Package webhookdb records how far the CO has come with the events for each webhook.
package webhookdb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgdb"
)

// A Store is the record. Its methods may be called concurrently; errors are of the protocol's kinds.
type Store struct{ db *db.DB }

// New returns the Store of a database.
func New(d *db.DB) *Store { return &Store{d} }

// Position returns the id of the last event that is done for a webhook; known is false where there is none yet.
func (s *Store) Position(ctx context.Context, name string) (id int64, known bool, err error) {
	err = s.db.QueryRow(ctx, `select position from webhooks where name = $1`, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return id, err == nil, pgdb.Classify("read position of webhook", err)
}

// SavePosition records the id of the last event that is done for a webhook.
func (s *Store) SavePosition(ctx context.Context, name string, id int64) error {
	_, err := s.db.Exec(ctx, `insert into webhooks (name, position) values ($1, $2)
		on conflict (name) do update set position = excluded.position, updated_at = now()`, name, id)
	return pgdb.Classify("record position of webhook", err)
}
