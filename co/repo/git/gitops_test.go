package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		victim(dir, os.Getenv(victimRemote))
		return
	}
	goleak.VerifyTestMain(m)
}

// newRemote makes an empty bare repository that serves as the remote.
func newRemote(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deployments.git")
	if err := InitBare(t.Context(), dir, "main"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, remote string, change ...func(*Options)) *Repo {
	t.Helper()
	o := Options{Dir: filepath.Join(t.TempDir(), "cache"), Remote: remote}
	for _, f := range change {
		f(&o)
	}
	r, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// byHand runs git as a person would, with a clone of their own.
func byHand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.org", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func clone(t *testing.T, remote string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "work")
	byHand(t, t.TempDir(), "clone", "--quiet", remote, dir)
	return dir
}

func put(t *testing.T, r *Repo, path, content string) string {
	t.Helper()
	commit, err := r.Commit(t.Context(), Change{Message: "Put " + path, Files: map[string][]byte{path: []byte(content)}})
	if err != nil {
		t.Fatal(err)
	}
	return commit
}

func TestEmptyRemoteGetsAFirstCommit(t *testing.T) {
	t.Parallel()
	r := open(t, newRemote(t))
	s, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(s.Files["README.md"]), "deployments/<site>/<deployment>/deployment.yaml") {
		t.Errorf("README does not explain the layout: %q", s.Files["README.md"])
	}
	if s.Commits["README.md"] != s.Commit {
		t.Errorf("README is of commit %q, want %q", s.Commits["README.md"], s.Commit)
	}
}

func TestCommitReadHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := open(t, newRemote(t))
	const path = "deployments/berlin/hello/deployment.yaml"
	first := put(t, r, path, "one\n")
	other := put(t, r, "deployments/berlin/pump/deployment.yaml", "pump\n")
	second, err := r.Commit(ctx, Change{
		Message: "Update hello\n\nBecause.", Author: Author{"Ann", "ann@example.org"},
		Files: map[string][]byte{path: []byte("two\n")}, Expect: map[string]string{path: first},
	})
	if err != nil {
		t.Fatal(err)
	}
	same, err := r.Commit(ctx, Change{Message: "Again", Files: map[string][]byte{path: []byte("two\n")}})
	if err != nil || same != second {
		t.Errorf("a change that changes nothing: commit %q, %v; want %q", same, err, second)
	}
	s, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Commit != second || string(s.Files[path]) != "two\n" || s.Commits[path] != second || s.Commits["deployments/berlin/pump/deployment.yaml"] != other {
		t.Errorf("snapshot = %+v", s)
	}
	history, err := r.History(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range history {
		got = append(got, h.Commit+" "+h.Author+" "+h.Message)
	}
	want := []string{second + " Ann Update hello\n\nBecause.", first + " Colony Put " + path}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if b, err := r.At(ctx, first, path); err != nil || string(b) != "one\n" {
		t.Errorf("At(first) = %q, %v", b, err)
	}
	if _, err := r.At(ctx, first, "none"); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("At(missing path) = %v, want not_found", err)
	}
	if _, err := r.At(ctx, strings.Repeat("0", 40), path); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("At(missing commit) = %v, want not_found", err)
	}
}

func TestRemoveFolder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := open(t, newRemote(t))
	put(t, r, "deployments/berlin/hello/deployment.yaml", "x\n")
	put(t, r, "deployments/berlin/hello/notes.md", "x\n")
	put(t, r, "deployments/berlin/hello-2/deployment.yaml", "y\n")
	if _, err := r.Commit(ctx, Change{Message: "Remove hello", Files: map[string][]byte{"deployments/berlin/hello": nil}}); err != nil {
		t.Fatal(err)
	}
	s, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	delete(s.Files, "README.md")
	if diff := cmp.Diff(map[string][]byte{"deployments/berlin/hello-2/deployment.yaml": []byte("y\n")}, s.Files); diff != "" {
		t.Error(diff)
	}
	if got, err := r.FileCommit(ctx, "deployments/berlin/hello/deployment.yaml"); got != "" || err != nil {
		t.Errorf("FileCommit of a removed file = %q, %v; want none", got, err)
	}
}

