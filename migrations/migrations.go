// Package migrations holds the database schema of the CO as SQL, one file for
// each step. Steps only go forward: a step that was released is never edited, and
// a later one repairs what it did. A file is applied in one transaction.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed *.sql
var files embed.FS

// Table is where the number of the last applied step stands, in the first schema
// of the connection's search path.
const Table = "schema_version"

// Apply brings the schema of conn's database to the last step, under an advisory
// lock, so that any number of programs may call it at once. A database with a
// later step than this program knows is refused: an older program must not write
// to it.
func Apply(ctx context.Context, conn *pgx.Conn) error {
	m, err := migrate.NewMigrator(ctx, conn, Table)
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	if err := m.LoadMigrations(files); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	if err := m.Migrate(ctx); err != nil {
		if bad, ok := errors.AsType[migrate.BadVersionError](err); ok {
			return fmt.Errorf("the database was made by a later version of this program, upgrade it: %w", bad)
		}
		return fmt.Errorf("apply migrations: %w", err)
	}
	return nil
}
