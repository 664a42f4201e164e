package git

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/repo/git/names"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
)

// TestDamagedCache breaks the cache in the ways a crash or a disk can, and expects
// that reading and writing go on as if nothing had happened.
func TestDamagedCache(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, bare string){
		"objects gone": func(t *testing.T, bare string) {
			must(t, os.RemoveAll(filepath.Join(bare, "objects")))
			must(t, os.MkdirAll(filepath.Join(bare, "objects"), 0o750))
		},
		"objects empty": func(t *testing.T, bare string) {
			eachFile(t, filepath.Join(bare, "objects"), func(p string) {
				must(t, os.Chmod(p, 0o600))
				must(t, os.Truncate(p, 0))
			})
		},
		"HEAD gone": func(t *testing.T, bare string) { must(t, os.Remove(filepath.Join(bare, "HEAD"))) },
		"ref is garbage": func(t *testing.T, bare string) {
			must(t, os.WriteFile(filepath.Join(bare, remoteRef), []byte("x"), 0o600))
		},
		"everything gone": func(t *testing.T, bare string) {
			must(t, os.RemoveAll(bare))
		},
		"locks left": func(t *testing.T, bare string) {
			must(t, os.WriteFile(filepath.Join(bare, remoteRef+".lock"), nil, 0o600))
			must(t, os.WriteFile(filepath.Join(bare, "config.lock"), nil, 0o600))
			must(t, os.WriteFile(filepath.Join(filepath.Dir(bare), "index-1.lock"), nil, 0o600))
			must(t, os.MkdirAll(bare+".new", 0o750))
		},
	}
	for name, damage := range tests {
		for _, restart := range []bool{false, true} {
			if name == "locks left" && !restart {
				continue // a lock is stale only once its process is gone
			}
			t.Run(name+map[bool]string{true: ", restarted", false: ""}[restart], func(t *testing.T) {
				t.Parallel()
				remote := newRemote(t)
				o := Options{Dir: filepath.Join(t.TempDir(), "cache"), Remote: remote}
				r, err := Open(t.Context(), o)
				must(t, err)
				put(t, r, "a", "one\n")
				damage(t, r.bare())
				if restart {
					must(t, r.Close())
					r, err = Open(t.Context(), o)
					must(t, err)
				}
				defer func() { must(t, r.Close()) }()
				if s, err := r.Read(t.Context()); err != nil || string(s.Files["a"]) != "one\n" {
					t.Errorf("Read = %v, %v", s.Files, err)
				}
				want := put(t, r, "a", "two\n")
				if got, err := r.FileCommit(t.Context(), "a"); err != nil || got != want {
					t.Errorf("FileCommit = %s, %v; want %s", got, err, want)
				}
			})
		}
	}
}

func TestCommitOnDamagedCache(t *testing.T) {
	t.Parallel()
	r := open(t, newRemote(t))
	put(t, r, "a", "one\n")
	must(t, os.RemoveAll(filepath.Join(r.bare(), "objects")))
	put(t, r, "b", "two\n")
	s, err := r.Read(t.Context())
	must(t, err)
	if string(s.Files["a"]) != "one\n" || string(s.Files["b"]) != "two\n" {
		t.Errorf("files = %v", s.Files)
	}
}

// TestKilledPush kills git in the middle of the first push into a repository of this machine, where it holds the lock of the
// branch: nothing is removed while it lives, and the next CO makes the branch.
func TestKilledPush(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	hook := filepath.Join(remote, "hooks", "reference-transaction")
	must(t, os.MkdirAll(filepath.Dir(hook), 0o750))
	must(t, os.WriteFile(hook, []byte("#!/bin/sh\n[ \"$1\" = prepared ] || exit 0\n: >\"$0.runs\"\nexec sleep 600\n"), 0o700)) //nolint:gosec // git runs it
	ctx, kill := context.WithCancel(t.Context())
	pushed := make(chan error)
	first := open(t, remote)
	go func() {
		_, err := first.Sync(ctx)
		pushed <- err
	}()
	lock := filepath.Join(remote, "refs", "heads", "main.lock")
	testpart.Eventually(t, "the push holds the lock", func() bool {
		_, err := os.Stat(hook + ".runs")
		return err == nil
	})
	must(t, os.Chtimes(lock, time.Time{}, time.Now().Add(-time.Hour)))
	second := open(t, remote)
	if _, err := os.Stat(lock); err != nil {
		t.Fatalf("the lock of a living git was removed: %v", err)
	}
	if _, err := second.Sync(t.Context()); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), lock) {
		t.Errorf("a push meets a lock that is held: %v, want its path", err)
	}
	kill()
	if err := <-pushed; err == nil {
		t.Fatal("the push was not killed")
	}
	must(t, os.Remove(hook))
	if _, err := os.Stat(lock); err != nil {
		t.Fatalf("the killed git has left no lock: %v", err)
	}
	for name, r := range map[string]func() *Repo{
		"one that runs":      func() *Repo { return second },
		"one that is opened": func() *Repo { return open(t, remote) },
	} {
		must(t, os.WriteFile(lock, nil, 0o600))
		must(t, os.Chtimes(lock, time.Time{}, time.Now().Add(-time.Hour)))
		testpart.Within(t, time.Minute, name+" writes", func() error { // what was killed may end a little later
			_, err := r().Commit(t.Context(), Change{Message: "m", Files: map[string][]byte{name: []byte(name)}})
			return err
		})
	}
	byHand(t, remote, "fsck", "--strict")
}

