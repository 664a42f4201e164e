package migrations_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestApplyAtOnceAndAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	var g errgroup.Group
	for range 4 {
		conn := connect(t, url)
		g.Go(func() error { return migrations.Apply(t.Context(), conn) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	var before, after string
	if err := conn.QueryRow(t.Context(), "select epoch from colony").Scan(&before); err != nil || before == "" {
		t.Fatalf("epoch %q: %v", before, err)
	}
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "select epoch from colony").Scan(&after); err != nil || after != before {
		t.Errorf("epoch was %s, is %s after a second Apply: %v", before, after, err)
	}
}

func TestLaterDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t))
	if err := migrations.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "update schema_version set version = version + 1"); err != nil {
		t.Fatal(err)
	}
	err := migrations.Apply(t.Context(), conn)
	if err == nil || !strings.Contains(err.Error(), "later version of this program") {
		t.Errorf("got %v", err)
	}
}
