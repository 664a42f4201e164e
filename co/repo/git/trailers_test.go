package git

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRemovalsAndTrailers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "a/one", "1")
	put(t, r, "a/two", "2")
	start := put(t, r, "a/three", "3")
	confirmed, err := r.Commit(ctx, Change{Message: "Remove one\n\nColony-Confirm: a/one", Files: map[string][]byte{"a/one": nil}})
	if err != nil {
		t.Fatal(err)
	}
	work := clone(t, remote)
	byHand(t, work, "checkout", "--quiet", "-b", "branch")
	byHand(t, work, "commit", "--quiet", "--allow-empty", "-m", "Agree\n\nColony-Confirm: 0a1b2c3d\nColony-Confirm:  ffffffff ")
	byHand(t, work, "rm", "--quiet", "a/two")
	byHand(t, work, "commit", "--quiet", "-m", "Remove two, which says Colony-Confirm: nothing")
	byHand(t, work, "checkout", "--quiet", "main")
	byHand(t, work, "merge", "--quiet", "--no-ff", "-m", "Merge", "branch")
	merge := byHand(t, work, "rev-parse", "HEAD")
	byHand(t, work, "push", "--quiet", "origin", "main")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}

	blob := func(p string) string { return byHand(t, work, "rev-parse", start+":"+p) }
	want := map[string]Removal{
		"a/one": {Commit: confirmed, Trailers: []string{"Colony-Confirm: a/one"}, Blob: blob("a/one")}, "a/two": {Commit: merge, Blob: blob("a/two")},
	}
	for _, since := range []string{start, "", strings.Repeat("0", 40)} {
		got, err := r.Removals(ctx, since)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("since %q: %v\n%s", since, err, d)
		}
	}
	got, err := r.Removals(ctx, confirmed)
	if d := cmp.Diff(map[string]Removal{"a/two": {Commit: merge, Blob: blob("a/two")}}, got); d != "" || err != nil {
		t.Errorf("since the first removal: %v\n%s", err, d)
	}

	line, err := r.Line(ctx)
	if err != nil || len(line) < 3 || line[0] != merge || line[1] != confirmed || !slices.Contains(line, start) {
		t.Errorf("commits along the first parents: %v, %v; want %s, %s, and %s", line, err, merge, confirmed, start)
	}
	branch := byHand(t, work, "rev-parse", "branch")
	if followed, err := r.Ancestors(ctx, merge); err != nil || !slices.Contains(followed, branch) || !slices.Contains(followed, merge) {
		t.Errorf("the merge follows %v, %v; want itself and %s", followed, err, branch)
	}
	if followed, err := r.Ancestors(ctx, confirmed); err != nil || slices.Contains(followed, branch) || !slices.Contains(followed, start) {
		t.Errorf("%s follows %v, %v", confirmed, followed, err)
	}
	trailers, err := r.Trailers(ctx, "Colony-Confirm")
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, v := range trailers {
		values = append(values, v.Author+" "+v.Value)
	}
	if d := cmp.Diff([]string{"Ann <ann@example.org> 0a1b2c3d", "Ann <ann@example.org> ffffffff", "Colony <colony@localhost> a/one"}, values); d != "" {
		t.Error(d)
	}

	// A file that was put back was not removed; a history that was replaced removed nothing.
	if err := os.WriteFile(filepath.Join(work, "a", "two"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	byHand(t, work, "add", "a/two")
	byHand(t, work, "commit", "--quiet", "-m", "Put two back")
	byHand(t, work, "push", "--quiet", "origin", "main")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err = r.Removals(ctx, start); err != nil || len(got) != 1 || got["a/one"].Commit != confirmed {
		t.Errorf("after two was put back: %v, %v; want the removal of one", got, err)
	}
	byHand(t, work, "checkout", "--quiet", "--orphan", "other")
	byHand(t, work, "rm", "-r", "--quiet", "--cached", ".")
	byHand(t, work, "commit", "--quiet", "--allow-empty", "-m", "Begin again")
	byHand(t, work, "push", "--quiet", "--force", "origin", "other:main")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err = r.Removals(ctx, start); err != nil || len(got) != 0 {
		t.Errorf("after the history was replaced: %v, %v; want no removals", got, err)
	}
}
