package keeper_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/audit/keeper"
	"github.com/colonyfleet/colony/co/db"
	auditdb "github.com/colonyfleet/colony/co/db/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/git/since"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// TestKeep has a keeper seal, settle and write a checkpoint, after its lock was refused once and behind a torn line.
func TestKeep(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := auditdb.New(pool)
	var ids []string
	for _, age := range []time.Duration{2 * time.Hour, 2 * time.Hour, time.Minute} {
		row := audit.NewRow(time.Now().Add(-age), audit.Row{Kind: audit.Intent, Operation: "POST /x"})
		if err := s.Add(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, row.ID)
	}
	file := filepath.Join(t.TempDir(), "audit", "checkpoints.jsonl")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"position":1,"ha`), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	k := keeper.New(keeper.Options{
		Store: s, Key: key, File: file, Disk: disk.OS, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Lock: func(ctx context.Context) (context.Context, func(), error) {
			if asked.Add(1) == 1 {
				return nil, nil, errors.New("somebody else has it")
			}
			return pool.Lease(ctx, "audit")
		},
		Commits: func(context.Context) (map[string][]string, error) {
			return map[string][]string{ids[0]: {"c0ffee"}, "other": {"bad"}}, nil
		},
		Pushes: func(context.Context, string, int) (since.Commits, error) {
			return since.Commits{}, errors.New("git is away")
		},
	})
	go func() { defer close(done); k.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })

	testpart.Within(t, time.Minute, "what a CO left without an outcome has one", func() error {
		list, _, err := s.Entries(t.Context(), audit.Filter{}, fleet.Page{})
		if err != nil {
			return err
		}
		byID := map[string]audit.Entry{}
		for _, e := range list {
			byID[e.ID] = e
		}
		committed, lost, young := byID[ids[0]], byID[ids[1]], byID[ids[2]]
		if len(committed.Commits) != 1 || committed.Commits[0] != "c0ffee" || lost.DoneAt == nil || len(lost.Commits) != 0 || young.DoneAt != nil {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
	testpart.Within(t, time.Minute, "all is sealed", func() error {
		rows, err := s.Chain(t.Context(), 0, 10)
		if err != nil || len(rows) != 5 {
			return fmt.Errorf("%d rows (%w)", len(rows), err)
		}
		return nil
	})
	list, bad, err := keeper.NewReader(file, key).Checkpoints()
	if err != nil || len(list) != 1 || bad != 0 || list[0].Position != 3 {
		t.Errorf("checkpoints %+v, %d lines that are none (%v); want one of position 3, in the place of the torn line", list, bad, err)
	}
	if list, bad, err := keeper.NewReader(file+".none", key).Checkpoints(); err != nil || len(list)+bad != 0 {
		t.Errorf("without a file: %v %d %v", list, bad, err)
	}
}

// TestFIFOForCheckpoints puts a FIFO in the place of the checkpoints: it is refused by name, and no reader waits for its other
// end.
func TestFIFOForCheckpoints(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	file := filepath.Join(t.TempDir(), "checkpoints.jsonl")
	if err := errors.Join(err, syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := keeper.NewReader(file, key).Checkpoints(); !errors.Is(err, disk.ErrIrregular) || !strings.Contains(err.Error(), file) {
		t.Errorf("a FIFO as the checkpoints: %v", err)
	}
}

// TestKey damages the key, and lets others read it: it is put aside with what it signed, and the CO goes on.
func TestKey(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	for name, harm := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.Truncate(path, 0) },
		"a FIFO":  func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"open":    func(path string) error { return os.Chmod(path, 0o644) }, //nolint:gosec // that is the fault
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, file := filepath.Join(dir, "checkpoint.key"), filepath.Join(dir, "checkpoints.jsonl")
			first, err := keeper.Key(path, file, log)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := keeper.Key(path, file, log); err != nil || !again.Equal(first) {
				t.Errorf("read again: another key (%v)", err)
			}
			if err := errors.Join(os.WriteFile(file, []byte("{}\n"), 0o600), harm(path)); err != nil {
				t.Fatal(err)
			}
			second, err := keeper.Key(path, file, log)
			if err != nil || second.Equal(first) {
				t.Errorf("the key is the same, or none (%v)", err)
			}
			for _, what := range []string{path, file} {
				if aside, err := filepath.Glob(what + ".unusable-key-*"); err != nil || len(aside) != 1 {
					t.Errorf("put aside: %v (%v)", aside, err)
				}
			}
		})
	}
}

