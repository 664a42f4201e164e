package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// together has changes committed by calls that wait at the same time, and returns an outcome
// for each.
func together(t *testing.T, r *Repo, list []Change) (commits []string, errs []error) {
	t.Helper()
	commits, errs = make([]string, len(list)), make([]error, len(list))
	if err := r.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for i, c := range list {
		calls.Go(func() { commits[i], errs[i] = r.Commit(t.Context(), c) })
	}
	until(t, "all calls wait", func() bool {
		r.writers.mu.Lock()
		defer r.writers.mu.Unlock()
		return len(r.writers.waiting) == len(list)
	})
	r.leave()
	calls.Wait()
	return commits, errs
}

// until waits for a condition.
var until = testpart.Eventually

func hook(t *testing.T, remote, name, script string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(remote, "hooks"), 0o755))
	must(t, os.WriteFile(filepath.Join(remote, "hooks", name), []byte("#!/bin/sh\n"+script), 0o755)) //nolint:gosec // a program
}

func file(p, content string) Change {
	return Change{Message: "Put " + p, Author: Author{"Ann " + p, "ann@example.org"}, Files: map[string][]byte{p: []byte(content)}, Expect: map[string]string{p: ""}}
}

// TestWritersArePushedTogether has many calls wait at once: they need few pushes, and each has
// a commit, an author and an outcome of its own.
func TestWritersArePushedTogether(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	there := put(t, r, "there", "x")
	pushes := filepath.Join(t.TempDir(), "pushes")
	hook(t, remote, "post-receive", "echo push >> "+pushes+"\n")
	var list []Change
	for i := range 20 {
		list = append(list, file(fmt.Sprintf("d/%d/a \"quoted\" name", i), fmt.Sprint("content ", i)))
	}
	list = append(list,
		file("twice", "1"), file("twice", "2"), // one of them comes too late
		file("there", "y"), // exists
		Change{Message: "Nothing new", Files: map[string][]byte{"there": []byte("x")}, Expect: map[string]string{"there": there}},
	)
	commits, errs := together(t, r, list)
	conflicts := 0
	for i, c := range list {
		switch {
		case protocol.KindOf(errs[i]) == protocol.Conflict && i >= 20:
			conflicts++
		case errs[i] != nil:
			t.Errorf("%s: %v", c.Message, errs[i])
		case c.Author.Name != "":
			if got := byHand(t, remote, "log", "-1", "--format=%an: %s", commits[i]); got != c.Author.Name+": "+c.Message {
				t.Errorf("commit %.12s is %q, want %s: %s", commits[i], got, c.Author.Name, c.Message)
			}
			for p, content := range c.Files {
				if b, err := r.At(t.Context(), commits[i], p); err != nil || string(b) != string(content) {
					t.Errorf("%s at its commit: %q, %v", p, b, err)
				}
				if last, err := r.FileCommit(t.Context(), p); err != nil || last != commits[i] {
					t.Errorf("%s was changed last by %.12s, %v, want %.12s", p, last, err, commits[i])
				}
			}
		}
	}
	if conflicts != 2 {
		t.Errorf("%d calls had a conflict, want 2: %v", conflicts, errs[20:])
	}
	if n := byHand(t, remote, "rev-list", "--count", "main"); n != "23" { // the first one, there, 20 and twice
		t.Errorf("%s commits, want 23", n)
	}
	b, err := os.ReadFile(pushes)
	if n := strings.Count(string(b), "push"); err != nil || n > 3 {
		t.Errorf("%d pushes, %v, want at most 3", n, err)
	}
}

// TestOneRefusedOfSeveral has a remote whose rules refuse one of the changes that are pushed
// together, and a caller that gives up while another one commits.
func TestOneRefusedOfSeveral(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "there", "x")
	hook(t, remote, "update", `git log --format=%s "$2..$3" | grep -q bad && echo "no bad files" >&2 && exit 1; exit 0`)
	_, errs := together(t, r, []Change{file("a", "1"), file("bad", "1"), file("c", "1")})
	if errs[0] != nil || errs[2] != nil || protocol.KindOf(errs[1]) != protocol.Denied {
		t.Errorf("outcomes %v, want only the second one denied", errs)
	}
	if got := byHand(t, remote, "ls-tree", "-r", "--name-only", "main"); got != "README.md\na\nc\nthere" {
		t.Errorf("the remote has %q", got)
	}

	must(t, r.enter(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Commit(ctx, file("d", "1")); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up has %v", err)
	}
	r.leave()
	put(t, r, "e", "1")
	if c, err := r.FileCommit(t.Context(), "d"); err != nil || c != "" {
		t.Errorf("what was given up is there: %s, %v", c, err)
	}
}

// TestChangesAreSaved opens a cache again: what changed each path is not read from the history,
// unless what was saved is damaged or of another history.
func TestChangesAreSaved(t *testing.T) {
	t.Parallel()
	remote, dir := newRemote(t), t.TempDir()
	reopen := func() *Repo {
		r, err := Open(t.Context(), Options{Dir: dir, Remote: remote})
		must(t, err)
		return r
	}
	r := reopen()
	first := put(t, r, "a/b", "1")
	put(t, r, "removed", "1")
	_, err := r.Commit(t.Context(), Change{Message: "Remove", Files: map[string][]byte{"removed": nil}})
	must(t, err)
	check := func(want string) {
		t.Helper()
		for p, want := range map[string]string{"a/b": want, "a": want, "removed": "", "never": ""} {
			if got, err := r.FileCommit(t.Context(), p); err != nil || got != want {
				t.Errorf("%s was changed last by %.12s, %v, want %.12s", p, got, err, want)
			}
		}
	}
	check(first)
	r.saveChanges(t.Context())
	must(t, r.Close())
	r = reopen()
	if head, err := r.Head(t.Context()); err != nil || r.savedChanges().Head != head {
		t.Errorf("%q is saved, %v, want %s", r.savedChanges().Head, err, head)
	}
	check(first)
	second := put(t, r, "a/b", "2")
	check(second)
	must(t, r.Close())

	b, err := os.ReadFile(r.changesPath())
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(r.changesPath(), b, 0o600))
	r = reopen()
	if r.savedChanges().Head != "" {
		t.Error("a damaged file is believed")
	}
	check(second)
	must(t, r.Close())

	work := clone(t, remote)
	byHand(t, work, "commit", "--quiet", "--amend", "-m", "another history")
	byHand(t, work, "push", "--quiet", "--force")
	r = reopen()
	_, err = r.Sync(t.Context())
	must(t, err)
	check(byHand(t, work, "rev-parse", "HEAD"))
	must(t, r.Close())
}

// TestMaintain packs the cache and a remote of this machine.
func TestMaintain(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Maintain(ctx) })
	put(t, r, "a", "1")
	must(t, r.enter(ctx))
	r.writes = maintainEvery - 1
	r.leave()
	last := put(t, r, "b", "1")
	for _, dir := range []string{remote, r.bare()} {
		until(t, dir+" is packed", func() bool {
			packs, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
			_, graph := os.Stat(filepath.Join(dir, "objects", "info", "commit-graph"))
			return err == nil && len(packs) == 1 && graph == nil
		})
	}
	if got := byHand(t, remote, "rev-parse", "main"); got != last {
		t.Errorf("the remote is at %s, want %s", got, last)
	}
	cancel()
	running.Wait()
}
