package git

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/program"
)

const (
	// maintainEvery is the number of fetches and commits between two runs of maintenance.
	maintainEvery = 200
	// maintainTimeout bounds one run of git in it.
	maintainTimeout = 10 * time.Minute
)

// written counts a fetch or a commit. The caller has entered.
func (r *Repo) written() {
	if r.writes++; r.writes >= maintainEvery {
		r.writes = 0
		r.worn.Notify()
	}
}

// Maintain packs the cache, and the remote where it is a repository of this machine, now and then
// until ctx ends: each commit of a large fleet leaves some hundred kilobytes of objects. No caller
// waits for it. Its failure costs only space.
func (r *Repo) Maintain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.worn.C():
		}
		r.saveChanges(ctx)
		r.cache.RLock()
		r.pack(ctx, r.bare())
		r.cache.RUnlock()
		if dir, ok := localDir(r.opts.Remote); ok {
			r.pack(ctx, gitDir(dir))
		}
	}
}

// pack packs a repository, and writes the graph of its commits, with filters of the paths that
// each one changed.
func (r *Repo) pack(ctx context.Context, dir string) {
	g := r.git
	g.Timeout = maintainTimeout
	for _, args := range [][]string{
		{"gc", "--quiet", "--prune=1.hour.ago"},
		{"commit-graph", "write", "--reachable", "--changed-paths", "--no-progress"},
	} {
		if _, err := g.Run(ctx, program.Call{Cache: true, Dir: dir, Args: args}); err != nil {
			if ctx.Err() == nil {
				r.log.WarnContext(ctx, "git maintenance failed", "repository", dir, "err", err)
			}
			return
		}
	}
}

// localDir returns the directory of a remote of this machine.
func localDir(remote string) (string, bool) {
	if dir, ok := strings.CutPrefix(remote, "file://"); ok {
		return dir, filepath.IsAbs(dir)
	}
	return remote, !address.IsRemote(remote)
}
