package containerd

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/idfile"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/shims"
	"github.com/colonyfleet/colony/protocol"
)

// Sweep removes what no deployment needs any more.
func (e *Engine) Sweep(ctx context.Context, o engine.SweepOptions) error {
	ctx = e.in(ctx)
	ids, err := e.known(ctx)
	errs := []error{err}
	for _, id := range ids {
		if slices.Contains(o.Removed, id.Deployment) {
			errs = append(errs, e.Remove(ctx, id))
		}
	}
	errs = append(errs, e.programs.Sweep(ctx, slices.Collect(maps.Keys(ids))), e.sweepStrays(ctx, ids), e.sweepLeases(ctx), e.sweepNetworks(ctx, o.Removed))
	if !o.KeepAllImages {
		errs = append(errs, e.images.Sweep(ctx, o.KeepImages))
	}
	return errors.Join(errs...)
}

// emptyDir removes all that is in a directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// known returns the containers that containerd has and those of which only our
// own files are left.
func (e *Engine) known(ctx context.Context) (map[string]engine.ID, error) {
	out := map[string]engine.ID{}
	records, err := e.client.ContainerService().List(ctx, `labels."`+marks.Name+`"`)
	if err != nil {
		return nil, e.fault(err, protocol.InternalError, "list containers")
	}
	for _, r := range records {
		out[r.ID] = marks.IDOf(r.Labels)
	}
	ids, damaged, err := idfile.All(e.dir(""), marks.Key)
	if err != nil { // it must not hold up every other removal
		e.log.WarnContext(ctx, "ids of containers not read, left out", "err", err)
	}
	for _, d := range damaged {
		e.opts.damage(d)
		// What has no record runs nothing.
		if id, ok := out[d.Name]; ok {
			if err := idfile.Save(e.dir(""), d.Name, id); err != nil {
				e.log.WarnContext(ctx, "id of a container not stored again", "container", d.Name, "err", err)
			}
		}
	}
	maps.Copy(out, ids)
	return out, nil
}

// sweepStrays ends the shims and takes down the attachments that belong to no
// container that is known.
func (e *Engine) sweepStrays(ctx context.Context, ids map[string]engine.ID) error {
	strays := map[string]bool{}
	running, err := shims.Find(e.opts.Address, e.opts.Namespace)
	if err != nil {
		return err
	}
	for _, s := range running {
		strays[s.Container] = true
	}
	held, err := e.net.Held()
	if err != nil {
		return err
	}
	for _, k := range held {
		strays[k] = true
	}
	var errs []error
	for k := range strays {
		if _, ok := ids[k]; !ok {
			errs = append(errs, e.removeStray(ctx, k))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) removeStray(ctx context.Context, k string) error {
	unlock, err := e.locks.Lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = e.client.ContainerService().Get(ctx, k)
	if !errdefs.IsNotFound(err) {
		return err // it was made meanwhile
	}
	if err := e.clearLeftovers(ctx, k); err != nil {
		return err
	}
	e.names.Forget(k)
	e.forward.Remove(k)
	return e.net.Detach(ctx, k)
}

// lease returns ctx with a lease, which keeps what is made until done is called.
func (e *Engine) lease(ctx context.Context) (held context.Context, done func(), err error) {
	held, done, err = e.leases.Hold(ctx)
	if err != nil {
		return nil, nil, e.fault(err, protocol.InternalError, "hold what is being made")
	}
	return held, done, nil
}

func (e *Engine) sweepLeases(ctx context.Context) error {
	if err := e.leases.Sweep(ctx); err != nil {
		return e.fault(err, protocol.InternalError, "drop leftover leases")
	}
	return nil
}

// sweepNetworks removes the networks of deployments that were removed, and what damage of
// files has left of networks.
func (e *Engine) sweepNetworks(ctx context.Context, removed []protocol.DeploymentName) error {
	names, err := e.net.Names()
	if err != nil {
		return err
	}
	attached, err := e.net.All()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, a := range attached {
		used[a.Network] = true
	}
	var errs []error
	for _, name := range names {
		network := bridgenet.NetworkOf(name)
		if slices.Contains(removed, protocol.DeploymentName(network)) && !used[network] {
			errs = append(errs, e.net.Forget(name))
		}
	}
	errs = append(errs, e.net.Sweep(ctx, func() (map[string]bool, error) {
		ids, err := e.known(ctx)
		out := make(map[string]bool, len(ids))
		for k := range ids {
			out[k] = true
		}
		return out, err
	}))
	return errors.Join(errs...)
}
