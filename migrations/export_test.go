package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// ApplyTo brings the schema to a step, for tests of the steps after it.
func ApplyTo(ctx context.Context, conn *pgx.Conn, step int32) error {
	m, err := migrate.NewMigrator(ctx, conn, Table)
	if err != nil {
		return err
	}
	if err := m.LoadMigrations(files); err != nil {
		return err
	}
	give, err := acquireTurn(ctx, conn)
	if err != nil {
		return err
	}
	defer give()
	return m.MigrateTo(ctx, step)
}