// TestPushes has commits come that operations made, and others: each of those is a row, once.
func TestPushes(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), pgtest.New(t), db.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := auditdb.New(pool)
	intent := func(commits ...string) string {
		t.Helper()
		row := audit.NewRow(time.Now(), audit.Row{Kind: audit.Intent, Operation: "POST /x"})
		if err := s.Add(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		if commits != nil {
			if err := s.Add(t.Context(), audit.NewRow(time.Now(), audit.Row{Kind: audit.Outcome, Of: row.ID, Status: 200, Commits: commits})); err != nil {
				t.Fatal(err)
			}
		}
		return row.ID
	}
	done, open := intent("c1"), intent()
	var mu sync.Mutex
	now := since.Commits{Head: "c0", Follows: true}
	come := func(c since.Commits) {
		mu.Lock()
		defer mu.Unlock()
		now = c
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		k := keeper.New(keeper.Options{
			Store: s, Key: key, File: filepath.Join(t.TempDir(), "checkpoints.jsonl"), Disk: disk.OS, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Lock:    func(ctx context.Context) (context.Context, func(), error) { return pool.Lease(ctx, "audit") },
			Commits: func(context.Context) (map[string][]string, error) { return nil, nil },
			Pushes: func(_ context.Context, after string, _ int) (since.Commits, error) {
				mu.Lock()
				defer mu.Unlock()
				if after == now.Head {
					return since.Commits{Head: after, Follows: true}, nil
				}
				return now, nil
			},
		})
		go func() { defer close(ended); k.Run(ctx) }()
		return func() { cancel(); <-ended }
	}
	follows := func(head string) {
		t.Helper()
		stop := run() // each looks at once
		defer stop()
		testpart.Within(t, time.Minute, "the audit follows to "+head, func() error {
			if to, err := s.PushedTo(t.Context()); err != nil || to != head {
				return fmt.Errorf("it is at %q (%w)", to, err)
			}
			return nil
		})
	}
	rows := func() []audit.Entry {
		t.Helper()
		list, _, err := s.Entries(t.Context(), audit.Filter{Principal: "git"}, fleet.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	follows("c0")
	if list := rows(); len(list) > 0 {
		t.Fatalf("what was there before is recorded: %+v", list)
	}
	come(since.Commits{Head: "c5", Follows: true, List: []since.Commit{
		{ID: "c1", Trailers: []string{"Colony-Audit: " + done}},
		{ID: "c2", Trailers: []string{"Colony-Audit: " + open}},
		{ID: "c3", Author: "Ann <ann@example.org>", Subject: "By hand", Paths: []string{"deployments/plant/a/deployment.yaml", "deployments/plant/b/deployment.yaml"}},
		{ID: "c4", Trailers: []string{"Colony-Audit: " + done}, Paths: []string{"x"}},
		{ID: "c5", Trailers: []string{"Signed-off-by: x", "Colony-Audit: none"}},
	}})
	follows("c5")
	follows("c5")
	list := rows()
	if len(list) != 3 {
		t.Fatalf("%d rows, want those of c3, c4 and c5: %+v", len(list), list)
	}
	by := map[string]audit.Entry{}
	for _, e := range list {
		by[e.Commits[0]] = e
	}
	if e := by["c3"]; e.Kind != audit.Pushed || e.Operation != "git push" || e.Target != "deployments/plant" || !strings.Contains(e.Detail, `"By hand", by Ann <ann@example.org> as the commit says, 2 files`) {
		t.Errorf("by hand: %+v", e)
	}
	for commit, names := range map[string]string{"c4": done, "c5": "none"} {
		if e := by[commit]; !strings.Contains(e.Detail, "it names operation "+names+", which did not make it") {
			t.Errorf("%s, which names an operation that did not make it: %+v", commit, e)
		}
	}
	come(since.Commits{Head: "c9", More: 7, List: []since.Commit{{ID: "c9", Paths: []string{"a", "b"}}}})
	follows("c9")
	if list := rows(); len(list) != 6 || !slices.ContainsFunc(list, func(e audit.Entry) bool { return strings.Contains(e.Detail, "written anew: commit c5 is not in") }) ||
		!slices.ContainsFunc(list, func(e audit.Entry) bool { return strings.Contains(e.Detail, "7 commits, after c5") }) {
		t.Errorf("after a forced push: %+v", list)
	}
}
