package datadb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

func wantStreams(t *testing.T, s *record, what string, want ...fleet.Stream) {
	t.Helper()
	got := testpart.Must[[]fleet.Stream](t)(s.Streams(t.Context(), "home"))
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(fleet.Stream{}, "Reported")); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// TestStreamReport follows what a site says of its queues, with events and with
// probes, late ones among them.
func TestStreamReport(t *testing.T) {
	t.Parallel()
	s, streams := newStreamHelper(t, "temps")
	l, ctx := streams[0], t.Context()
	wantStreams(t, s, "a site that never reported", fleet.Stream{})
	if got := testpart.Must[[]fleet.Stream](t)(s.Streams(ctx, "nowhere")); len(got) != 0 {
		t.Errorf("a site that does not exist has %v", got)
	}
	reported := protocol.Backlog{Last: 9, Bytes: 900, OldestMillis: 1500, Dropped: 2, Expired: 3, RTTMicros: 40_000, BytesPerSecond: 5000}
	seen := fleet.Stream{
		Name: "data/temps", Epoch: "a", Last: 9, Bytes: 900, OldestAge: 1500 * time.Millisecond, Dropped: 2, Expired: 3,
		RTT: 40 * time.Millisecond, BytesPerSecond: 5000,
	}
	probe := l.batch(1, nil)
	probe.Backlog = reported
	if ack := testpart.Must[protocol.Ack](t)(l.commit(ctx, probe, nil)); ack.Epoch != "" || ack.Seq != 0 || ack.Stream != "data/temps" {
		t.Errorf("ack of a probe %+v", ack)
	}
	wantStreams(t, s, "probe of a new stream", fleet.Stream{}, seen)

	events := msgs("x=1", "x=2")
	b := l.batch(1, events)
	b.Backlog = reported
	b.Backlog.Last = 10
	testpart.Must[protocol.Ack](t)(l.commit(ctx, b, events))
	seen.Committed, seen.Last = 2, 10
	wantStreams(t, s, "batch", fleet.Stream{}, seen)
	if seen.Queued() != 8 {
		t.Errorf("%d are queued", seen.Queued())
	}
	late := b
	late.Backlog.Last = 4
	testpart.Must[protocol.Ack](t)(l.commit(ctx, late, events))
	wantStreams(t, s, "a batch that came again says nothing", fleet.Stream{}, seen)

	before := testpart.Must[[]fleet.Stream](t)(s.Streams(ctx, "home"))[1].Reported
	probe.Backlog.Last = 10
	if ack := testpart.Must[protocol.Ack](t)(l.commit(ctx, probe, nil)); ack.Epoch != "a" || ack.Seq != 2 {
		t.Errorf("ack of a probe %+v", ack)
	}
	if after := testpart.Must[[]fleet.Stream](t)(s.Streams(ctx, "home"))[1].Reported; !after.After(before) {
		t.Errorf("reported at %v, and after a probe at %v", before, after)
	}
	// Of a new epoch nothing is committed yet, whatever was of the old one.
	probe.Epoch, probe.Backlog = "b", protocol.Backlog{Last: 5}
	testpart.Must[protocol.Ack](t)(l.commit(ctx, probe, nil))
	wantStreams(t, s, "probe of a new epoch", fleet.Stream{}, fleet.Stream{Name: "data/temps", Epoch: "b", Last: 5})
	l.epoch = "b"
	b = l.batch(1, events)
	b.Backlog.Last = 5
	testpart.Must[protocol.Ack](t)(l.commit(ctx, b, events))
	probe.Epoch, probe.Backlog.Last = "a", 99
	testpart.Must[protocol.Ack](t)(l.commit(ctx, probe, nil))
	wantStreams(t, s, "a late probe of the old epoch", fleet.Stream{}, fleet.Stream{Name: "data/temps", Epoch: "b", Committed: 2, Last: 5})
}

