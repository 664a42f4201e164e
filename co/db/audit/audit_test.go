package auditdb_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/db"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T) (*auditdb.Store, *db.DB) {
	t.Helper()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return auditdb.New(pool), pool
}

func add(t *testing.T, s *auditdb.Store, at int64, row audit.Row) audit.Row {
	t.Helper()
	row = audit.NewRow(time.Unix(at, 123456789), row)
	if err := s.Add(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	return row
}

// seal seals all, and returns the end of the chain.
func seal(t *testing.T, s *auditdb.Store) (position int64, hash audit.Hash) {
	t.Helper()
	for {
		position, hash, n, err := s.Seal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return position, hash
		}
	}
}

func verify(t *testing.T, s *auditdb.Store, checkpoints ...audit.Checkpoint) []audit.Finding {
	t.Helper()
	v := audit.NewVerifier(0, audit.Hash{}, checkpoints)
	for {
		at, _ := v.Position()
		rows, err := s.Chain(t.Context(), at, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if err := v.Row(r); err != nil {
				t.Fatal(err)
			}
		}
		if len(rows) == 0 {
			v.End()
			found, _ := v.Found()
			return found
		}
	}
}

// TestTampering changes the record as an owner of the database can, who can switch off the triggers that protect it.
func TestTampering(t *testing.T) {
	t.Parallel()
	const n = 10_000
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, pool := open(t)
	_, err = pool.Exec(t.Context(), `insert into audit (id, at, kind, principal, operation, target)
		select 'row-' || i, to_timestamp(i), 'intent', 'ann', 'PATCH /api/v1/deployments/{site}/{name}', '/api/v1/deployments/plant/app-' || i from generate_series(1, $1::int) i`, n)
	if err != nil {
		t.Fatal(err)
	}
	position, hash := seal(t, s)
	if position != n {
		t.Fatalf("%d rows are sealed, want %d", position, n)
	}
	checkpoint := audit.NewCheckpoint(key, time.Now(), position, hash)
	if found := verify(t, s, checkpoint); len(found) != 0 {
		t.Fatalf("what nobody changed has findings: %v", found)
	}
	for name, tt := range map[string]struct {
		sql  string
		want int64
	}{
		"altered":  {`update audit set principal = 'bob' where id = 'row-777'`, 777},
		"deleted":  {`delete from audit where id = 'row-5000'`, 5000},
		"tail cut": {`delete from audit where position > 9990`, 9991},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := pool.Exec(t.Context(), tt.sql); err == nil {
				t.Fatal("the record can be changed by anybody who may write it")
			}
			if _, err := pool.Exec(t.Context(), `truncate audit`); err == nil {
				t.Fatal("the record can be emptied by anybody who may write it")
			}
			// All is put back afterwards, for the next case.
			for _, sql := range []string{`create table kept as select * from audit`, `alter table audit disable trigger user`, tt.sql} {
				if _, err := pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			found := verify(t, s, checkpoint)
			if len(found) != 1 || found[0].Position != tt.want {
				t.Errorf("found %v, want position %d", found, tt.want)
			}
			for _, sql := range []string{`truncate audit`, `insert into audit select * from kept`, `drop table kept`, `alter table audit enable trigger user`} {
				if _, err := pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if found := verify(t, s, checkpoint); len(found) != 0 {
		t.Errorf("after all was put back: %v", found)
	}
}

// Rows that are written while others are sealed come into the chain once, each after those that were there.
func TestSealInParts(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	add(t, s, 100, audit.Row{Kind: audit.Intent, Commits: nil})
	if position, _ := seal(t, s); position != 1 {
		t.Fatalf("position %d", position)
	}
	add(t, s, 50, audit.Row{Kind: audit.Local, Commits: []string{"a", "b"}}) // the clock was set back
	add(t, s, 200, audit.Row{Kind: audit.Refused, Status: 403})
	// Only the keeper, which seals in order, gives a row its place.
	if _, err := pool.Exec(t.Context(), `update audit set position = 9223372036854775807, hash = '' where position is null`); err == nil {
		t.Error("a row got a place that is not the next one")
	}
	position, hash := seal(t, s)
	if position != 3 {
		t.Fatalf("position %d", position)
	}
	if found := verify(t, s); len(found) != 0 {
		t.Errorf("%v", found)
	}
	if got, err := s.At(t.Context(), 3); err != nil || got != hash {
		t.Errorf("hash %s (%v), want %s", got, err, hash)
	}
	if _, err := s.At(t.Context(), 4); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("a position beyond the end: %v", err)
	}
}

func TestEntries(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	first := add(t, s, 1, audit.Row{Kind: audit.Intent, Principal: "ann", Operation: "POST /x", Target: "/x/1"})
	o := audit.Operation{Intent: first.ID}
	add(t, s, 2, audit.Row{Kind: audit.Refused, Principal: "bob", Target: "/y", Status: 403, Detail: "no"})
	open := add(t, s, 3, audit.Row{Kind: audit.Intent, Principal: "ann", Target: "/y/2"})
	audit.Committed(audit.With(t.Context(), &o), "c0ffee")
	outcome := o.Outcome(time.Unix(4, 0), 201, "made")
	for range 2 { // also where it is written twice
		if err := s.Add(t.Context(), outcome); err != nil {
			t.Fatal(err)
		}
	}
	// Another one is left out, and not in silence.
	if err := s.Add(t.Context(), o.Outcome(time.Unix(5, 0), 500, "not made")); protocol.KindOf(err) != protocol.Conflict || !strings.Contains(fmt.Sprint(err), "500 not made") {
		t.Errorf("a second outcome: %v, want a conflict that says it", err)
	}
	list, next, err := s.Entries(t.Context(), audit.Filter{}, fleet.Page{Limit: 2})
	if err != nil || len(list) != 2 || list[0].ID != open.ID || list[1].Status != 403 || next == "" {
		t.Fatalf("first page %+v, next %q (%v)", list, next, err)
	}
	list, next, err = s.Entries(t.Context(), audit.Filter{}, fleet.Page{Limit: 2, Cursor: next})
	if err != nil || len(list) != 1 || next != "" {
		t.Fatalf("second page %+v, next %q (%v)", list, next, err)
	}
	e := list[0]
	if e.ID != first.ID || e.Status != 201 || e.Detail != "made" {
		t.Errorf("entry %s, status %d, detail %q; want %s, 201, made", e.ID, e.Status, e.Detail, first.ID)
	}
	if len(e.Commits) != 1 {
		t.Errorf("commits %v, want one", e.Commits)
	}
	if e.DoneAt == nil || !e.DoneAt.Equal(time.Unix(4, 0)) {
		t.Errorf("done at %v, want %s", e.DoneAt, time.Unix(4, 0))
	}
	for _, tt := range []struct {
		f    audit.Filter
		want int
	}{
		{audit.Filter{Principal: "ann"}, 2},
		{audit.Filter{Principal: "an"}, 0},
		{audit.Filter{Target: "/y"}, 2},
		{audit.Filter{Target: "/y%"}, 0},
		{audit.Filter{Kind: audit.Refused}, 1},
		{audit.Filter{Since: time.Unix(2, 0)}, 2},
		{audit.Filter{Until: time.Unix(2, 0)}, 1},
	} {
		if list, _, err := s.Entries(t.Context(), tt.f, fleet.Page{}); err != nil || len(list) != tt.want {
			t.Errorf("%+v: %d entries (%v), want %d", tt.f, len(list), err, tt.want)
		}
	}
	if _, _, err := s.Entries(t.Context(), audit.Filter{}, fleet.Page{Cursor: "x"}); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("a cursor that is none: %v", err)
	}
	// What stands for an outcome is shown until the outcome comes.
	add(t, s, 6, audit.Row{Kind: audit.Settled, Of: first.ID, Detail: "not recorded"})
	if list, _, err := s.Entries(t.Context(), audit.Filter{Until: time.Unix(2, 0)}, fleet.Page{}); err != nil || len(list) != 1 || list[0].Status != 201 {
		t.Errorf("beside an outcome: %+v (%v)", list, err)
	}
	late := add(t, s, 0, audit.Row{Kind: audit.Intent, Target: "/late"})
	add(t, s, 7, audit.Row{Kind: audit.Settled, Of: late.ID, Detail: "not recorded"})
	shown := func() audit.Entry {
		t.Helper()
		list, _, err := s.Entries(t.Context(), audit.Filter{Target: "/late"}, fleet.Page{})
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v (%v)", list, err)
		}
		return list[0]
	}
	if e := shown(); e.Detail != "not recorded" || e.Status != 0 {
		t.Errorf("without an outcome: %+v", e)
	}
	if err := s.Add(t.Context(), (&audit.Operation{Intent: late.ID}).Outcome(time.Unix(8, 0), 204, "")); err != nil {
		t.Fatal(err)
	}
	if e := shown(); e.Status != 204 || e.Detail != "" {
		t.Errorf("with an outcome that came late: %+v", e)
	}
	if ids, err := s.Open(t.Context(), time.Unix(4, 0), 10); err != nil || len(ids) != 1 || ids[0] != open.ID {
		t.Errorf("without an outcome: %v (%v), want %s", ids, err, open.ID)
	}
}

// A replica that has lost its lease seals nothing.
func TestSealIsFenced(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	held, release, err := pool.Lease(t.Context(), "audit")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := pool.Exec(t.Context(), `update leases set token = token + 1 where name = 'audit'`); err != nil {
		t.Fatal(err)
	}
	add(t, s, 1, audit.Row{Kind: audit.Intent})
	if _, _, _, err := s.Seal(context.WithoutCancel(held)); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("sealed without the lease: %v", err)
	}
}
