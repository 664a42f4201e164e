package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func open(t *testing.T, url string) *db.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := db.Open(ctx, url, db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func write(ctx context.Context, d *db.DB, events ...fleet.Event) error {
	return d.Tx(ctx, "write events", func(tx pgx.Tx) error { return db.WriteEvents(ctx, tx, events) })
}

// A numbered is an event as the tests read it.
type numbered struct {
	id            int64
	site, message string
}

func read(t *testing.T, d *db.DB) []numbered {
	t.Helper()
	list, err := pgdb.Rows(t.Context(), d, func(row pgx.CollectableRow) (n numbered, err error) {
		err = row.Scan(&n.id, &n.site, &n.message)
		return n, err
	}, `select id, site, message from events order by id`)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func sequence(t *testing.T, d *db.DB) {
	t.Helper()
	if err := d.SequenceAll(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// patience bounds each wait of a test.
const patience = 30 * time.Second

// TestIDsAreDenseAndInOrder has two programs on one database write and give ids at
// once, while a reader follows: it must never see an id before one below it.
func TestIDsAreDenseAndInOrder(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	const writers, rounds = 6, 40
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var programs [2]*db.DB
	running, stop := context.WithCancel(ctx)
	var sequencers errgroup.Group
	for i := range programs {
		programs[i] = open(t, url)
		sequencers.Go(func() error { programs[i].RunSequencer(running); return nil })
	}
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			d := programs[w%2]
			site := protocol.SiteID(fmt.Sprintf("s%d", w))
			for n := range rounds {
				if n%7 == 3 { // what is rolled back leaves no hole
					_ = d.Tx(ctx, "roll back", func(tx pgx.Tx) error {
						_ = db.WriteEvents(ctx, tx, []fleet.Event{{Kind: "a", Site: site, Message: "never"}})
						return context.Canceled
					})
				}
				if err := write(ctx, d, fleet.Event{Kind: "a", Site: site, Message: fmt.Sprint(2 * n)},
					fleet.Event{Kind: "a", Site: site, Message: fmt.Sprint(2*n + 1)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	const want = writers * rounds * 2
	for seen := int64(0); seen < want; {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d events have ids", seen, want)
		}
		var n, greatest int64
		if err := programs[0].QueryRow(ctx, `select count(*), coalesce(max(id), 0) from events`).Scan(&n, &greatest); err != nil {
			t.Fatal(err)
		}
		if n != greatest {
			t.Fatalf("%d events can be read, the greatest id is %d", n, greatest)
		}
		seen = n
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	stop()
	_ = sequencers.Wait()
	last := map[string]int{}
	for i, e := range read(t, programs[0]) {
		if e.id != int64(i)+1 {
			t.Errorf("event %d has id %d", i+1, e.id)
		}
		if want := fmt.Sprint(last[e.site]); e.message != want {
			t.Errorf("site %s: event %q where %q is next", e.site, e.message, want)
		}
		last[e.site]++
	}
}

// TestWritersDoNotWaitForEachOther commits events while another transaction has
// written events and stays open, and while the sequencer's lock is held.
func TestWritersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.New(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := d.Tx(ctx, "stay open", func(tx pgx.Tx) error {
		if err := db.WriteEvents(ctx, tx, []fleet.Event{{Kind: "a", Message: "first written, last committed"}}); err != nil {
			return err
		}
		if err := write(ctx, d, fleet.Event{Kind: "a", Message: "one"}); err != nil {
			return err
		}
		sequence(t, d)
		if got := read(t, d); len(got) != 1 || got[0].id != 1 || got[0].message != "one" {
			t.Errorf("beside an open transaction: %+v", got)
		}
		if _, err := tx.Exec(ctx, `select from event_sequence for update`); err != nil {
			return err
		}
		return write(ctx, d, fleet.Event{Kind: "a", Message: "two"})
	})
	if err != nil {
		t.Fatal(err)
	}
	sequence(t, d)
	var got []string
	for _, e := range read(t, d) {
		got = append(got, fmt.Sprint(e.id, " ", e.message))
	}
	if want := "1 one, 2 first written, last committed, 3 two"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
	}
}

// TestSequencerDies kills the connection of a sequencer between its work and its
// commit: the next one gives the same ids, and no event is lost or doubled.
func TestSequencerDies(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	d := open(t, url)
	ctx := t.Context()
	if err := write(ctx, d, fleet.Event{Kind: "a", Message: "one"}, fleet.Event{Kind: "a", Message: "two"}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `begin; select sequence_events(100)`); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- d.SequenceAll(ctx) }() // for the one that is about to die
	if err := write(ctx, d, fleet.Event{Kind: "a", Message: "three"}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(ctx, `select pg_terminate_backend($1)`, conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-waited:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the sequencer waits for a dead one")
	}
	sequence(t, d)
	got := read(t, d)
	if len(got) != 3 || got[0] != (numbered{1, "", "one"}) || got[1] != (numbered{2, "", "two"}) || got[2] != (numbered{3, "", "three"}) {
		t.Errorf("got %+v", got)
	}
}

// TestSequenceIsBounded gives ids to more events than one transaction of the
// sequencer takes.
func TestSequenceIsBounded(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.New(t))
	const transactions, each = 5, 6000
	for range transactions {
		if err := write(t.Context(), d, make([]fleet.Event, each)...); err != nil {
			t.Fatal(err)
		}
	}
	behind, err := d.Sequence(t.Context())
	if err != nil || !behind {
		t.Fatalf("behind %v, %v", behind, err)
	}
	if n := len(read(t, d)); n != 2*each {
		t.Errorf("%d events after one transaction, want %d", n, 2*each)
	}
	sequence(t, d)
	if n := len(read(t, d)); n != transactions*each {
		t.Errorf("%d events, want %d", n, transactions*each)
	}
}

// TestRestoredDatabaseGoesOn works on a copy of a database in which some events have
// no id yet, and of which the newest event with an id was deleted.
func TestRestoredDatabaseGoesOn(t *testing.T) {
	t.Parallel()
	own := pgtest.NewOwn(t)
	ctx := t.Context()
	d := open(t, own.URL())
	if err := write(ctx, d, fleet.Event{Kind: "a", Message: "one"}, fleet.Event{Kind: "a", Message: "two"}); err != nil {
		t.Fatal(err)
	}
	sequence(t, d)
	if _, err := d.Exec(ctx, `delete from events where id = 2`); err != nil {
		t.Fatal(err)
	}
	if err := write(ctx, d, fleet.Event{Kind: "a", Message: "three"}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	conn, err := pgx.Connect(ctx, strings.Replace(own.URL(), "/postgres", "/template1", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `create database restored template postgres`); err != nil {
		t.Fatal(err)
	}
	restored := open(t, strings.Replace(own.URL(), "/postgres", "/restored", 1))
	if err := write(ctx, restored, fleet.Event{Kind: "a", Message: "four"}); err != nil {
		t.Fatal(err)
	}
	sequence(t, restored)
	got := read(t, restored)
	if len(got) != 3 || got[1] != (numbered{3, "", "three"}) || got[2] != (numbered{4, "", "four"}) {
		t.Errorf("got %+v", got)
	}
}

// TestWritersWaitForTheFeed has the sequencer stand still with much left to do: a writer that asks
// before it commits waits, until the feed has caught up.
func TestWritersWaitForTheFeed(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.New(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const transactions, each = 13, 10_000 // each is all that one transaction of the sequencer takes
	for range transactions {
		if err := write(ctx, d, make([]fleet.Event, each)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Admit(ctx); err != nil {
		t.Fatalf("held back before anything is late: %v", err)
	}
	running, stop := context.WithCancel(ctx)
	var sequencer errgroup.Group
	defer func() { stop(); _ = sequencer.Wait() }()
	over, end := context.WithCancel(ctx)
	end()
	err := d.Tx(ctx, "stand in the way", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select from event_outbox where number = $1 for update`, transactions); err != nil {
			return err
		}
		sequencer.Go(func() error { d.RunSequencer(running); return nil })
		for d.Admit(over) == nil {
			if ctx.Err() != nil {
				t.Error("not held back while the feed is far behind")
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Admit(ctx); err != nil {
		t.Errorf("held back after the feed has caught up: %v", err)
	}
}
