package containerd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/pulltally"
	"github.com/colonyfleet/colony/protocol"
)

// reportEvery is the time between two reports of progress.
const reportEvery = 100 * time.Millisecond

// Pull makes an image present and unpacked.
func (e *Engine) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	_, d, ok := strings.Cut(ref, "@")
	if _, err := protocol.ParseDigest(d); !ok || err != nil {
		return engine.Errorf(protocol.ImageNotFound, "image %q: want host/repository@sha256:…", ref)
	}
	ctx = e.in(ctx)
	unlock, err := e.locks.Lock(ctx, "pull "+ref)
	if err != nil {
		return err
	}
	defer unlock()
	snapshotter, err := e.snapshots(ctx)
	if err != nil {
		return err
	}
	if ok, err := e.present(ctx, ref, snapshotter); err != nil || ok {
		return err
	}
	seen := new(pulltally.Tally)
	stop := seen.Report(reportEvery, func(pulled, total uint64) {
		if report != nil {
			report(engine.Progress{Pulled: pulled, Total: total})
		}
	})
	defer stop()
	err = e.fetch(ctx, ref, snapshotter, seen)
	if engine.CodeOf(err) == protocol.DigestMismatch {
		// What an earlier, broken download left may be to blame.
		if err := e.dropPartial(ctx, seen); err != nil {
			return err
		}
		if err = e.fetch(ctx, ref, snapshotter, seen); engine.CodeOf(err) == protocol.DigestMismatch {
			return errors.Join(err, e.dropPartial(ctx, seen))
		}
	}
	if err == nil {
		seen.Complete()
	}
	return err
}

func (e *Engine) fetch(ctx context.Context, ref, snapshotter string, seen *pulltally.Tally) error {
	ctx, done, err := e.lease(ctx)
	if err != nil {
		return err
	}
	defer done()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: e.registries.Hosts})
	img, err := e.client.Pull(ctx, ref,
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithPullLabel(labelOwned, "true"),
		// A layer's archive is of no use once it is unpacked.
		client.WithChildLabelMap(images.ChildGCLabelsFilterLayers),
		client.WithMaxConcurrentDownloads(3),
		client.WithResolver(seen.Resolver(resolver)),
		client.WithImageHandlerWrapper(seen.Wrap))
	if err != nil {
		return e.pullFault(err, ref)
	}
	// An index is searched for our platform, but a lone manifest is taken as it is.
	spec, err := img.Spec(ctx)
	if err != nil {
		return e.pullFault(err, ref)
	}
	if !platforms.Default().Match(spec.Platform) {
		if err := e.client.ImageService().Delete(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
			return e.pullFault(err, ref)
		}
		return engine.Errorf(protocol.Incompatible, "pull %s: the image is made for %s, this node is %s",
			ref, platforms.Format(spec.Platform), platforms.Format(platforms.DefaultSpec()))
	}
	return nil
}

// dropPartial throws away what was downloaded of parts that are not complete.
func (e *Engine) dropPartial(ctx context.Context, seen *pulltally.Tally) error {
	store := e.client.ContentStore()
	partial, err := store.ListStatuses(ctx)
	if err != nil {
		return e.fault(err, protocol.InternalError, "list downloads")
	}
	for _, st := range partial {
		// layer-sha256:…
		if _, d, ok := strings.Cut(st.Ref, "-"); ok && seen.Expects(digest.Digest(d)) {
			if err := store.Abort(ctx, st.Ref); err != nil && !errdefs.IsNotFound(err) {
				return e.fault(err, protocol.InternalError, "drop a broken download")
			}
		}
	}
	return nil
}

// present reports whether an image is there and unpacked.
func (e *Engine) present(ctx context.Context, ref, snapshotter string) (bool, error) {
	img, err := e.client.GetImage(ctx, ref)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, e.fault(err, protocol.InternalError, "look up image "+ref)
	}
	// An error here means that parts are missing, which a pull repairs.
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err != nil && away(err) {
		return false, e.fault(err, protocol.InternalError, "look up image "+ref)
	}
	return err == nil && unpacked, nil
}
