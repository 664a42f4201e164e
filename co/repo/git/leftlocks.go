package git

import (
	"context"
	"os"
	"strings"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/leftlocks"
	"github.com/colonyfleet/colony/protocol"
)

// besides is where the remote has its files, where that is on this machine; else "".
func (r *Repo) besides() string {
	path, isFile := strings.CutPrefix(r.opts.Remote, "file://")
	if !isFile && address.IsRemote(r.opts.Remote) {
		return ""
	}
	return gitDir(path)
}

// clearLocks removes the locks that a killed git has left in a remote of this machine, and reports whether there were some.
// The error names one that may be left as well.
func (r *Repo) clearLocks(ctx context.Context) (cleared bool, err error) {
	dir := r.besides()
	if dir == "" {
		return false, nil
	}
	removed, err := leftlocks.Clear(dir)
	if len(removed) > 0 {
		r.log.WarnContext(ctx, "a git that was killed had left locks in the deployments repository: they are removed", "locks", removed)
	}
	return len(removed) > 0, err
}

// writing says to other COs that this one writes into a remote of this machine, until the file is closed. It is nil where the
// remote is elsewhere, or cannot be written to, which the push says.
func (r *Repo) writing() *os.File {
	dir := r.besides()
	if dir == "" {
		return nil
	}
	f, err := leftlocks.Join(dir)
	if err != nil {
		return nil
	}
	return f
}

// locked is what a push has failed with that met a lock: that it is to be tried again, unless the lock stays.
func (r *Repo) locked(ctx context.Context) error {
	if cleared, err := r.clearLocks(ctx); err != nil && !cleared {
		return protocol.Errorf(protocol.Unavailable, "push to git remote %s: %w", r.Remote(), err)
	}
	return errRaced
}
