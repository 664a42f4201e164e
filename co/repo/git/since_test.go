package git

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/repo/git/since"
)

// TestSince reads what came after a commit: commits of the program and by hand, a merge, and a history that was written anew.
func TestSince(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	remote := newRemote(t)
	r := open(t, remote)
	came := func(after string, most int) since.Commits {
		t.Helper()
		c, err := r.Since(ctx, after, most)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	start := put(t, r, "a/one", "1")
	if c := came(start, 10); len(c.List) != 0 || !c.Follows || c.Head != start {
		t.Errorf("since the head: %+v", c)
	}
	if c := came("", 10); len(c.List) != 0 || !c.Follows || c.Head != start {
		t.Errorf("since nothing: %+v", c)
	}
	work := clone(t, remote)
	byHand(t, work, "checkout", "--quiet", "-b", "branch")
	byHand(t, work, "rm", "--quiet", "a/one")
	byHand(t, work, "commit", "--quiet", "-m", "Remove one\n\nBody.\n\nColony-Audit: x1")
	byHand(t, work, "checkout", "--quiet", "main")
	byHand(t, work, "merge", "--quiet", "--no-ff", "-m", "Merge", "branch")
	byHand(t, work, "push", "--quiet", "origin", "main")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	last := put(t, r, "b/two", "2")
	c := came(start, 10)
	for i := range c.List {
		c.List[i].ID = ""
	}
	want := []since.Commit{
		{Author: "Ann <ann@example.org>", Subject: "Remove one", Trailers: []string{"Colony-Audit: x1"}, Paths: []string{"a/one"}},
		{Author: "Ann <ann@example.org>", Subject: "Merge", Paths: []string{"a/one"}},
		{Author: "Colony <colony@localhost>", Subject: c.List[2].Subject, Paths: []string{"b/two"}},
	}
	if d := cmp.Diff(want, c.List); d != "" || !c.Follows || c.Head != last || c.More != 0 {
		t.Errorf("%+v\n%s", c, d)
	}
	if c := came(start, 1); len(c.List) != 1 || c.List[0].ID != last || c.More != 2 {
		t.Errorf("the newest: %+v", c)
	}
	// Another process has not heard of the head yet: it asks.
	other := open(t, remote)
	if _, err := other.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	next := put(t, r, "b/two", "3")
	if c, err := other.Since(ctx, next, 10); err != nil || !c.Follows || len(c.List) != 0 || c.Head != next {
		t.Errorf("at one that is behind: %+v, %v", c, err)
	}
	byHand(t, work, "commit", "--quiet", "--amend", "-m", "Anew")
	byHand(t, work, "push", "--quiet", "--force", "origin", "main")
	if _, err := r.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if c := came(last, 10); c.Follows || len(c.List) != 1 || c.List[0].Subject != "Anew" {
		t.Errorf("written anew: %+v", c)
	}
	if c := came(strings.Repeat("1", 40), 10); c.Follows || len(c.List) != 0 {
		t.Errorf("since one that is not there: %+v", c)
	}
}
