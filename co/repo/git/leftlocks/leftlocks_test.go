package leftlocks

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// repository is one with locks in places of all kinds, which are older than any living git's.
func repository(t *testing.T) (dir string, all []string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"HEAD.lock", "config.lock", "packed-refs.lock", "refs/heads/main.lock", "refs/heads/a/b.lock", "objects/pack/multi-pack-index.lock", "objects/info/commit-graphs/commit-graph-chain.lock", "shallow.lock"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		all = append(all, path)
	}
	slices.Sort(all)
	return dir, all
}

func left(t *testing.T, all []string) (n int) {
	t.Helper()
	for _, path := range all {
		if _, err := os.Stat(path); err == nil {
			n++
		}
	}
	return n
}

func TestClear(t *testing.T) {
	t.Parallel()
	dir, all := repository(t)
	removed, err := clearAll(dir)
	slices.Sort(removed)
	if err != nil || !slices.Equal(removed, all) || left(t, all) > 0 {
		t.Errorf("removed %q, %v; want %q", removed, err, all)
	}
	if removed, err := clearAll(dir); err != nil || len(removed) > 0 {
		t.Errorf("without locks: %q, %v", removed, err)
	}
	if removed, err := clearAll(filepath.Join(dir, "none")); err != nil || len(removed) > 0 {
		t.Errorf("without a repository: %q, %v", removed, err)
	}
}

// TestInUse has a process that may hold a lock: it stays, and the error says why.
func TestInUse(t *testing.T) {
	t.Parallel()
	lives := func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		stdin, err := cmd.StdinPipe() // it waits for this
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	for what, c := range map[string]struct {
		holds func(t *testing.T, dir string)
		why   string
	}{
		"another CO": {func(t *testing.T, dir string) {
			t.Helper()
			f := Join(dir)
			t.Cleanup(func() { _ = f.Close() })
		}, "a CO writes"},
		"a process in the repository": {func(t *testing.T, dir string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "cat")
			cmd.Dir = filepath.Join(dir, "refs")
			lives(t, cmd)
		}, "may work there"},
		"a process that has a file open": {func(t *testing.T, dir string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "cat")
			f, err := os.Open(filepath.Join(dir, "config.lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmd.ExtraFiles = []*os.File{f}
			lives(t, cmd)
		}, "may work there"},
		"a git to which it is named": {func(t *testing.T, dir string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "git", "--git-dir", filepath.Base(dir), "hash-object", "--stdin")
			cmd.Dir = filepath.Dir(dir)
			lives(t, cmd)
		}, "may work there"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir, all := repository(t)
			c.holds(t, dir)
			removed, err := clearAll(dir)
			if len(removed) > 0 || left(t, all) != len(all) {
				t.Fatalf("removed %q while somebody may hold them", removed)
			}
			if err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v, want a lock and %q", err, c.why)
			}
		})
	}
}

// TestYoungLocks leaves what a living git may have made right now, and a file that has another one's name.
func TestYoungLocks(t *testing.T) {
	t.Parallel()
	dir, all := repository(t)
	if err := os.Chtimes(all[0], time.Time{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	removed, err := clearAll(dir)
	if err != nil || len(removed) != len(all)-1 || left(t, all[:1]) != 1 {
		t.Errorf("removed %q, %v; want all but the one that is new", removed, err)
	}
	info, err := os.Lstat(all[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(all[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(all[0], []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := (found{all[0], info}).unsure(); why == "" {
		t.Error("a lock that has taken the place of another one would be removed")
	}
}
