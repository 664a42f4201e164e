package auditapi

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
)

// Options are what the routes need. All are required.
type Options struct {
	// Entries returns a page of operations, the newest first.
	Entries func(ctx context.Context, f audit.Filter, p fleet.Page) (list []audit.Entry, next string, err error)
	// Chain returns rows of the chain after a position, in its order, and At the hash that the row at a position has.
	Chain func(ctx context.Context, after int64, n int) ([]audit.Sealed, error)
	At    func(ctx context.Context, position int64) (audit.Hash, error)
	// Checkpoints are those that this CO has written, and how many lines of their file count for nothing.
	Checkpoints func() (list []audit.Checkpoint, bad int, err error)
}

// Entries are a page of operations.
type Entries struct {
	Items []audit.Entry `json:"items"` // the newest first
	Next  string        `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// A Verification says whether a part of the record is what was written.
type Verification struct {
	Rows           int             `json:"rows" doc:"that were looked at"`
	Position       int64           `json:"position" doc:"of the last one, in the chain"`
	Hash           string          `json:"hash" doc:"SHA-256 of the last one and of all before it, in hex"`
	Findings       []audit.Finding `json:"findings" doc:"where the record is not what was written"`
	More           int             `json:"more,omitempty" doc:"findings that are not listed"`
	Checkpoints    int             `json:"checkpoints" doc:"signed checkpoints that this CO holds; the chain was compared with those of the rows that were looked at"`
	BadCheckpoints int             `json:"badCheckpoints,omitempty" doc:"lines of their file that are none, or that another key signed"`
	Next           string          `json:"next,omitempty" doc:"cursor from which to go on; absent at the end"`
}

type entriesInput struct {
	form.PageQuery
	Principal string    `query:"principal" doc:"only of this one"`
	Target    string    `query:"target" doc:"only where the path that was asked for begins so"`
	Kind      string    `query:"kind" enum:"intent,refused,local,pushed" doc:"only of this kind"`
	Since     time.Time `query:"since" doc:"only from then on"`
	Until     time.Time `query:"until" doc:"only before"`
}

type verifyInput struct {
	Cursor string `query:"cursor" doc:"what the answer before gave as next"`
}

const (
	// verifyAtOnce is how many rows one request has looked at, chunk how many are read at a time.
	verifyAtOnce = 50_000
	chunk        = 1000
)

type routes struct {
	o   Options
	log *slog.Logger
}

// Register adds the routes to h.
func Register(h huma.API, o Options, log *slog.Logger) {
	r := &routes{o, log}
	huma.Get(h, "/api/v1/audit", r.list, form.Describe("access", "List the operations of the API, the newest first"))
	huma.Get(h, "/api/v1/audit/verification", r.verify, form.Describe("access", "Verify that the audit is what was written"), func(o *huma.Operation) {
		o.Description = "Each row of the audit carries the hash of all before it. They are computed anew, and compared with the checkpoints that this CO has signed and written into a file."
	})
}

func (r *routes) list(ctx context.Context, in *entriesInput) (*form.Reply[Entries], error) {
	list, next, err := r.o.Entries(ctx, audit.Filter{Principal: in.Principal, Target: in.Target, Kind: audit.Kind(in.Kind), Since: in.Since, Until: in.Until},
		in.Page())
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[Entries]{Body: Entries{form.NotNil(list), next}}, nil
}

func (r *routes) verify(ctx context.Context, in *verifyInput) (*form.Reply[Verification], error) {
	out, err := r.verification(ctx, in.Cursor)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[Verification]{Body: out}, nil
}

func (r *routes) verification(ctx context.Context, cursor string) (out Verification, err error) {
	var begin int64
	if cursor != "" {
		if begin, err = strconv.ParseInt(cursor, 10, 64); err != nil || begin < 0 {
			return out, fleet.NotACursor(cursor)
		}
	}
	before, err := r.o.At(ctx, begin)
	if err != nil {
		return out, err
	}
	checkpoints, bad, err := r.o.Checkpoints()
	if err != nil {
		return out, err
	}
	out.Checkpoints, out.BadCheckpoints = len(checkpoints), bad
	v := audit.NewVerifier(begin, before, checkpoints)
	for out.Rows < verifyAtOnce {
		after, _ := v.Position()
		rows, err := r.o.Chain(ctx, after, chunk)
		if err != nil {
			return out, err
		}
		for _, row := range rows {
			if err := v.Row(row); err != nil {
				return out, err
			}
		}
		if out.Rows += len(rows); len(rows) < chunk {
			v.End()
			break
		}
	}
	found, more := v.Found()
	position, hash := v.Position()
	out.Findings, out.More, out.Position, out.Hash = form.NotNil(found), more, position, hash.String()
	if out.Rows >= verifyAtOnce {
		out.Next = strconv.FormatInt(position, 10)
	}
	return out, nil
}
