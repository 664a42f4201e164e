package api

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// checkWait bounds how long a write waits for registries that are slow.
const checkWait = 10 * time.Second

// check says why a deployment must not be committed.
func (a *API) check(ctx context.Context, t intent.Target, d *v1rc3.Deployment) error {
	if a.opts.Check == nil {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	_, err := a.opts.Check(waiting, t, d)
	if err == nil || protocol.KindOf(err) == protocol.Invalid {
		return err
	}
	a.log.WarnContext(ctx, "deployment not checked before its commit", "site_id", t.Site, "deployment_id", t.Name, "err", err)
	return ctx.Err()
}

// failures are the versions of a deployment that failed on nodes.
type failures struct {
	api     *API
	target  intent.Target
	digests map[protocol.Digest]bool // read when they are asked for
	read    bool
}

// has reports whether the version that a revision asks for failed on a node when it ran there
// last. A revision that cannot be compiled now has not: the commit says why.
func (f *failures) has(ctx context.Context, d *v1rc3.Deployment) (bool, error) {
	if f.api.opts.Check == nil {
		return false, nil
	}
	if !f.read {
		transitions, err := f.api.opts.Deployments.Transitions(ctx, f.target.Site, f.target.Name, fleet.MaxLimit)
		if err != nil {
			return false, err
		}
		f.digests, f.read = failedVersions(transitions), true
	}
	if len(f.digests) == 0 {
		return false, nil
	}
	waiting, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	digest, err := f.api.opts.Check(waiting, f.target, d)
	if err != nil {
		return false, ctx.Err()
	}
	return f.digests[digest], nil
}

// failedVersions returns the versions whose last outcome on a node is a failure of their own.
// Transitions are the newest first.
func failedVersions(transitions []fleet.Transition) map[protocol.Digest]bool {
	type run struct {
		node    protocol.NodeID
		version protocol.Digest
	}
	known, failed := map[run]bool{}, map[protocol.Digest]bool{}
	for _, t := range transitions {
		r := run{t.Node, t.Digest}
		own := t.To == lifecycle.Failed && t.Actor == lifecycle.EN && t.Code.OfVersion()
		if known[r] || !own && t.To != lifecycle.Installed {
			continue
		}
		known[r] = true
		if own {
			failed[t.Digest] = true
		}
	}
	return failed
}