func TestEventStreamReport(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	event := protocol.Event{Kind: protocol.NodeOnlineEvent, Node: "n", Body: protocol.Marshal(protocol.Presence{V: 1, Online: true})}
	send := func(epoch string, first, last uint64, events ...protocol.Event) protocol.Ack {
		t.Helper()
		return testpart.Must[protocol.Ack](t)(s.sites.CommitBatch(ctx, "home", protocol.Batch{
			V: 1, Epoch: epoch, First: first, Count: uint32(len(events)), Backlog: protocol.Backlog{Last: last},
		}, events))
	}
	send("a", 1, 7)
	wantStreams(t, s, "probe", fleet.Stream{Epoch: "a", Last: 7})
	send("a", 1, 8, event, event)
	wantStreams(t, s, "batch", fleet.Stream{Epoch: "a", Committed: 2, Last: 8})
	if ack := send("a", 3, 9); ack.Epoch != "a" || ack.Seq != 2 {
		t.Errorf("ack of a probe %+v", ack)
	}
	wantStreams(t, s, "probe again", fleet.Stream{Epoch: "a", Committed: 2, Last: 9})
	send("b", 1, 1, event)
	send("a", 1, 50)
	wantStreams(t, s, "late probe of an epoch that was left", fleet.Stream{Epoch: "b", Committed: 1, Last: 1})
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	s, streams := newStreamHelper(t, "temps")
	l := streams[0]
	for i := range 128 {
		l.rule = fmt.Sprintf("r%d", i)
		if _, err := l.commit(t.Context(), l.batch(1, nil), nil); err != nil {
			t.Fatal(err)
		}
	}
	l.rule = "onemore"
	_, err := l.commit(t.Context(), l.batch(1, nil), nil)
	wantKind(t, err, protocol.Invalid, "site home has 128 streams already")
	events := msgs("x=1")
	_, err = l.commit(t.Context(), l.batch(1, events), events)
	wantKind(t, err, protocol.Invalid, "site home has 128 streams already")
	for _, bad := range []string{"", "Not a label", "a/b"} {
		l.rule = bad
		_, err := l.commit(t.Context(), l.batch(1, nil), nil)
		wantKind(t, err, protocol.Invalid, "want data/ and the name of a data rule")
	}
	l.rule = "r5"
	if ack := l.send(1, events...); ack.Seq != 1 {
		t.Errorf("one that is there: %+v", ack)
	}
	// Those that no rule names are forgotten with time, and make room.
	exec(t, l.db, `update streams set reported_at = now() - interval '31 days'`)
	if err := s.SaveRead(t.Context(), "r", "home", fleet.Positions{"r5": {Seq: 1}, "other": {Seq: 1}}); err != nil {
		t.Fatal(err)
	}
	keep(t, s)
	until(t, "streams are forgotten", func() bool {
		return scalar[int](t, l.db, `select count(*) from streams`) == 0
	})
	// A queue that begins anew may soon be as far as a reader had come of the old one.
	if n := scalar[int](t, l.db, `select count(*) from data_readers where rule = 'r5'`); n != 0 {
		t.Error("a reader of a forgotten stream does not begin anew")
	}
	if n := scalar[int](t, l.db, `select count(*) from data_readers`); n != 1 {
		t.Errorf("%d other readers, want 1", n)
	}
}