func TestDirectoryIsLockedOnce(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Remote: newRemote(t)}
	r, err := Open(t.Context(), o)
	must(t, err)
	if _, err := Open(t.Context(), o); protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("second Open = %v, want conflict", err)
	}
	must(t, r.Close())
	r, err = Open(t.Context(), o)
	must(t, err)
	must(t, r.Close())
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"", ".", "..", "../a", "/a", "a/../b", "a//b", "a/", "-a", ".git/config", "a/.GIT/b", "a\x00b", `a\b`, "a\nb"} {
		if err := names.Path(p); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("names.Path(%q) = %v, want invalid", p, err)
		}
	}
	for _, ref := range []string{"", "-x", "a..b", "a@{1}", "a b", "a^", "a~1", "a:b", "x.lock", "a/", "+a", "a/.b"} {
		if err := names.Ref(ref); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("names.Ref(%q) = %v, want invalid", ref, err)
		}
	}
	for _, a := range []Author{{}, {"a", ""}, {"a>", "b"}, {"a", "b\nc"}} {
		if err := a.check(); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("check(%q) = %v, want invalid", a, err)
		}
	}
}

func TestNoPasswordInMessages(t *testing.T) {
	t.Parallel()
	r := open(t, "http://ann:secret@127.0.0.1:1/x.git")
	_, err := r.Sync(t.Context())
	if protocol.KindOf(err) != protocol.Unavailable || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "ann:***@127.0.0.1:1") {
		t.Errorf("Sync = %v", err)
	}
}

// TestUserConfigurationIsIgnored sets hooks and helpers in the places where git
// looks for a user's; none of them may be seen.
func TestUserConfigurationIsIgnored(t *testing.T) {
	home := t.TempDir()
	must(t, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[user]\nname = Eve\n[core]\nhooksPath = "+home+"\n[init]\ndefaultBranch = odd\n"), 0o600))
	t.Setenv("HOME", home)
	t.Setenv("GIT_AUTHOR_NAME", "Eve")
	t.Setenv("GIT_DIR", "/nowhere")
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.bare")
	t.Setenv("GIT_CONFIG_VALUE_0", "nonsense")
	r := open(t, newRemote(t))
	put(t, r, "a", "one\n")
	h, err := r.History(t.Context(), "a")
	must(t, err)
	if h[0].Author != "Colony" {
		t.Errorf("author = %s", h[0].Author)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eachFile(t *testing.T, dir string, do func(path string)) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			do(p)
		}
		return err
	}))
}

// TestRemovedBranch takes the branch from a remote that was read before: the cache
// must not begin it anew, which would remove all that runs.
func TestRemovedBranch(t *testing.T) {
	t.Parallel()
	remote := newRemote(t)
	r := open(t, remote)
	const path = "deployments/berlin/hello/deployment.yaml"
	head := put(t, r, path, "one\n")
	byHand(t, remote, "update-ref", "-d", "refs/heads/main")
	if _, err := r.Sync(t.Context()); protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "no branch main any more") {
		t.Errorf("Sync = %v, want Unavailable", err)
	}
	_, err := r.Commit(t.Context(), Change{Message: "Put", Files: map[string][]byte{path: []byte("two\n")}})
	if protocol.KindOf(err) != protocol.Unavailable {
		t.Errorf("Commit = %v, want Unavailable", err)
	}
	if s, err := r.Read(t.Context()); err != nil || string(s.Files[path]) != "one\n" {
		t.Errorf("Read = %q, %v", s.Files[path], err)
	}
	byHand(t, r.bare(), "push", "--quiet", remote, head+":refs/heads/main")
	if got, err := r.Sync(t.Context()); err != nil || got != head {
		t.Errorf("Sync = %q, %v; want %q", got, err, head)
	}
}
