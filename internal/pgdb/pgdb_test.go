package pgdb_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T) *pgdb.DB {
	t.Helper()
	d, err := pgdb.Open(t.Context(), pgtest.New(t), pgdb.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestCopy writes a row of each type of column, and one of what is empty.
func TestCopy(t *testing.T) {
	t.Parallel()
	d, ctx := open(t), t.Context()
	at := time.Date(1999, 12, 31, 23, 59, 59, 123456000, time.UTC)
	var got []string
	err := d.Tx(ctx, "copy", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create table copied (a text, b bytea, c bigint, d integer, e smallint, f boolean, g timestamptz, h timestamptz, i text[],
			j bigint[], k boolean[], l timestamptz[])`)
		if err != nil {
			return err
		}
		rows := pgdb.NewCopy(100, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
		for _, v := range []struct {
			text  string
			n     int64
			at    time.Time
			maybe *time.Time
			list  []string
			times []*time.Time
		}{{"ä", -1 << 40, at, &at, []string{"x", ""}, []*time.Time{&at, nil}}, {}} {
			rows.Row()
			rows.Text(v.text)
			rows.Bytea([]byte(v.text))
			rows.Int8(v.n)
			rows.Int4(int32(v.n >> 20))
			rows.Int2(int16(v.n >> 40))
			rows.Bool(v.n != 0)
			rows.Timestamptz(v.at)
			rows.Timestamp(v.maybe)
			rows.Texts(v.list)
			rows.Int8s(make([]int64, len(v.list)))
			rows.Bools(make([]bool, len(v.list)))
			rows.Timestamps(v.times)
		}
		if err := rows.Send(ctx, tx, "copied"); err != nil {
			return err
		}
		got, err = pgdb.Rows(ctx, tx, pgx.RowTo[string], `select copied::text from copied order by c`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`(ä,"\\xc3a4",-1099511627776,-1048576,-1,t,"1999-12-31 23:59:59.123456+00","1999-12-31 23:59:59.123456+00","{x,""""}","{0,0}","{f,f}","{""1999-12-31 23:59:59.123456+00"",NULL}")`,
		`("","\\x",0,0,0,f,,,{},{},{},{})`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestTx fails as PostgreSQL does where it is worth another try, where it is not, and
// where the error has a kind already.
func TestTx(t *testing.T) {
	t.Parallel()
	d, ctx := open(t), t.Context()
	for name, tc := range map[string]struct {
		code  string
		tries int // that fail
		runs  int
		kind  protocol.Kind
	}{
		"deadlock once":       {"40P01", 1, 2, ""},
		"serialization twice": {"40001", 2, 3, ""},
		"deadlock for ever":   {"40P01", 100, 4, protocol.Unavailable},
		"unique violation":    {"23505", 100, 1, protocol.Conflict},
		"disk full":           {"53100", 100, 1, protocol.Unavailable},
		"syntax":              {"42601", 100, 1, protocol.Internal},
	} {
		runs := 0
		err := d.Tx(ctx, "try", func(tx pgx.Tx) error {
			if runs++; runs > tc.tries {
				return nil
			}
			_, err := tx.Exec(ctx, `do $$ begin raise exception using errcode = '`+tc.code+`'; end $$`)
			return err
		})
		if runs != tc.runs || tc.kind == "" && err != nil || tc.kind != "" && protocol.KindOf(err) != tc.kind {
			t.Errorf("%s: %d runs, %v", name, runs, err)
		}
	}
	mine := protocol.Errorf(protocol.NotFound, "mine")
	if err := d.Tx(ctx, "try", func(pgx.Tx) error { return mine }); !errors.Is(err, mine) || protocol.KindOf(err) != protocol.NotFound {
		t.Error(err)
	}
	if _, err := pgdb.One("thing", []int(nil), nil); protocol.KindOf(err) != protocol.NotFound || err.Error() != "no thing" {
		t.Error(err)
	}
}

// TestListen loses the connection once: what was notified meanwhile is reported without a
// payload.
func TestListen(t *testing.T) {
	t.Parallel()
	d := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	heard, done := make(chan string), make(chan struct{})
	broken := errors.New("broken")
	go func() {
		defer close(done)
		d.Listen(ctx, pgdb.Channel{Name: `'news_of_' || current_schema()`, About: "news"}, func(ctx context.Context, _ *pgx.Conn, payload string) error {
			select {
			case heard <- payload:
			case <-ctx.Done():
			}
			if payload == "break" {
				return broken
			}
			return nil
		})
	}()
	want := func(payload string) {
		t.Helper()
		select {
		case got := <-heard:
			if got != payload {
				t.Errorf("heard %q, want %q", got, payload)
			}
		case <-ctx.Done():
			t.Fatalf("not heard: %q", payload)
		}
	}
	notify := func(payload string) {
		t.Helper()
		if _, err := d.Exec(ctx, `select pg_notify('news_of_' || current_schema(), $1)`, payload); err != nil {
			t.Fatal(err)
		}
	}
	want("")
	notify("one")
	want("one")
	notify("break")
	want("break")
	want("")
	notify("two")
	want("two")
	cancel()
	<-done
}

func TestValues(t *testing.T) {
	t.Parallel()
	got, err := pgdb.JSON(map[string]string{"a": "x\x00\\u0000"})
	if want := `{"a":"x\ufffd\\u0000"}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if got := pgdb.Storable("a\x00b"); got != "ab" {
		t.Errorf("%q", got)
	}
	if got := pgdb.Filled[int](nil); got == nil {
		t.Error("nil")
	}
}
