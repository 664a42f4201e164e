package fleetdb_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// next returns the next value that is at least want.
func next(t *testing.T, c <-chan int64, want int64) int64 {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case id, ok := <-c:
			if !ok {
				t.Fatal("channel closed")
			}
			if id >= want {
				return id
			}
		case <-deadline:
			t.Fatalf("no news of event %d", want)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s := open(t)
	other := open(t) // another schema: its events are no news here
	ctx, cancel := context.WithCancel(t.Context())
	c := s.Listen(ctx)
	next(t, c, 0)
	for i := range int64(5) {
		if err := other.AddEvent(ctx, fleet.Event{Kind: "other"}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddEvent(ctx, fleet.Event{Kind: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
		id := next(t, c, i+1)
		if got := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{After: id - 1})); len(got) != 1 || got[0].ID != id {
			t.Errorf("event %d was reported, and %v can be read", id, got)
		}
	}
	cancel()
	for range c { // closes
	}
}

func TestPostgresAwayAtStartAndInTheMiddle(t *testing.T) {
	t.Parallel()
	pg := pgtest.NewOwn(t)
	url := pg.URL()
	pg.Stop()

	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := db.Open(short, url, db.Options{}); protocol.KindOf(err) != protocol.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("database down at start: %v", err)
	}

	// Open waits for the database.
	type opened struct {
		db  *db.DB
		err error
	}
	done := make(chan opened, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		pool, err := db.Open(ctx, url, db.Options{})
		done <- opened{pool, err}
	}()
	pg.Start()
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	defer o.db.Close()
	s := fleetdb.New(o.db)
	listening, stop := context.WithCancel(ctx)
	c := s.Listen(listening)
	next(t, c, 0)

	j := &journal{epoch: "e"}
	j.life("d", "n1")
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 2, 0))
	pg.Stop()
	_, err := j.send(ctx, s, 1, 3, 0)
	wantKind(t, err, protocol.Unavailable, "commit events of site home")
	wantKind(t, o.db.Ready(ctx), protocol.Unavailable, "not reachable")
	_, err = s.Site(ctx, "home")
	wantKind(t, err, protocol.Unavailable, "read site")
	pg.Start()
	// At once: no call has to fail first for the pool to find the new server.
	if ack := testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, 3, 0)); ack.Seq != 3 {
		t.Errorf("ack %+v", ack)
	}
	next(t, c, 3)
	stop()
	for range c { // closes
	}
}
