package fleetdb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	upkeepdb "github.com/colonyfleet/colony/co/db/fleet/upkeep"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

const day = 24 * time.Hour

func execute(t *testing.T, pool *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func texts(t *testing.T, pool *db.DB, sql string, args ...any) string {
	t.Helper()
	list, err := pgdb.Rows(t.Context(), pool, pgx.RowTo[string], sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(list, " ")
}

// TestEventsGoWithTheirPartition writes over the end of two partitions: no id is left
// out, and once the events of a partition are old, it is dropped and the rest stays.
func TestEventsGoWithTheirPartition(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	write := func(n int) {
		t.Helper()
		err := pool.Tx(ctx, "write", func(tx pgx.Tx) error { return db.WriteEvents(ctx, tx, make([]fleet.Event, n)) })
		if err == nil {
			err = pool.SequenceAll(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(10)
	behind := func() (id int64) {
		t.Helper()
		if err := pool.QueryRow(ctx, `select max(behind) from event_partitions`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	second := behind()
	for range 2 {
		execute(t, pool, `update event_sequence set last = $1`, behind()-6)
		write(20)
	}
	third := int64(testpart.Must[int64](t)(s.LastEvent(ctx)))
	if n := texts(t, pool, `select count(*)::text from events where id between $1 and $2`, second-5, second+14); n != "20" {
		t.Fatalf("%s events around the end of a partition, want 20", n)
	}
	if got, err := s.Events(ctx, fleet.EventFilter{Newest: true, Limit: 20}); err != nil || len(got) != 20 || got[0].ID != third-19 || got[19].ID != third {
		t.Fatalf("the newest: %d events, %v", len(got), err)
	}
	keep := upkeepdb.Retention{Events: 90 * day}
	if err := s.Retain(ctx, keep); err != nil {
		t.Fatal(err)
	}
	if first := testpart.Must[int64](t)(s.FirstEvent(ctx)); first != 1 {
		t.Fatalf("the first event is %d while all are new, want 1", first)
	}
	execute(t, pool, `update events set time = time - interval '91 days' where id <= $1`, second+3)
	if err := s.Retain(ctx, keep); err != nil {
		t.Fatal(err)
	}
	if first := testpart.Must[int64](t)(s.FirstEvent(ctx)); first != second {
		t.Errorf("the first event is %d, want %d", first, second)
	}
	got := testpart.Must[[]fleet.Event](t)(s.Events(ctx, fleet.EventFilter{Limit: 100}))
	if len(got) == 0 || got[0].ID != second || got[len(got)-1].ID != third {
		t.Errorf("%d events are left, want those from %d to %d", len(got), second, third)
	}
}

// TestOldWeeksGo drops what is in weeks that are past, and keeps the others and the rows
// of a clock that was wrong.
func TestOldWeeksGo(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	for _, table := range []string{"deployment_history", "anomalies"} {
		execute(t, pool, `drop table `+table+`_first`)
		execute(t, pool, `select make_week($1, date_trunc('week', now() at time zone 'UTC')::date - 7 * i) from generate_series(0, 20) as i`, table)
	}
	for _, weeks := range []int{20, 10, 3, 0, -500} {
		execute(t, pool, `insert into deployment_history (time, site, deployment, node, from_state, to_state, actor, message)
			values (now() - $1 * interval '7 days', 'home', 'd', 'n', '', 'PENDING', 'LO', $2)`, weeks, fmt.Sprint(weeks))
		execute(t, pool, `insert into anomalies (time, site, kind, reason, body) values (now() - $1 * interval '7 days', 'home', 'a', $2, '')`, weeks, fmt.Sprint(weeks))
	}
	execute(t, pool, `insert into deployment_history (time, site, deployment, node, from_state, to_state, actor, message) values ('1990-01-01', 'home', 'd', 'n', '', 'PENDING', 'LO', 'old')`)
	for range 2 {
		if err := s.Retain(ctx, upkeepdb.Retention{History: 5 * 7 * day, Anomalies: 15 * 7 * day}); err != nil {
			t.Fatal(err)
		}
	}
	if got := texts(t, pool, `select message from deployment_history order by id`); got != "3 0 -500" {
		t.Errorf("transitions of these weeks ago are left: %s, want 3 0 -500", got)
	}
	if got := texts(t, pool, `select reason from anomalies order by id`); got != "10 3 0 -500" {
		t.Errorf("anomalies of these weeks ago are left: %s, want 10 3 0 -500", got)
	}
	if got := texts(t, pool, `select count(*)::text from pg_inherits where inhparent = 'deployment_history'::regclass`); got != "11" {
		t.Errorf("%s partitions of the history, want 11: five of the past and this week, four to come, and the rest", got)
	}
	list := testpart.Must[[]fleet.Transition](t)(s.Transitions(ctx, "home", "d", 0))
	if len(list) != 3 || list[0].Message != "-500" {
		t.Errorf("history %+v, want the last recorded first", list)
	}
}

// TestSpecsGoWithTheLastReference keeps each specification that something names.
func TestSpecsGoWithTheLastReference(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	save := func(name string) protocol.Digest {
		return testpart.Must[protocol.Digest](t)(s.SaveSpec(ctx, []byte(name)))
	}
	save("nobody's")
	kept := map[string]protocol.Digest{"running": save("running"), "refused": save("refused"), "new": ""}
	must2(t)(s.SaveDesired(ctx, "home", "c", []fleet.Desired{want("d", "1", "c")}, fleet.SiteData{}))
	kept["desired"] = want("d", "1", "c").Entry.Digest
	j := &journal{epoch: "e"}
	j.life("d", "n1")
	state := status("d", "n1", lifecycle.Installed, lifecycle.EN)
	state.Digest, state.Refused = kept["running"], kept["refused"]
	j.add(protocol.StatusEvent, "n1", state)
	testpart.Must[protocol.Ack](t)(j.send(ctx, s, 1, len(j.events), 0))
	save("again")
	execute(t, pool, `update specs set created_at = now() - interval '30 days'`)
	kept["again"], kept["new"] = save("again"), save("new")
	if err := s.Retain(ctx, upkeepdb.Retention{}); err != nil {
		t.Fatal(err)
	}
	for what, digest := range kept {
		if _, err := s.Spec(ctx, digest); err != nil {
			t.Errorf("the specification that is %s: %v", what, err)
		}
	}
	_, err := s.Spec(ctx, protocol.DigestOf([]byte("nobody's")))
	wantKind(t, err, protocol.NotFound, "no spec")
}

// TestRemovedDeploymentsGo deletes deployments that were removed from every node long ago,
// and leaves the counters right.
func TestRemovedDeploymentsGo(t *testing.T) {
	t.Parallel()
	pool, ctx := openDB(t), t.Context()
	s := fleetdb.New(pool)
	must2(t)(s.SaveDesired(ctx, "home", "c1", []fleet.Desired{want("old", "1", "c1"), want("young", "1", "c1"), want("here", "1", "c1")}, fleet.SiteData{}))
	must2(t)(s.SaveDesired(ctx, "home", "c2", []fleet.Desired{want("here", "1", "c1")}, fleet.SiteData{}))
	execute(t, pool, `update deployments set archived_at = now() - interval '400 days' where name = 'old'`)
	if err := s.Retain(ctx, upkeepdb.Retention{History: 365 * day}); err != nil {
		t.Fatal(err)
	}
	list, _, err := s.Deployments(ctx, fleet.DeploymentFilter{Archived: true}, fleet.Page{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, d := range list {
		left = append(left, string(d.Name))
	}
	if diff := cmp.Diff([]string{"here", "young"}, left); diff != "" {
		t.Error(diff)
	}
	if n, err := s.CheckCounters(context.WithoutCancel(ctx), 0); err != nil || n != 0 {
		t.Errorf("%d counters differ, %v", n, err)
	}
}

// Of a fleet deployment the newest revisions stay, those that a site may have, one that is open, and the last that was complete.
func TestOldRevisions(t *testing.T) {
	t.Parallel()
	pool := openDB(t)
	execute(t, pool, `insert into rollouts (fleet, revision, digest, commit, source, state)
		select 'meter', n, n, n, 'x', case when n in (2, 5) then 'done' when n = 3 then 'running' else 'superseded' end from generate_series(1, 150) n`)
	execute(t, pool, `insert into rollout_sites (fleet, site, revision) values ('meter', 'plant', 1)`)
	if err := fleetdb.New(pool).Retain(t.Context(), upkeepdb.Retention{}); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, pool, `select revision::text from rollouts where revision < 53 order by revision`); got != "1 3 5 51 52" {
		t.Errorf("of the old ones there are %s", got)
	}
}
