// Package migrations holds the database schema of the CO as SQL, one file for
// each step. Steps only go forward: a step that was released is never edited, and
// a later one repairs what it did. A file is applied in one transaction.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed *.sql
var files embed.FS

// Table is where the number of the last applied step stands, in the first schema
// of the connection's search path.
const Table = "schema_version"

// turnTimeout bounds the wait for other programs that migrate the same database, which may take
// longer than a step may wait for a lock; turn is the advisory lock for that.
const (
	turnTimeout = "60s"
	turn        = int64(0x436f6c6f6e79) // "Colony"
)

// lockTimeout bounds the wait of a step for a lock, as a setting of PostgreSQL.
const lockTimeout = "3s"

// BeforeRestore ends the name of the schema that colony co restore has put aside, or made, and that is there until it has ended.
const BeforeRestore = "_before_restore"

// Latest returns the number of the last step that this program knows.
func Latest() int {
	steps, err := fs.Glob(files, "*.sql")
	if err != nil {
		return 0 // the pattern is right
	}
	return len(steps)
}

// Version returns the number of the last step that was applied to a database, 0 where it holds no CO.
func Version(ctx context.Context, conn *pgx.Conn) (n int, err error) {
	var there bool
	if err := conn.QueryRow(ctx, "select to_regclass($1) is not null", Table).Scan(&there); err != nil || !there {
		return 0, err
	}
	return n, conn.QueryRow(ctx, "select version from "+Table).Scan(&n)
}

// Apply brings the schema of conn's database to the last step, under an advisory
// lock, so that any number of programs may call it at once. A database with a
// later step than this program knows is refused: an older program must not write
// to it. A step waits for a lock that others hold for lockTimeout at most, and so do
// those behind it: the error has the code 55P03 then, and Apply may be called again.
func Apply(ctx context.Context, conn *pgx.Conn) error {
	m, err := migrate.NewMigrator(ctx, conn, Table)
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	if err := m.LoadMigrations(files); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	give, err := acquireTurn(ctx, conn)
	if err != nil {
		return err
	}
	defer give()
	if _, err := conn.Exec(ctx, `set lock_timeout = '`+lockTimeout+`'`); err != nil {
		return fmt.Errorf("bound the wait for locks: %w", err)
	}
	if err := m.Migrate(ctx); err != nil {
		if bad, ok := errors.AsType[migrate.BadVersionError](err); ok {
			return fmt.Errorf("the database was made by a later version of this program, upgrade it: %w", bad)
		}
		return fmt.Errorf("apply migrations: %w", err)
	}
	return nil
}

// acquireTurn waits until no other program migrates the database. give ends the turn, and resets how
// long the connection waits for locks; if that fails, the next use of the connection fails.
func acquireTurn(ctx context.Context, conn *pgx.Conn) (give func(), err error) {
	give = func() {
		_, _ = conn.Exec(ctx, `select pg_advisory_unlock($1)`, turn)
		_, _ = conn.Exec(ctx, `reset lock_timeout`)
	}
	if _, err := conn.Exec(ctx, `set lock_timeout = '`+turnTimeout+`'`); err != nil {
		return nil, fmt.Errorf("bound the wait for locks: %w", err)
	}
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, turn); err != nil {
		_, _ = conn.Exec(ctx, `reset lock_timeout`)
		return nil, fmt.Errorf("wait for others that migrate the database: %w", err)
	}
	return give, nil
}
