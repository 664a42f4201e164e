package db_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(holderURL); url != "" {
		if err := holder(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

func TestOpenFailsAtOnceWhereTimeDoesNotHeal(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := db.Open(ctx, "postgres://%zz", db.Options{}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("malformed url: %v", err)
	}
	pg := pgtest.NewOwn(t)
	if _, err := db.Open(ctx, pg.URL()+"&user=nobody-here", db.Options{}); err == nil || ctx.Err() != nil {
		t.Errorf("unknown role: %v after %v", err, ctx.Err())
	}
}