// keep runs KeepData until the end of the test.
func keep(t *testing.T, s *record) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.KeepData(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// until waits for a condition.
var until = testpart.Eventually

func exec(t *testing.T, pool *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scalar[T any](t *testing.T, pool *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// TestMessagesAreStoredAsTheirRulesSay stores messages of three rules over some
// days, by putting back the days of what was stored.
func TestMessagesAreStoredAsTheirRulesSay(t *testing.T) {
	t.Parallel()
	s, streams := newStreamHelper(t, "day", "week", "ever")
	pool := streams[0].db
	rules := func(day, week time.Duration) (d fleet.SiteData) {
		for name, keep := range map[string]time.Duration{"day": day, "week": week, "ever": 0} {
			d.Rules = append(d.Rules, fleet.DataRule{DataRule: protocol.DataRule{Name: name, Topics: []string{"#"}}, Store: true, Keep: keep})
		}
		return d
	}
	setRules(t, s, rules(24*time.Hour, 7*24*time.Hour))
	for _, l := range streams {
		l.send(1, msg("x=now"))
	}
	past := func(days int, rules ...string) {
		day := time.Now().UTC().AddDate(0, 0, -days).Truncate(24 * time.Hour)
		name := "data_messages_" + day.Format("20060102")
		exec(t, pool, fmt.Sprintf(`create table if not exists %s partition of data_messages for values from ('%s') to ('%s')`,
			name, day.Format(time.RFC3339), day.AddDate(0, 0, 1).Format(time.RFC3339)))
		for _, rule := range rules {
			exec(t, pool, `insert into data_messages select $1, site_time, -$2::bigint, era, qos, retain, site, rule, topic, convert_to($3, 'UTF8'), content_type,
				response_topic, correlation, properties from data_messages where rule = $4 and seq = 1`, day.Add(12*time.Hour), days, fmt.Sprint(days), rule)
		}
	}
	past(3, "day", "week")
	past(4, "day", "week", "ever")
	past(5, "day")
	past(9, "day", "week")
	exec(t, pool, `create table data_messages_mine partition of data_messages for values from ('2001-01-01') to ('2001-02-01')`)
	keep(t, s)
	until(t, "old messages go", func() bool { return streams[0].stored() == "x=now" && streams[1].stored() == "x=4 x=3 x=now" })
	streams[2].want("kept for ever", streams[2].stored(), "x=4 x=now")
	days := func() string {
		return scalar[string](t, pool, `select string_agg((to_date(right(relname, 8), 'YYYYMMDD') - (now() at time zone 'UTC')::date)::text, ' ' order by relname)
			from pg_inherits join pg_class on oid = inhrelid where inhparent = 'data_messages'::regclass and relname ~ '[0-9]$' and relkind = 'r'`)
	}
	until(t, "whole days are dropped, and others made ahead", func() bool { return days() == "-4 -3 -1 0 1 2 3 4 5 6 7" })
	if scalar[int](t, pool, `select count(*) from pg_class where relname = 'data_messages_mine' and relnamespace = current_schema()::regnamespace`) != 1 {
		t.Error("a partition that a user attached was dropped")
	}
	// A Keep that changed holds for what is stored already, and a removed rule
	// leaves its messages as long as it said.
	setRules(t, s, fleet.SiteData{Rules: rules(time.Hour, 3*24*time.Hour+12*time.Hour+time.Minute).Rules})
	exec(t, pool, `delete from data_rules where name = 'day'`)
	keep(t, s)
	until(t, "the new Keep holds", func() bool { return streams[1].stored() != "x=4 x=3 x=now" })
	streams[0].want("of a removed rule", streams[0].stored(), "x=now")
	streams[2].want("kept for ever", streams[2].stored(), "x=4 x=now")
}

// TestStoringMakesItsDay checks that messages are stored without partitions made ahead, by several
// writers at once, and though they were dropped.
func TestStoringMakesItsDay(t *testing.T) {
	t.Parallel()
	_, streams := newStreamHelper(t, "temps")
	l := streams[0]
	l.send(1, msg("x=1"))
	for _, name := range testpart.Must[[]string](t)(pgx.CollectRows(testpart.Must[pgx.Rows](t)(l.db.Query(t.Context(),
		`select relname::text from pg_inherits join pg_class on oid = inhrelid where inhparent = 'data_messages'::regclass and relkind = 'r'`)),
		pgx.RowTo[string])) {
		exec(t, l.db, `drop table `+name)
	}
	l.send(2, msg("x=2"))
	l.want("stored", l.stored(), "x=2")
}

// TestAWaitForADropHoldsUpNobody checks that a reader of the table holds up only
// the tidying.
func TestAWaitForADropHoldsUpNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	s := openURL(t, url)
	setRules(t, s, fleet.SiteData{Rules: []fleet.DataRule{{DataRule: protocol.DataRule{Name: "temps", Topics: []string{"#"}}, Store: true, Keep: time.Hour}}})
	pool := testpart.Must[*pgx.Conn](t)(pgx.Connect(t.Context(), url))
	t.Cleanup(func() { _ = pool.Close(context.Background()) })
	l := &streamHelper{t: t, s: s, db: pool, rule: "temps", epoch: "a"}
	l.send(1, msg("x=1"))
	exec(t, pool, `create table data_messages_20200101 partition of data_messages for values from ('2020-01-01') to ('2020-01-02')`)
	reader := testpart.Must[pgx.Tx](t)(pool.Begin(t.Context()))
	if _, err := reader.Exec(t.Context(), `select count(*) from data_messages`); err != nil {
		t.Fatal(err)
	}
	keep(t, s)
	for i := range 30 { // at least one of them while the drop waits
		l.send(2+i, msg("x=2"))
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the day is dropped", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		s.KeepData(ctx)
		return scalar[bool](t, pool, `select to_regclass('data_messages_20200101') is null`)
	})
}
