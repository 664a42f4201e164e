package git

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/protocol"
)

// bundleTimeout bounds the work on a whole repository.
const bundleTimeout = time.Hour

// Bundle writes all branches and tags of a repository of this machine into a file, of which
// Unbundle makes the repository again. It reports false, and writes nothing, where there is
// no repository, or none with commits.
func Bundle(ctx context.Context, repo, file string) (bool, error) {
	g, dir, file, done, err := bundled(repo, file)
	if err != nil {
		return false, err
	}
	defer done()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if has, err := hasCommits(ctx, g, dir); err != nil || !has {
		return false, err
	}
	if _, err := g.Run(ctx, program.Call{Dir: gitDir(dir), Args: []string{"bundle", "create", "--quiet", file, "--all"}}); err != nil {
		return false, protocol.Errorf(protocol.Unavailable, "bundle repository %s: %w", repo, err)
	}
	return true, nil
}

// Unbundle makes a bare repository of a bundle. It reports true, and changes nothing, where
// the repository has commits already.
func Unbundle(ctx context.Context, file, repo string) (existed bool, err error) {
	g, dir, file, done, err := bundled(repo, file)
	if err != nil {
		return false, err
	}
	defer done()
	if _, err := os.Stat(dir); err == nil {
		if has, err := hasCommits(ctx, g, dir); err != nil || has {
			return has, err
		}
	}
	if err := InitBare(ctx, dir, "main"); err != nil {
		return false, err
	}
	if _, err := g.Run(ctx, program.Call{Dir: gitDir(dir), Args: []string{"fetch", "--quiet", file, "+refs/*:refs/*"}}); err != nil {
		return false, protocol.Errorf(protocol.Unavailable, "make repository %s of its bundle: %w", repo, err)
	}
	return false, nil
}

// bundled returns a git, and the absolute paths of a repository and of a file, for work with
// both. done ends it.
func bundled(repo, file string) (g program.Git, dir, bundle string, done func(), err error) {
	if dir, err = absolutePath(repo); err != nil {
		return g, "", "", nil, err
	}
	if bundle, err = filepath.Abs(file); err != nil {
		return g, "", "", nil, protocol.Errorf(protocol.Invalid, "bundle %s of repository %s: %w", file, repo, err)
	}
	g, done, err = scratch()
	return g, dir, bundle, done, err
}

// scratch returns a git with a home of its own, which done removes.
func scratch() (g program.Git, done func(), err error) {
	home, err := os.MkdirTemp("", "colony-git-")
	if err != nil {
		return g, nil, protocol.Errorf(protocol.Unavailable, "make a directory for git: %w", err)
	}
	g = program.Git{Home: home, Timeout: bundleTimeout}
	return g, func() { _ = os.RemoveAll(home) }, g.WriteConfig("")
}

func absolutePath(repo string) (string, error) {
	if err := address.Check(repo); err != nil {
		return "", err
	}
	dir, err := filepath.Abs(repo)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "path of repository %s: %w", repo, err)
	}
	return dir, nil
}

// gitDir is where the repository at dir has its files: dir itself where it is bare.
func gitDir(dir string) string {
	if fi, err := os.Stat(filepath.Join(dir, ".git")); err == nil && fi.IsDir() {
		return filepath.Join(dir, ".git")
	}
	return dir
}

func hasCommits(ctx context.Context, g program.Git, dir string) (bool, error) {
	out, err := g.Run(ctx, program.Call{Dir: gitDir(dir), Args: []string{"for-each-ref", "--count=1"}})
	if err != nil {
		return false, protocol.Errorf(protocol.Unavailable, "look at repository %s: %w", dir, err)
	}
	return strings.TrimSpace(string(out)) != "", nil
}
