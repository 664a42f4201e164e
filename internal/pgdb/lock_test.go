package pgdb_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// One holder at a time; the next one gets the lock when it is released, and when
// the holder's connection dies, which ends the holder's context.
func TestLock(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := pgdb.Open(ctx, url, pgdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	held, release, err := a.Lock(ctx, "work")
	if err != nil {
		t.Fatal(err)
	}
	type taken struct {
		held    context.Context
		release func()
		err     error
	}
	second := make(chan taken, 1)
	go func() {
		held, release, err := a.Lock(ctx, "work")
		second <- taken{held, release, err}
	}()
	other, releaseOther, err := a.Lock(ctx, "other work") // a lock of another name is free
	if err != nil || other.Err() != nil {
		t.Fatal(err)
	}
	releaseOther()
	select {
	case <-second:
		t.Fatal("two hold one lock")
	case <-time.After(100 * time.Millisecond):
	}
	release()
	if held.Err() == nil {
		t.Error("the first still believes to hold the lock")
	}
	got := <-second
	if got.err != nil || got.held.Err() != nil {
		t.Fatal(got.err)
	}
	got.release()

	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	held, release, err = a.Lock(ctx, "work")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, _, err := a.Lock(short, "work"); err == nil {
		t.Error("a lock that is held was given within 100 ms")
	}

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var ended int
	if err := conn.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_locks
		where locktype = 'advisory' and classid::int8 = hashtext(current_schema())::int8 & 4294967295 and granted`).Scan(&ended); err != nil || ended != 1 {
		t.Fatalf("%d holders ended, %v", ended, err)
	}
	select {
	case <-held.Done():
	case <-ctx.Done():
		t.Fatal("the loss did not end the holder's context")
	}
	if _, release, err := a.Lock(ctx, "work"); err != nil {
		t.Error(err)
	} else {
		release()
	}
}
