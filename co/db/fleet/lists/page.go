package listdb

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgdb"
)

const (
	separator = "\x1f"
	// examineFirst is how many rows a page looks at first, for each that it shows, where a
	// filter has no index; examineMost is how many it looks at in all. A page that finds
	// fewer than it may show names where it stopped, and the next one goes on there.
	examineFirst = 4
	examineMost  = 5000
	// countMost bounds the matches that are counted, countExamined the rows that are looked
	// at for them.
	countMost     = 10_000
	countExamined = 20_000
)

// A key names an item of a list, in its order. Lists of sites have an empty second part.
type key [2]string

// after reads the cursor of a page. The empty cursor is before all keys.
func after(p fleet.Page, parts int) (k key, err error) {
	if p.Cursor == "" {
		return k, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	keys := strings.Split(string(b), separator)
	if err != nil || len(keys) != parts || strings.ToValidUTF8(string(b), "\x00") != string(b) || strings.Contains(string(b), "\x00") {
		return k, fleet.NotACursor(p.Cursor)
	}
	copy(k[:], keys)
	return k, nil
}

// cursor is what after reads.
func (k key) cursor(parts int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(k[:parts], separator)))
}

// list returns the keys of a page, and the cursor of the next one.
func (src source) list(ctx context.Context, from pgdb.Querier, p fleet.Page, parts int) (keys []key, next string, err error) {
	last, err := after(p, parts)
	if err != nil {
		return nil, "", err
	}
	n := fleet.Size(p.Limit)
	keys, end, err := src.page(ctx, from, last, n)
	switch {
	case err != nil:
		return nil, "", err
	case len(keys) > n:
		keys = keys[:n]
		next = keys[n-1].cursor(parts)
	case end != nil:
		next = end.cursor(parts)
	}
	return keys, next, nil
}

// columns returns the parts of keys as arguments of a query.
func columns(keys []key) (first, second []string) {
	for _, k := range keys {
		first, second = append(first, k[0]), append(second, k[1])
	}
	return first, second
}

// A statement is SQL with its arguments.
type statement struct {
	sql  strings.Builder
	args []any
}

// Add appends text, in which each $ stands for the next of the values.
func (s *statement) add(text string, values ...any) {
	for i, part := range strings.Split(text, "$") {
		if i > 0 {
			s.args = append(s.args, values[i-1])
			fmt.Fprintf(&s.sql, "$%d", len(s.args))
		}
		s.sql.WriteString(part)
	}
}

// rows runs a statement. It is planned with its values each time: the plan that is good
// for any value would read everything for some.
func rows[T any](ctx context.Context, from pgdb.Querier, scan func(pgx.CollectableRow) (T, error), s *statement) ([]T, error) {
	return pgdb.Rows(ctx, from, scan, s.sql.String(), append([]any{pgx.QueryExecModeCacheDescribe}, s.args...)...)
}

// A source gives the keys of a list in their order.
type source struct {
	// Add appends a query of at most limit keys after last, as columns a and b in their
	// order, with what residual needs.
	add func(s *statement, last key, limit int)
	// residual appends a condition on the columns of add. Nil: all are picked.
	residual func(s *statement)
	// most is how many rows a page looks at; 0 means examineMost.
	most int
}

// page returns the keys of a page and one more, where there is one. Where it ends
// before because of examineMost, next is where to go on.
func (src source) page(ctx context.Context, from pgdb.Querier, last key, size int) (found []key, next *key, err error) {
	if src.residual == nil {
		s := &statement{}
		s.add("select a, b from (")
		src.add(s, last, size+1)
		s.add(") w order by a, b")
		found, err = rows(ctx, from, scanKey, s)
		return found, nil, err
	}
	most := cmp.Or(src.most, examineMost)
	limit := examineFirst * (size + 1)
	for examined := 0; ; limit *= 4 {
		limit = min(limit, most-examined)
		examined += limit
		part, end, err := src.examine(ctx, from, last, limit)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, part...)
		switch {
		case len(found) > size:
			return found[:size+1], nil, nil
		case end == nil:
			return found, nil, nil
		case examined >= most:
			return found, end, nil
		}
		last = *end
	}
}

func scanKey(row pgx.CollectableRow) (k key, err error) {
	err = row.Scan(&k[0], &k[1])
	return k, err
}

// An examined is a key that was looked at.
type examined struct {
	key
	matches bool
	all     int // that were looked at
}

// examine returns which of the next keys are picked, and the last of them; nil where
// there are no more.
func (src source) examine(ctx context.Context, from pgdb.Querier, last key, limit int) (found []key, end *key, err error) {
	s := &statement{}
	s.add("with w as materialized (")
	src.add(s, last, limit)
	s.add(") select a, b, true, 0 from w where ")
	src.residual(s)
	s.add(" union all (select a, b, false, (select count(*)::int from w) from w order by a desc, b desc limit 1) order by 1, 2, 3 desc")
	list, err := rows(ctx, from, func(row pgx.CollectableRow) (e examined, err error) {
		err = row.Scan(&e.key[0], &e.key[1], &e.matches, &e.all)
		return e, err
	}, s)
	for _, e := range list {
		switch {
		case e.matches:
			found = append(found, e.key)
		case e.all == limit:
			end = &e.key
		}
	}
	return found, end, err
}

// count counts the keys.
func (src source) count(ctx context.Context, from pgdb.Querier) (fleet.Total, error) {
	limit := countMost + 1
	if src.residual != nil {
		limit = countExamined / (examineMost / cmp.Or(src.most, examineMost))
	}
	s := &statement{}
	s.add("select count(*) filter (where ")
	if src.residual != nil {
		src.residual(s)
	} else {
		s.add("true")
	}
	s.add("), count(*) from (")
	src.add(s, key{}, limit)
	s.add(") w")
	type counts struct{ matches, all int }
	list, err := rows(ctx, from, func(row pgx.CollectableRow) (c counts, err error) {
		err = row.Scan(&c.matches, &c.all)
		return c, err
	}, s)
	if err != nil {
		return fleet.Total{}, err
	}
	c := list[0]
	return fleet.Total{Count: min(c.matches, countMost), AtLeast: c.matches > countMost || c.all == limit}, nil
}

// choose appends the condition that a column has a value of a choice.
func choose(s *statement, column string, c fleet.Choice) {
	switch {
	case c.All():
		s.add("true")
	case c.Not:
		s.add(column+" <> all($::text[])", c.Values)
	default:
		s.add(column+" = any($::text[])", c.Values)
	}
}

// contains appends the condition that a text has a part, ignoring case.
func contains(s *statement, column, part string) {
	if part == "" {
		s.add("true")
		return
	}
	s.add("strpos(lower("+column+"), lower($::text)) > 0", part)
}
