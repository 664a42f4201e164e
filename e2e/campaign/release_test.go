package campaign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// oldest is the first release that later ones work with.
const oldest = "0.2.0"

// A commit is a release in the history: the newest commit that changed VERSION to its version.
type commit struct{ id, version string }

// releases returns the releases of a clone from oldest on, the newest first. Their commits
// are found by what is in VERSION, so that a history that was written anew has them, too.
// Where the clone does not have the one of oldest, the error says what to do.
func releases(clone string) ([]commit, error) {
	out, err := run(clone, "git", "log", "--format=%H", "--", "VERSION")
	if err != nil {
		return nil, fmt.Errorf("the releases are looked up in the history: %w: run the test in a git clone", err)
	}
	var found []commit
	for id := range strings.FieldsSeq(out) {
		version, err := run(clone, "git", "show", id+":VERSION")
		if err != nil {
			continue // this commit removed it
		}
		version = strings.TrimSpace(version)
		if len(found) == 0 || found[len(found)-1].version != version {
			found = append(found, commit{id, version})
		}
		if version == oldest {
			return found, nil
		}
	}
	shallow, err := run(clone, "git", "rev-parse", "--is-shallow-repository")
	if err == nil && strings.TrimSpace(shallow) == "true" {
		return nil, fmt.Errorf("this clone is shallow, and the commit of release %s is not in it: git fetch --unshallow", oldest)
	}
	return nil, errors.Join(err, fmt.Errorf("no commit of this clone changes VERSION to %s: fetch the branch main with its history", oldest))
}

// programs builds the programs of a release below bin/releases, once for each commit.
func programs(t testing.TB, c commit) release {
	t.Helper()
	to, err := filepath.Abs(filepath.Join("../../bin/releases", c.version+"-"+c.id[:12]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(to); err == nil {
		return release(to)
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	source := t.TempDir()
	tar := filepath.Join(source, "source.tar")
	fresh, err := os.MkdirTemp(filepath.Join(filepath.Dir(filepath.Dir(to))), "release-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh) // it is renamed where all went well
	root, err := run(".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatal(err)
	}
	steps := [][]string{
		{strings.TrimSpace(root), "git", "archive", "-o", tar, c.id},
		{source, "tar", "-xf", tar},
	}
	for _, name := range []string{"colony", "colony-en", "colony-init"} {
		steps = append(steps, []string{source, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=" + c.version, "-o", fresh + "/", "./cmd/" + name})
	}
	for _, step := range steps {
		if _, err := run(step[0], step[1], step[2:]...); err != nil {
			t.Fatalf("build release %s from commit %s: %v", c.version, c.id, err)
		}
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Chmod(fresh, 0o755), os.Rename(fresh, to))
	if _, there := os.Stat(to); err != nil && there != nil { // else a test beside this one was faster, with the same
		t.Fatal(err)
	}
	return release(to)
}

func run(dir, program string, args ...string) (stdout string, err error) {
	cmd := exec.Command(program, args...)
	// Another user may own the clone, as in a container.
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// TestReleases looks releases up in clones: a whole one, one whose history was written anew
// and one that does not have the release.
func TestReleases(t *testing.T) {
	dir := t.TempDir()
	git := func(in string, args ...string) string {
		t.Helper()
		out, err := run(in, "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	whole := filepath.Join(dir, "whole")
	git(dir, "init", "-q", whole)
	ids := map[string]string{}
	release := func(version string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(whole, "VERSION"), []byte(version+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		git(whole, "add", "-A")
		git(whole, "commit", "-q", "-m", version)
		ids[version] = git(whole, "rev-parse", "HEAD")
	}
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0"} {
		release(version)
	}
	git(whole, "commit", "-q", "--allow-empty", "-m", "later")
	found, err := releases(whole)
	if err != nil || len(found) != 2 || found[0] != (commit{ids["0.3.0"], "0.3.0"}) || found[1] != (commit{ids["0.2.0"], "0.2.0"}) {
		t.Errorf("found %+v, %v; want 0.3.0 and 0.2.0 of %v", found, err, ids)
	}
	git(whole, "commit", "-q", "--amend", "--allow-empty", "-m", "written anew")
	if again, err := releases(whole); err != nil || len(again) != 2 {
		t.Errorf("in a history that was written anew: %+v, %v", again, err)
	}
	shallow := filepath.Join(dir, "shallow")
	git(dir, "clone", "-q", "--depth", "1", "file://"+whole, shallow)
	if found, err := releases(shallow); err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("in a shallow clone: %+v, %v; want what to do", found, err)
	}
	none := filepath.Join(dir, "none")
	git(dir, "init", "-q", none)
	if found, err := releases(none); err == nil {
		t.Errorf("in a clone without releases: %+v", found)
	}
}
