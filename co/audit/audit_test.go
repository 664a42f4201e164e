package audit_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/audit"
)

func keys(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// chain returns n rows, sealed.
func chain(t *testing.T, n int) []audit.Sealed {
	t.Helper()
	out := make([]audit.Sealed, n)
	var hash audit.Hash
	for i := range out {
		row := audit.NewRow(time.Unix(int64(i), 0), audit.Row{Kind: audit.Intent, Principal: "ann", Operation: "DELETE /x", Target: "/x", Commits: []string{"abc"}})
		next, err := audit.Chain(hash, row)
		if err != nil {
			t.Fatal(err)
		}
		hash = next
		out[i] = audit.Sealed{Row: row, Position: int64(i + 1), Hash: hash}
	}
	return out
}

func verify(t *testing.T, rows []audit.Sealed, checkpoints []audit.Checkpoint) []audit.Finding {
	t.Helper()
	v := audit.NewVerifier(0, audit.Hash{}, checkpoints)
	for _, r := range rows {
		if err := v.Row(r); err != nil {
			t.Fatal(err)
		}
	}
	v.End()
	found, more := v.Found()
	if more != 0 {
		t.Errorf("%d findings are not listed", more)
	}
	return found
}

func TestVerify(t *testing.T) {
	t.Parallel()
	key := keys(t)
	good := chain(t, 30)
	checkpoints := []audit.Checkpoint{
		audit.NewCheckpoint(key, time.Unix(20, 0), 20, good[19].Hash), // in no order
		audit.NewCheckpoint(key, time.Unix(10, 0), 10, good[9].Hash),
	}
	clone := func() []audit.Sealed { return append([]audit.Sealed(nil), good...) }
	// An owner of the database can seal changed rows anew.
	rewritten := func() []audit.Sealed {
		rows := clone()
		rows[4].Principal = "bob"
		var hash audit.Hash
		for i := range rows {
			next, err := audit.Chain(hash, rows[i].Row)
			if err != nil {
				t.Fatal(err)
			}
			hash = next
			rows[i].Hash = hash
		}
		return rows
	}
	altered := clone()
	altered[14].Target = "/y"
	moved := clone()
	moved[3].Row, moved[4].Row = moved[4].Row, moved[3].Row
	for name, tt := range map[string]struct {
		rows []audit.Sealed
		want []int64 // positions
		text string
	}{
		"whole":             {rows: good},
		"altered":           {rows: altered, want: []int64{15}, text: "not what was written"},
		"deleted":           {rows: append(clone()[:7], good[8:]...), want: []int64{8}, text: "1 rows are missing"},
		"checkpointed row":  {rows: append(clone()[:9], good[10:]...), want: []int64{10}, text: "1 rows are missing"},
		"moved":             {rows: moved, want: []int64{4, 5}, text: "not where it was written"},
		"rewritten":         {rows: rewritten(), want: []int64{10, 20}, text: "written anew"},
		"tail after it cut": {rows: good[:20]},
		"tail cut":          {rows: good[:19], want: []int64{20}, text: "up to position 20"},
		"empty":             {want: []int64{1}, text: "up to position 20"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := verify(t, tt.rows, checkpoints)
			var at []int64
			for _, f := range found {
				at = append(at, f.Position)
				if !strings.Contains(f.Problem, tt.text) {
					t.Errorf("%d: %q, want %q", f.Position, f.Problem, tt.text)
				}
			}
			if len(at) != len(tt.want) {
				t.Fatalf("found at %v, want %v", at, tt.want)
			}
			for i := range at {
				if at[i] != tt.want[i] {
					t.Errorf("found at %v, want %v", at, tt.want)
				}
			}
		})
	}
}

// A checkpoint that another key signed, or that was altered, does not count, nor a torn line.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	key := keys(t)
	good := audit.NewCheckpoint(key, time.Unix(1, 0), 1, audit.Hash{1})
	altered := good
	altered.Position = 2
	var file []byte
	for _, c := range []audit.Checkpoint{good, altered, audit.NewCheckpoint(keys(t), time.Unix(1, 0), 3, audit.Hash{3})} {
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		file = append(append(file, line...), '\n')
	}
	file = append(file, `{"position":4,`...)
	list, bad := audit.ParseCheckpoints(file, key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // by its documentation
	if len(list) != 1 || list[0].Position != 1 || bad != 2 {
		t.Errorf("%d checkpoints %v, %d that do not count; want 1 and 2", len(list), list, bad)
	}
}

func TestOperation(t *testing.T) {
	t.Parallel()
	o := &audit.Operation{Intent: "i1"}
	ctx := audit.With(t.Context(), o)
	audit.Committed(ctx, "c1")
	audit.Note(ctx, "token t1")
	row := o.Outcome(time.Unix(5, 7), 201, "bad\x00\xff"+strings.Repeat("x", 5000))
	got := row
	got.ID, got.Detail = "", ""
	if diff := cmp.Diff(audit.Row{At: time.Unix(5, 0).UTC(), Kind: audit.Outcome, Of: "i1", Status: 201, Commits: []string{"c1"}}, got); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if row.ID == "" {
		t.Error("the row has no id")
	}
	if !strings.HasPrefix(row.Detail, "token t1; bad??xx") || len(row.Detail) > 1100 {
		t.Errorf("detail of %d bytes: %q", len(row.Detail), row.Detail)
	}
	if got := audit.Stamp(ctx, "change\n"); got != "change\n\nColony-Audit: i1" {
		t.Errorf("%q", got)
	}
	if got := audit.Stamp(ctx, "change\n\nColony-Principal: ann"); got != "change\n\nColony-Principal: ann\nColony-Audit: i1" {
		t.Errorf("%q", got)
	}
	// What is of no operation is left alone.
	audit.Committed(context.Background(), "c1")
	audit.Note(context.Background(), "x")
	if got := audit.Stamp(context.Background(), "change"); got != "change" {
		t.Errorf("%q", got)
	}
}
