package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// maxPushes bounds how often one commit is put on top of another writer's.
const maxPushes = 50

// maxFile bounds a file of the repository, in bytes.
const maxFile = 1 << 20

// errRaced says that another writer pushed to the branch first.
var errRaced = errors.New("another commit was pushed first")

// A Change is one commit to be made.
type Change struct {
	// Message is the commit message.
	Message string
	// Author defaults to that of the Options.
	Author Author
	// Files maps paths to their new content; nil removes the path, with all that is
	// below it. Paths that are not named stay as they are.
	Files map[string][]byte
	// Expect maps paths to the last commit that changed them, as FileCommit returns
	// it; "" means that there is no such path. Paths that are not named may have
	// been changed by others.
	Expect map[string]string
}

// Commit makes a commit on the branch and pushes it. It returns the branch's head
// that has the change; where the change is there already, no commit is made.
// Concurrent writers, also those elsewhere, do not disturb it: it is put on top of
// theirs, until an expectation does not hold. Errors are of kind Conflict for that,
// Invalid for a bad change, Denied where the remote's rules refuse the push, and
// Unavailable, with nothing changed, where the remote is away.
func (r *Repo) Commit(ctx context.Context, c Change) (string, error) {
	if c.Author == (Author{}) {
		c.Author = r.opts.Author
	}
	if err := c.check(); err != nil {
		return "", err
	}
	if err := r.enter(ctx); err != nil {
		return "", err
	}
	defer r.leave()
	commit, err := r.commit(ctx, c)
	if err != nil {
		return "", err
	}
	r.housekeep(ctx)
	r.Poke()
	return commit, nil
}

func (c *Change) check() error {
	var errs []error
	if strings.TrimSpace(c.Message) == "" || strings.Contains(c.Message, "\x00") {
		errs = append(errs, protocol.Errorf(protocol.Invalid, "commit message is empty"))
	}
	if len(c.Files) == 0 {
		errs = append(errs, protocol.Errorf(protocol.Invalid, "commit changes no file"))
	}
	errs = append(errs, c.Author.check())
	for p, content := range c.Files {
		errs = append(errs, checkPath(p))
		if len(content) > maxFile {
			errs = append(errs, protocol.Errorf(protocol.Invalid, "file %s: %d bytes, the limit is %d", p, len(content), maxFile))
		}
	}
	for p, commit := range c.Expect {
		errs = append(errs, checkPath(p))
		if commit != "" {
			errs = append(errs, checkCommit(commit))
		}
	}
	return invalid(errors.Join(errs...))
}

// commit tries on the head of the cache first: that it is the remote's too is
// checked by the push itself, so the usual commit needs one conversation with the
// remote. Whatever goes wrong is tried again on a head that was just fetched.
func (r *Repo) commit(ctx context.Context, c Change) (string, error) {
	head, err := r.cachedHead(ctx)
	if err != nil {
		return "", err
	}
	if head != "" {
		commit, err := r.attempt(ctx, head, c)
		if err == nil && commit != head {
			return commit, nil
		}
		if err != nil && protocol.KindOf(err) == protocol.Denied {
			return "", err
		}
	}
	rebuilt := false
	// Full jitter, so that writers that meet do not meet again.
	tries := retry.Backoff{Policy: retry.Policy{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond, Jitter: 1}}
	for range maxPushes {
		if head, err = r.sync(ctx); err != nil {
			return "", err
		}
		commit, err := r.attempt(ctx, head, c)
		switch {
		case errors.Is(err, errRaced):
			err = tries.Wait(ctx)
		case damaged(err) && !rebuilt:
			rebuilt = true
			err = r.rebuild(ctx)
		default:
			return commit, err
		}
		if err != nil {
			return "", err
		}
	}
	return "", protocol.Errorf(protocol.Unavailable, "push to git remote %s: others were quicker %d times in a row: try again", r.Remote(), maxPushes)
}

// attempt puts the change on head and pushes it; errRaced means: try again.
func (r *Repo) attempt(ctx context.Context, head string, c Change) (string, error) {
	if err := r.expect(ctx, head, c.Expect); err != nil {
		return "", err
	}
	commit, err := r.build(ctx, head, c)
	if err != nil || commit == head {
		return commit, err
	}
	return commit, r.push(ctx, commit, head)
}

func (r *Repo) expect(ctx context.Context, head string, expect map[string]string) error {
	r.cache.RLock()
	defer r.cache.RUnlock()
	for _, p := range slices.Sorted(maps.Keys(expect)) {
		got, err := r.lastChange(ctx, head, p)
		if err != nil {
			return err
		}
		switch want := expect[p]; {
		case got == want:
		case want == "":
			return protocol.Errorf(protocol.Conflict, "%s exists already, since commit %.12s", p, got)
		case got == "":
			return protocol.Errorf(protocol.Conflict, "%s was removed by another writer after commit %.12s", p, want)
		default:
			return protocol.Errorf(protocol.Conflict, "%s was changed by another writer in commit %.12s, after commit %.12s: read it again", p, got, want)
		}
	}
	return nil
}

