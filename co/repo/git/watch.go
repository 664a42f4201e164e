package git

import (
	"context"
	"errors"
	"time"
)

// DefaultInterval is how often Watch asks the remote.
const DefaultInterval = 2 * time.Second

// Notify makes Watch ask the remote now. It never blocks.
func (r *Repo) Notify() {
	r.asked.Notify()
}

// Watch follows the branch until ctx ends. It fetches from the remote every interval (0 means
// DefaultInterval) and at each Notify. It calls changed with the head when it is first known, and
// each time that any writer changed it. A remote that is not reachable is asked again at the same
// pace; Options.OnReach is called once for it. It returns nil when ctx ends. Only one Watch may run
// at a time.
func (r *Repo) Watch(ctx context.Context, interval time.Duration, changed func(commit string)) error {
	if interval <= 0 {
		interval = DefaultInterval
	}
	timer := time.NewTimer(interval)
	defer timer.Stop()
	seen, reachable := "", true
	for {
		head, err := r.Sync(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is how a watch ends
		}
		if (err == nil) != reachable {
			reachable = err == nil
			r.reached(ctx, err)
		}
		if err == nil && head != seen {
			seen = head
			changed(head)
		}
		timer.Reset(interval)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-r.asked.C():
		}
	}
}

func (r *Repo) reached(ctx context.Context, err error) {
	switch {
	case err == nil:
		r.log.InfoContext(ctx, "git remote is reachable", "remote", r.Remote())
	case errors.Is(err, context.Canceled):
		return
	default:
		r.log.WarnContext(ctx, "git remote is unreachable", "remote", r.Remote(), "err", err)
	}
	if r.opts.OnReach != nil {
		r.opts.OnReach(ctx, r.Remote(), err)
	}
}
