package git

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/repo/git/leftlocks"
	"github.com/colonyfleet/colony/co/repo/git/names"

	"github.com/colonyfleet/colony/co/repo/git/program"
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

// Commit makes a commit on the branch and pushes it. It returns a commit of the branch
// that has the change; where the change is there already, no commit is made.
// Concurrent writers, also those elsewhere, do not disturb it: it is put on top of
// theirs, until an expectation does not hold. Calls that wait at the same time are pushed
// together, each with a commit and an outcome of its own. Errors are of kind Conflict for that,
// Invalid for a bad change, Denied where the remote's rules refuse the push, and
// Unavailable, with nothing changed, where the remote is away.
func (r *Repo) Commit(ctx context.Context, c Change) (string, error) {
	if c.Author == (Author{}) {
		c.Author = r.opts.Author
	}
	if err := c.check(); err != nil {
		return "", err
	}
	if r.opts.Stamp != nil {
		c.Message = r.opts.Stamp(ctx, c.Message)
	}
	commit, err := r.commitInTurn(ctx, c)
	if err == nil && r.opts.OnCommit != nil {
		r.opts.OnCommit(ctx, commit)
	}
	return commit, err
}

// commitInTurn commits a change together with those that wait for the remote meanwhile.
func (r *Repo) commitInTurn(ctx context.Context, c Change) (string, error) {
	w := &write{change: c, done: make(chan struct{})}
	r.writers.add(w)
	for {
		select {
		case <-w.done:
			return w.commit, w.err
		default:
		}
		select {
		case r.remote <- struct{}{}:
			r.lead(ctx, w)
		case <-w.done:
		case <-ctx.Done():
			if r.writers.withdraw(w) {
				return "", context.Cause(ctx)
			}
			<-w.done // the goroutine that took it answers it
		}
	}
}

// lead commits what waits, for a caller that has entered.
func (r *Repo) lead(ctx context.Context, own *write) {
	defer r.leave()
	list := r.writers.batch()
	if len(list) == 0 {
		return // another caller has committed it
	}
	if len(list) > 1 || list[0] != own {
		ctx = context.WithoutCancel(ctx) // it is not the caller's alone
	}
	r.commitAll(ctx, list)
	r.written()
	r.Notify()
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
		errs = append(errs, names.Path(p))
		if len(content) > maxFile {
			errs = append(errs, protocol.Errorf(protocol.Invalid, "file %s: %d bytes, the limit is %d", p, len(content), maxFile))
		}
	}
	for p, commit := range c.Expect {
		errs = append(errs, names.Path(p))
		if commit != "" {
			errs = append(errs, names.Commit(commit))
		}
	}
	return invalid(errors.Join(errs...))
}

// commitAll commits changes that do not touch each other, and answers each.
func (r *Repo) commitAll(ctx context.Context, list []*write) {
	err := r.commit(ctx, list)
	if err != nil && protocol.KindOf(err) == protocol.Denied && len(list) > 1 {
		// The remote's rules may refuse one of them.
		for _, w := range list {
			r.commitAll(ctx, []*write{w})
		}
		return
	}
	for _, w := range list {
		if err != nil && !w.pushed {
			w.commit, w.err = "", err
		}
		close(w.done)
	}
}

// commit first tries on the head of the cache: the push itself checks that this is the remote's
// head, too, so the usual commit needs one exchange with the remote. After any failure it tries
// again on a head that was just fetched. An error means that nothing was pushed.
func (r *Repo) commit(ctx context.Context, list []*write) error {
	head, err := r.cachedHead(ctx)
	if err != nil {
		return err
	}
	if head != "" {
		err := r.attempt(ctx, head, list)
		if list = unpushed(list); err != nil && protocol.KindOf(err) == protocol.Denied || err == nil && len(list) == 0 {
			return err
		}
	}
	rebuilt := false
	// Full jitter, so that writers that meet do not meet again.
	tries := retry.Backoff{Policy: retry.Policy{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond, Jitter: 1}}
	for range maxPushes {
		if head, err = r.sync(ctx); err != nil {
			return err
		}
		err := r.attempt(ctx, head, list)
		switch {
		case errors.Is(err, errRaced):
			err = tries.Wait(ctx)
		case program.Damaged(err) && !rebuilt:
			rebuilt = true
			err = r.rebuild(ctx)
		default:
			return err
		}
		if err != nil {
			return err
		}
	}
	return protocol.Errorf(protocol.Unavailable, "push to git remote %s: others were quicker %d times in a row: try again", r.Remote(), maxPushes)
}

// attempt puts the changes on head and pushes them; errRaced means: try again. Each has its
// outcome where there is no error.
func (r *Repo) attempt(ctx context.Context, head string, list []*write) error {
	var ready []*write
	for _, w := range list {
		w.commit, w.err = "", r.expect(ctx, head, w.change.Expect)
		switch {
		case w.err == nil:
			ready = append(ready, w)
		case protocol.KindOf(w.err) != protocol.Conflict:
			return w.err
		}
	}
	if len(ready) == 0 {
		return nil
	}
	tip, err := r.build(ctx, head, ready)
	if err != nil || tip == head {
		return err
	}
	if err := r.push(ctx, tip, head); err != nil {
		return err
	}
	for _, w := range ready {
		w.pushed = w.commit != head
	}
	r.pushed(ctx, head, ready)
	return nil
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

// push sets the remote's branch from old to commit, or fails with errRaced if it is
// not at old any more. The cache follows after the remote.
func (r *Repo) push(ctx context.Context, commit, old string) error {
	branch := "refs/heads/" + r.opts.Branch
	held := leftlocks.Join(r.besides())
	_, err := r.git.Run(ctx, program.Call{Dir: r.bare(), Held: held, Args: []string{
		"push", "--quiet", "--no-verify", "--force-with-lease=" + branch + ":" + old, "--",
		r.opts.Remote, commit + ":" + branch,
	}})
	if held != nil {
		_ = held.Close() // nothing was written to it
	}
	switch {
	case err == nil:
	case program.Printed(err, ".lock': File exists"):
		if cleared, err := leftlocks.Clear(r.besides(), r.log); err != nil && !cleared {
			return protocol.Errorf(protocol.Unavailable, "push to git remote %s: %w", r.Remote(), err)
		}
		return errRaced
	case program.Printed(err, "stale info", "fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref", "incorrect old value"):
		return errRaced
	case program.Printed(err, "[remote rejected]", "hook declined"):
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
