// Package pgcost measures what queries cost PostgreSQL in pages: a number that a busy
// machine does not change. It records the queries of a program and asks the server for
// the plan of each, for tests and benchmarks.
package pgcost

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// A Query is a statement as a program has sent it.
type Query struct {
	SQL  string
	Args []any
}

// A Recorder records the queries of connections of which it is the tracer. The zero
// Recorder is usable, and its methods may be called concurrently.
type Recorder struct {
	mu      sync.Mutex // protects queries
	queries []Query
}

// TraceQueryStart implements pgx.QueryTracer.
func (r *Recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.add(Query{data.SQL, data.Args})
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *Recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (r *Recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (r *Recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	r.add(Query{data.SQL, data.Args})
}

// TraceBatchEnd implements pgx.BatchTracer.
func (r *Recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (r *Recorder) add(q Query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queries = append(r.queries, q)
}

// Take returns what was recorded since the call before.
func (r *Recorder) Take() []Query {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.queries
	r.queries = nil
	return list
}

// A Cost is what queries cost.
type Cost struct {
	Buffers int64 // pages of 8 KiB that were looked at, in memory or on disk
	Plan    string
}

// Of runs queries again and returns what those that read or write tables cost together.
// What they write is rolled back.
func Of(ctx context.Context, conn *pgx.Conn, queries []Query) (Cost, error) {
	var sum Cost
	for _, q := range queries {
		first, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(q.SQL)), " ")
		if !slices.Contains([]string{"select", "with", "insert", "update", "delete", "(select"}, first) {
			continue
		}
		one, err := explain(ctx, conn, q)
		if err != nil {
			return sum, fmt.Errorf("explain %s: %w", q.SQL, err)
		}
		sum.Buffers += one.Buffers
		sum.Plan += one.Plan + "\n"
	}
	return sum, nil
}

func explain(ctx context.Context, conn *pgx.Conn, q Query) (c Cost, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return c, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it changed nothing that is to stay
	var out []byte
	if err := tx.QueryRow(ctx, "explain (analyze, buffers, verbose, format json) "+q.SQL, q.Args...).Scan(&out); err != nil {
		return c, err
	}
	var plans []struct {
		Plan struct {
			Hit  int64 `json:"Shared Hit Blocks"`
			Read int64 `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(out, &plans); err != nil || len(plans) != 1 {
		return c, fmt.Errorf("%d plans: %w", len(plans), err)
	}
	return Cost{plans[0].Plan.Hit + plans[0].Plan.Read, string(out)}, nil
}