func TestConflict(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	mine, theirs := open(t, remote), open(t, remote)
	const path = "deployments/berlin/hello/deployment.yaml"
	first := put(t, mine, path, "one\n")
	if _, err := theirs.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	second := put(t, mine, path, "two\n")

	tests := map[string]struct{ path, expect, message string }{
		"changed":     {path, first, "was changed by another writer in commit " + second[:12]},
		"exists":      {path, "", "exists already"},
		"not existed": {"deployments/berlin/pump/deployment.yaml", first, "was removed by another writer"},
	}
	for name, tt := range tests {
		_, err := theirs.Commit(ctx, Change{
			Message: "Three", Files: map[string][]byte{tt.path: []byte("three\n")}, Expect: map[string]string{tt.path: tt.expect},
		})
		if protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v, want a conflict: %s", name, err, tt.message)
		}
	}
	if head, err := mine.Sync(ctx); err != nil || head != second {
		t.Errorf("head = %q, %v; want %q: a conflict changes nothing", head, err, second)
	}
}

func TestConcurrentWritersAllLand(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	const writers, each = 8, 3
	var wg sync.WaitGroup
	errs := make(chan error, writers*each)
	for w := range writers {
		r := open(t, remote)
		wg.Go(func() {
			for n := range each {
				p := fmt.Sprintf("deployments/site-%d/app-%d/deployment.yaml", w, n)
				_, err := r.Commit(t.Context(), Change{
					Message: p, Files: map[string][]byte{p: []byte(p)}, Expect: map[string]string{p: ""},
				})
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if got := byHand(t, remote, "rev-list", "--count", "main"); got != fmt.Sprint(1+writers*each) {
		t.Errorf("%s commits, want %d", got, 1+writers*each)
	}
	files := byHand(t, remote, "ls-tree", "-r", "--name-only", "main")
	if got := len(strings.Fields(files)); got != 1+writers*each {
		t.Errorf("%d files, want %d:\n%s", got, 1+writers*each, files)
	}
}

func TestUnreachableRemote(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	head := put(t, r, "a/b", "one\n")
	if err := os.Rename(remote, remote+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := r.Commit(ctx, Change{Message: "x", Files: map[string][]byte{"a/b": []byte("two\n")}})
	if protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), remote) {
		t.Errorf("Commit = %v; want unavailable, with the remote's name", err)
	}
	if _, err := r.Sync(ctx); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("Sync = %v, want unavailable", err)
	}
	s, err := r.Read(ctx)
	if err != nil || s.Commit != head || string(s.Files["a/b"]) != "one\n" {
		t.Errorf("Read = %+v, %v; want the cached commit %s", s, err, head)
	}
	if err := os.Rename(remote+".away", remote); err != nil {
		t.Fatal(err)
	}
	put(t, r, "a/b", "three\n")
}

func TestRemoteThatNeverWasThere(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "none.git"))
	if _, err := r.Read(t.Context()); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("Read = %v, want unavailable", err)
	}
}

func TestRefusedByHook(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "a", "one\n")
	hook := filepath.Join(remote, "hooks", "pre-receive")
	if err := os.MkdirAll(filepath.Dir(hook), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho sign your commits >&2\nexit 1\n"), 0o755); err != nil { //nolint:gosec // a hook is executable
		t.Fatal(err)
	}
	_, err := r.Commit(t.Context(), Change{Message: "x", Files: map[string][]byte{"a": []byte("two\n")}})
	if protocol.KindOf(err) != protocol.Denied || !strings.Contains(err.Error(), "sign your commits") {
		t.Errorf("Commit = %v; want denied, with the hook's words", err)
	}
}

