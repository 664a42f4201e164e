package git

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
)

// TestLastChangesFollowWrites writes, replaces and removes files and folders, and asks for the last
// change of each path what a repo says that reads the whole history.
func TestLastChangesFollowWrites(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	put(t, r, "there", "x")
	paths := []string{"there", "a", "a/b", "a/b/c", "d/e", "d/f", "d"}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for i := range 15 {
		c := Change{Message: fmt.Sprint("change ", i), Files: map[string][]byte{}}
		for range 1 + random.IntN(4)/3 {
			p := paths[random.IntN(len(paths))]
			if c.Files[p] = []byte(fmt.Sprint(random.IntN(3))); random.IntN(4) == 0 {
				c.Files[p] = nil
			}
		}
		if _, err := r.FileCommit(t.Context(), "there"); err != nil { // so that there is something to follow
			t.Fatal(err)
		}
		if _, err := r.Commit(t.Context(), c); err != nil {
			continue // two paths of it exclude each other
		}
		fresh := open(t, remote)
		if _, err := fresh.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			got, err := r.FileCommit(t.Context(), p)
			want, err2 := fresh.FileCommit(t.Context(), p)
			if got != want || err != nil || err2 != nil {
				t.Fatalf("change %d, %v: %s was changed last by %.12s, %v, and in a fresh cache by %.12s, %v", i, c.Files, p, got, err, want, err2)
			}
		}
	}
}

// TestWriteIsFollowedWithoutHistory expects that the last change of a file is known after a write of
// it, and is saved after many, without a look at the history.
func TestWriteIsFollowedWithoutHistory(t *testing.T) {
	t.Parallel()
	r := open(t, newRemote(t))
	put(t, r, "a", "1")
	if _, err := r.FileCommit(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for i, p := range []string{"a", "b/c"} {
		commit := put(t, r, p, fmt.Sprint("2 ", i))
		if r.changes.Head != commit || r.changes.Commits[p] != commit {
			t.Errorf("%s: known is %.12s at %.12s, written was %.12s", p, r.changes.Commits[p], r.changes.Head, commit)
		}
	}
	if saved := r.savedChanges(); saved.Head != "" {
		t.Fatalf("%.12s is saved already", saved.Head)
	}
	r.unsaved = saveAbove - 1
	commit := put(t, r, "a", "3")
	if saved := r.savedChanges(); saved.Head != commit || saved.Commits["a"] != commit {
		t.Errorf("saved is %.12s, written was %.12s", saved.Head, commit)
	}
	must(t, os.Remove(r.changesPath()))
	must(t, syscall.Mkfifo(r.changesPath(), 0o600)) // opening it would wait for its other end
	if saved := r.savedChanges(); saved.Head != "" {
		t.Errorf("saved in a FIFO is %.12s", saved.Head)
	}
	r.saveChanges(t.Context())
	if saved := r.savedChanges(); saved.Head != commit {
		t.Errorf("saved in the place of a FIFO is %.12s, written was %.12s", saved.Head, commit)
	}
}
