package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/colonyfleet/colony/co/repo/git/program"
	"github.com/colonyfleet/colony/protocol"
)

const firstReadme = `# Deployments

This repository says what runs at each site of the fleet. Colony watches it: a
commit on this branch takes effect within seconds. The API and the command line
write here too, one commit for each change.

    deployments/<site>/<deployment>/deployment.yaml
    sites/<site>/site.yaml

Each deployment.yaml is a Margo ApplicationDeployment (specification 1.0.0-rc.3). Its
metadata.deviceId is <site>/<node>, or <site>/* to let the site choose; the site
must be that of the folder. To remove a deployment, remove its folder. A file that
is not valid changes nothing: its deployment keeps running as before, and an event
says what is wrong.

A site.yaml says what becomes of the machine data of a site. One that is not valid
keeps the rules that the site had.
`

// enter acquires the right to fetch and push; leave returns it.
func (r *Repo) enter(ctx context.Context) error {
	select {
	case r.remote <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Repo) leave() { <-r.remote }

// Sync brings the cache up to the remote and returns the head of its branch. A
// remote without the branch gets a first commit with a README. Errors are of kind
// Unavailable, name the remote, and leave the cache as it was.
func (r *Repo) Sync(ctx context.Context) (string, error) {
	if err := r.enter(ctx); err != nil {
		return "", err
	}
	defer r.leave()
	return r.sync(ctx)
}

// Head returns the head of the branch in the cache; where the cache has none, it asks the remote.
func (r *Repo) Head(ctx context.Context) (string, error) {
	head, err := r.cachedHead(ctx)
	if err != nil || head != "" {
		return head, err
	}
	return r.Sync(ctx)
}

// cachedHead returns "" where the cache holds no usable head.
func (r *Repo) cachedHead(ctx context.Context) (string, error) {
	r.cache.RLock()
	defer r.cache.RUnlock()
	out, err := r.local(ctx, "rev-parse", "--verify", "--quiet", remoteRef+"^{commit}")
	if err != nil {
		return "", ctx.Err()
	}
	return strings.TrimSpace(string(out)), nil
}

// local runs git on the cache.
func (r *Repo) local(ctx context.Context, args ...string) ([]byte, error) {
	return r.git.Run(ctx, program.Call{Cache: true, Dir: r.bare(), Args: args})
}

// sync is Sync for a caller that holds remote.
func (r *Repo) sync(ctx context.Context) (string, error) {
	theirs, err := r.remoteHead(ctx)
	if err != nil {
		return "", err
	}
	ours, err := r.cachedHead(ctx)
	if err != nil {
		return "", err
	}
	if theirs == "" && ours != "" {
		// To begin anew would remove all that runs. It may be a remote that was restored
		// in part, or a branch that was renamed: a person has to decide which.
		return "", protocol.Errorf(protocol.Unavailable,
			"git remote %s has no branch %s any more, which was at commit %.12s: push it again", r.Remote(), r.opts.Branch, ours)
	}
	if theirs == "" {
		if err := r.initialise(ctx); err != nil {
			return "", err
		}
		if theirs, err = r.remoteHead(ctx); err != nil {
			return "", err
		}
	}
	if ours == theirs {
		return ours, nil
	}
	if err := r.fetch(ctx, r.bare()); err != nil {
		if program.NoSpace(err) || ctx.Err() != nil {
			return "", r.unavailable("fetch", err)
		}
		// The remote answers and yet the fetch fails: it is the cache.
		r.log.WarnContext(ctx, "git cache is damaged, building it again", "remote", r.Remote(), "err", err)
		if err := r.rebuild(ctx); err != nil {
			return "", err
		}
	}
	r.written()
	return r.cachedHead(ctx)
}

// remoteHead asks the remote for its branch; "" means that it has none yet.
func (r *Repo) remoteHead(ctx context.Context) (string, error) {
	ref := "refs/heads/" + r.opts.Branch
	out, err := r.git.Run(ctx, program.Call{Args: []string{"ls-remote", "--quiet", "--", r.opts.Remote, ref}})
	if err != nil {
		return "", r.unavailable("reach", err)
	}
	for line := range strings.Lines(string(out)) {
		commit, name, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok && name == ref {
			return commit, nil
		}
	}
	return "", nil
}

func (r *Repo) fetch(ctx context.Context, dir string) error {
	r.cache.RLock()
	defer r.cache.RUnlock()
	_, err := r.git.Run(ctx, program.Call{Dir: dir, Progress: true, Args: []string{
		"fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--",
		r.opts.Remote, "+refs/heads/" + r.opts.Branch + ":" + remoteRef,
	}})
	return err
}

// rebuild replaces the cache by a new one, filled from the remote. The old one is
// retained until the new one is complete.
func (r *Repo) rebuild(ctx context.Context) error {
	fresh := r.bare() + ".new"
	if err := r.initBare(ctx, fresh); err != nil {
		return err
	}
	if err := r.fetch(ctx, fresh); err != nil {
		return r.unavailable("fetch", err)
	}
	r.cache.Lock()
	defer r.cache.Unlock()
	if err := os.RemoveAll(r.bare()); err != nil {
		return protocol.Errorf(protocol.Unavailable, "replace git cache: %w", err)
	}
	if err := os.Rename(fresh, r.bare()); err != nil {
		return protocol.Errorf(protocol.Unavailable, "replace git cache: %w", err)
	}
	return nil
}

// repaired runs a read of the cache. Where it fails for another reason than what
// was asked for, the cache is built again and the read is tried once more.
func (r *Repo) repaired(ctx context.Context, read func() error) error {
	err := r.sharing(read)
	if !program.Damaged(err) {
		return err
	}
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	r.log.WarnContext(ctx, "git cache is damaged, building it again", "remote", r.Remote(), "err", err)
	if err := r.rebuild(ctx); err != nil {
		return err
	}
	if err := r.sharing(read); err != nil {
		return protocol.Errorf(protocol.Internal, "read the cache of git remote %s: %w", r.Remote(), err)
	}
	return nil
}

func (r *Repo) sharing(read func() error) error {
	r.cache.RLock()
	defer r.cache.RUnlock()
	return read()
}

// initialise makes the first commit of an empty remote. Another one that was
// quicker is no error.
func (r *Repo) initialise(ctx context.Context) error {
	commit, err := r.build(ctx, "", []*write{{change: Change{
		Message: "Begin the deployments repository\n",
		Author:  r.opts.Author,
		Files:   map[string][]byte{"README.md": []byte(firstReadme)},
	}}})
	if err == nil {
		err = r.push(ctx, commit, "")
	}
	if errors.Is(err, errRaced) {
		return nil
	}
	return err
}

// unavailable describes a failed conversation with the remote.
func (r *Repo) unavailable(verb string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s git remote %s: %w", verb, r.Remote(), err)
	}
	return protocol.Errorf(protocol.Unavailable, "%s git remote %s: %w", verb, r.Remote(), err)
}