func TestWatchSeesPushByHandAndReach(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	reach := make(chan error, 10)
	r := open(t, remote, func(o *Options) { o.OnReach = func(_ context.Context, _ string, err error) { reach <- err } })
	first := put(t, r, "a", "one\n")

	ctx, cancel := context.WithCancel(t.Context())
	heads, done := make(chan string, 10), make(chan error, 1)
	go func() { done <- r.Watch(ctx, 20*time.Millisecond, func(c string) { heads <- c }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if got := receive(t, heads); got != first {
		t.Errorf("first head = %s, want %s", got, first)
	}

	work := clone(t, remote)
	if err := os.WriteFile(filepath.Join(work, "a"), []byte("by hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	byHand(t, work, "commit", "--quiet", "-am", "By hand")
	byHand(t, work, "push", "--quiet")
	if got, want := receive(t, heads), byHand(t, work, "rev-parse", "HEAD"); got != want {
		t.Errorf("head after the push by hand = %s, want %s", got, want)
	}

	if err := os.Rename(remote, remote+".away"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, reach); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("OnReach(%v), want unavailable", err)
	}
	r.Notify()
	if err := os.Rename(remote+".away", remote); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, reach); err != nil {
		t.Errorf("OnReach(%v), want reachable", err)
	}
	if len(reach) != 0 {
		t.Errorf("OnReach was called again: %v", <-reach)
	}
}

func TestNotifyWakesWatch(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	watcher, writer := open(t, remote), open(t, remote)
	ctx, cancel := context.WithCancel(t.Context())
	heads, done := make(chan string, 10), make(chan error, 1)
	go func() { done <- watcher.Watch(ctx, time.Hour, func(c string) { heads <- c }) }()
	receive(t, heads)
	want := put(t, writer, "a", "one\n")
	watcher.Notify()
	if got := receive(t, heads); got != want {
		t.Errorf("head = %s, want %s", got, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

func TestLocalHistoryRewrittenByHand(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "a", "one\n")
	if _, err := r.Read(ctx); err != nil {
		t.Fatal(err)
	}
	work := clone(t, remote)
	byHand(t, work, "commit", "--quiet", "--amend", "-m", "Rewritten")
	byHand(t, work, "push", "--quiet", "--force")
	head, err := r.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Read(ctx)
	if err != nil || s.Commit != head || s.Commits["a"] != head {
		t.Errorf("Read = %+v, %v; want all of commit %s", s, err, head)
	}
	put(t, r, "a", "two\n")
}

func TestMergeByHand(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "a", "one\n")
	work := clone(t, remote)
	byHand(t, work, "checkout", "--quiet", "-b", "side")
	if err := os.WriteFile(filepath.Join(work, "b"), []byte("side\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	byHand(t, work, "add", "b")
	byHand(t, work, "commit", "--quiet", "-m", "Side")
	put(t, r, "a", "two\n")
	if _, err := r.Read(ctx); err != nil {
		t.Fatal(err)
	}
	byHand(t, work, "checkout", "--quiet", "main")
	byHand(t, work, "pull", "--quiet", "--rebase")
	byHand(t, work, "merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
	byHand(t, work, "push", "--quiet", "origin", "main")
	head, err := r.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	warm, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cold, err := open(t, remote).Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cold, warm); diff != "" {
		t.Errorf("a snapshot made step by step differs from one made at once (-at once +step by step):\n%s", diff)
	}
	if warm.Commits["b"] != head {
		t.Errorf("b is of %s, want the merge %s", warm.Commits["b"], head)
	}
	for p, want := range warm.Commits {
		if got, err := r.FileCommit(ctx, p); err != nil || got != want {
			t.Errorf("FileCommit(%s) = %s, %v; the snapshot says %s", p, got, err, want)
		}
	}
}

func TestSkipped(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "a", "one\n")
	work := clone(t, remote)
	if err := os.Symlink("/etc/passwd", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "big"), make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	byHand(t, work, "add", ".")
	byHand(t, work, "commit", "--quiet", "-m", "Odd files")
	byHand(t, work, "push", "--quiet")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Skipped["link"] == "" || s.Skipped["big"] == "" || s.Files["link"] != nil || s.Files["big"] != nil {
		t.Errorf("skipped = %v", s.Skipped)
	}
	dir := t.TempDir()
	if _, err := Export(ctx, Options{}, remote, "", dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "link")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the symbolic link was exported: %v", err)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "apps/hello/margo.yaml", "one\n")
	byHand(t, remote, "tag", "v1", "main")
	head := put(t, r, "apps/hello/margo.yaml", "two\n")
	for ref, want := range map[string]string{"": "two\n", "main": "two\n", "v1": "one\n", head: "two\n"} {
		dir := t.TempDir()
		if _, err := Export(ctx, Options{}, remote, ref, dir); err != nil {
			t.Errorf("Export(%q): %v", ref, err)
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "apps/hello/margo.yaml")); err != nil || string(b) != want {
			t.Errorf("Export(%q) = %q, %v; want %q", ref, b, err, want)
		}
	}
	if _, err := Export(ctx, Options{}, remote, "none", t.TempDir()); protocol.KindOf(err) != protocol.NotFound {
		t.Errorf("Export of an unknown ref = %v, want not_found", err)
	}
	if _, err := Export(ctx, Options{}, remote+"x", "", t.TempDir()); protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("Export of an unknown remote = %v, want unavailable", err)
	}
}