// build makes the commit in the cache, through an index of its own and without a
// work tree. It returns head where the change makes no difference.
func (r *Repo) build(ctx context.Context, head string, c Change) (string, error) {
	r.cache.RLock()
	defer r.cache.RUnlock()
	index, err := os.CreateTemp(r.opts.Dir, "index-*")
	if err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "create git index: %w", err)
	}
	_ = index.Close()
	defer os.Remove(index.Name()) //nolint:errcheck // removed at the next start otherwise
	// To git an empty file is a damaged index, and a missing file an empty one.
	if err := os.Remove(index.Name()); err != nil {
		return "", protocol.Errorf(protocol.Unavailable, "create git index: %w", err)
	}
	b := builder{git: r.git, dir: r.bare(), env: []string{"GIT_INDEX_FILE=" + index.Name()}}
	commit, err := b.commit(ctx, head, c)
	if err != nil && ctx.Err() == nil {
		return "", protocol.Errorf(protocol.Unavailable, "write commit to the git cache: %w", err)
	}
	return commit, err
}

// A builder makes one commit with a private index.
type builder struct {
	git git
	dir string
	env []string
}

func (b builder) run(ctx context.Context, stdin []byte, args ...string) (string, error) {
	out, err := b.git.run(ctx, call{cache: true, dir: b.dir, args: args, env: b.env, stdin: stdin})
	return strings.TrimSpace(string(out)), err
}

func (b builder) commit(ctx context.Context, head string, c Change) (string, error) {
	parent, before := []string{}, ""
	if head != "" {
		var err error
		if before, err = b.run(ctx, nil, "rev-parse", "--verify", head+"^{tree}"); err != nil {
			return "", err
		}
		if _, err := b.run(ctx, nil, "read-tree", head); err != nil {
			return "", err
		}
		parent = []string{"-p", head}
	}
	if err := b.stage(ctx, c.Files); err != nil {
		return "", err
	}
	tree, err := b.run(ctx, nil, "write-tree")
	if err != nil || tree == before {
		return head, err
	}
	b.env = append(slices.Clone(b.env),
		"GIT_AUTHOR_NAME="+c.Author.Name, "GIT_AUTHOR_EMAIL="+c.Author.Email,
		"GIT_COMMITTER_NAME="+c.Author.Name, "GIT_COMMITTER_EMAIL="+c.Author.Email)
	return b.run(ctx, []byte(strings.TrimRight(c.Message, "\n")+"\n"), append([]string{"commit-tree", tree}, parent...)...)
}

// stage enters the files into the index: removals first, so that a file may
// replace a directory.
func (b builder) stage(ctx context.Context, files map[string][]byte) error {
	var lines bytes.Buffer
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if files[p] != nil {
			continue
		}
		removed, err := b.run(ctx, nil, "ls-files", "-z", "--", p)
		if err != nil {
			return err
		}
		for below := range strings.SplitSeq(strings.TrimRight(removed, "\x00"), "\x00") {
			if below != "" {
				fmt.Fprintf(&lines, "0 %040d\t%s\x00", 0, below)
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if files[p] == nil {
			continue
		}
		oid, err := b.run(ctx, files[p], "hash-object", "-w", "--stdin")
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "100644 %s\t%s\x00", oid, p)
	}
	if lines.Len() == 0 {
		return nil
	}
	_, err := b.run(ctx, lines.Bytes(), "update-index", "--replace", "-z", "--index-info")
	return err
}

// push sets the remote's branch from old to commit, or fails with errRaced if it is
// not at old any more. The cache follows after the remote.
func (r *Repo) push(ctx context.Context, commit, old string) error {
	branch := "refs/heads/" + r.opts.Branch
	_, err := r.git.run(ctx, call{dir: r.bare(), args: []string{
		"push", "--quiet", "--no-verify", "--force-with-lease=" + branch + ":" + old, "--",
		r.opts.Remote, commit + ":" + branch,
	}})
	switch {
	case err == nil:
	case printed(err, "stale info", "fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref", "incorrect old value"):
		return errRaced
	case printed(err, "[remote rejected]", "hook declined"):
		return protocol.Errorf(protocol.Denied, "git remote %s refused the push: %w", r.Remote(), err)
	default:
		// The answer may have been lost after the remote accepted the commit.
		if head, asked := r.remoteHead(ctx); asked != nil || head != commit {
			return r.unavailable("push to", err)
		}
	}
	if _, err = r.local(ctx, "update-ref", remoteRef, commit); err != nil {
		// The commit stands; the cache follows with the next fetch.
		r.log.WarnContext(ctx, "git cache did not follow a push", "remote", r.Remote(), "err", err)
	}
	return nil
}
