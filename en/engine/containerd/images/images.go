// Package images pulls the images of containers into containerd, and removes those that it pulled
// and that are not needed any more.
package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/leftover"
	"github.com/colonyfleet/colony/internal/keylock"
	"github.com/colonyfleet/colony/internal/pulltally"
	"github.com/colonyfleet/colony/internal/registryhosts"
	"github.com/colonyfleet/colony/protocol"
)

// Options say with what images are pulled.
type Options struct {
	Client     *client.Client
	Registries *registryhosts.Client
	// Snapshotter returns the name of the one to unpack images with.
	Snapshotter func(context.Context) (string, error)
	// Lease returns a context whose work is kept until done is called.
	Lease func(context.Context) (held context.Context, done func(), err error)
	// Fault makes an error an engine.Error, with a code that the error itself shows, or else
	// with this one. Away reports whether it says that the daemon does not answer.
	Fault func(err error, code protocol.Code, what string) error
	Away  func(error) bool
}

// A Store is the images of a node. Its methods may be called concurrently, with contexts that
// have containerd's namespace.
type Store struct {
	Options
	locks keylock.Locks // by the reference of an image
}

// New returns the images of a node.
func New(o Options) *Store { return &Store{Options: o} }

// labelOwned marks images that we pulled.
const labelOwned = "colony.owned"

// reportEvery is the time between two reports of progress.
const reportEvery = 100 * time.Millisecond

// Pull makes an image present and unpacked.
func (s *Store) Pull(ctx context.Context, ref string, report func(engine.Progress)) error {
	_, d, ok := strings.Cut(ref, "@")
	if _, err := protocol.ParseDigest(d); !ok || err != nil {
		return engine.Errorf(protocol.ImageNotFound, "image %q: want host/repository@sha256:…", ref)
	}
	unlock, err := s.locks.Lock(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	snapshotter, err := s.Snapshotter(ctx)
	if err != nil {
		return err
	}
	if ok, err := s.present(ctx, ref, snapshotter); err != nil || ok {
		return err
	}
	seen := new(pulltally.Tally)
	stop := seen.Report(reportEvery, func(pulled, total uint64) {
		if report != nil {
			report(engine.Progress{Pulled: pulled, Total: total})
		}
	})
	defer stop()
	err = s.fetch(ctx, ref, snapshotter, seen)
	if engine.CodeOf(err) == protocol.DigestMismatch {
		// What an earlier, broken download left may be to blame.
		if err := s.dropPartial(ctx, seen); err != nil {
			return err
		}
		if err = s.fetch(ctx, ref, snapshotter, seen); engine.CodeOf(err) == protocol.DigestMismatch {
			return errors.Join(err, s.dropPartial(ctx, seen))
		}
	}
	if err == nil {
		seen.Complete()
	}
	return err
}

func (s *Store) fetch(ctx context.Context, ref, snapshotter string, seen *pulltally.Tally) error {
	ctx, done, err := s.Lease(ctx)
	if err != nil {
		return err
	}
	defer done()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: s.Registries.Hosts})
	how := []client.RemoteOpt{
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithPullLabel(labelOwned, "true"),
		// A layer's archive is of no use once it is unpacked.
		client.WithChildLabelMap(images.ChildGCLabelsFilterLayers),
		client.WithMaxConcurrentDownloads(3),
		client.WithResolver(seen.Resolver(resolver)),
		client.WithImageHandlerWrapper(seen.Wrap),
	}
	var img client.Image
	if err := leftover.Moved(func() (err error) {
		img, err = s.Client.Pull(ctx, ref, how...)
		return err
	}); err != nil {
		return s.pullFault(err, ref)
	}
	// An index is searched for our platform, but a lone manifest is taken as it is.
	spec, err := img.Spec(ctx)
	if err != nil {
		return s.pullFault(err, ref)
	}
	if !platforms.Default().Match(spec.Platform) {
		if err := s.Client.ImageService().Delete(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
			return s.pullFault(err, ref)
		}
		return engine.Errorf(protocol.Incompatible, "pull %s: the image is made for %s, this node is %s",
			ref, platforms.Format(spec.Platform), platforms.Format(platforms.DefaultSpec()))
	}
	return nil
}

// dropPartial throws away what was downloaded of parts that are not complete.
func (s *Store) dropPartial(ctx context.Context, seen *pulltally.Tally) error {
	store := s.Client.ContentStore()
	partial, err := store.ListStatuses(ctx)
	if err != nil {
		return s.Fault(err, protocol.InternalError, "list downloads")
	}
	for _, st := range partial {
		// layer-sha256:…
		if _, d, ok := strings.Cut(st.Ref, "-"); ok && seen.Expects(digest.Digest(d)) {
			if err := store.Abort(ctx, st.Ref); err != nil && !errdefs.IsNotFound(err) {
				return s.Fault(err, protocol.InternalError, "drop a broken download")
			}
		}
	}
	return nil
}

// present reports whether an image is there and unpacked.
func (s *Store) present(ctx context.Context, ref, snapshotter string) (bool, error) {
	img, err := s.Client.GetImage(ctx, ref)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, s.Fault(err, protocol.InternalError, "look up image "+ref)
	}
	// An error here means that parts are missing, which a pull repairs.
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err != nil && s.Away(err) {
		return false, s.Fault(err, protocol.InternalError, "look up image "+ref)
	}
	return err == nil && unpacked, nil
}

// Sweep removes images that this store pulled and that are not in use. The daemon then collects
// their content and snapshots.
func (s *Store) Sweep(ctx context.Context, keep []string) error {
	records, err := s.Client.ContainerService().List(ctx)
	if err != nil {
		return s.Fault(err, protocol.InternalError, "list containers")
	}
	for _, r := range records {
		keep = append(slices.Clip(keep), r.Image)
	}
	pulled, err := s.Client.ImageService().List(ctx, `labels."`+labelOwned+`"==true`)
	if err != nil {
		return s.Fault(err, protocol.InternalError, "list images")
	}
	var errs []error
	for _, img := range pulled {
		if slices.Contains(keep, img.Name) {
			continue
		}
		if err := s.Client.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, s.Fault(err, protocol.InternalError, "remove image "+img.Name))
		}
	}
	return errors.Join(errs...)
}

func stalled(err error) bool {
	_, ok := errors.AsType[*registryhosts.StallError](err)
	return ok
}

// saidBy returns, after a colon, what a registry says of a refusal in its answer; "": nothing.
func saidBy(refusal remoteerrors.ErrUnexpectedStatus) string {
	if _, message := answerOf(refusal); message != "" {
		return ": " + message
	}
	return ""
}

// answerOf returns the first error of the answer of a registry, by the distribution specification; empty: it has none.
func answerOf(refusal remoteerrors.ErrUnexpectedStatus) (code, message string) {
	var answer struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(refusal.Body, &answer) != nil || len(answer.Errors) == 0 {
		return "", ""
	}
	return answer.Errors[0].Code, answer.Errors[0].Message
}

// noRoom is the fault of a pull that a registry refused for want of room. That of an LO's image cache has a code of its own.
func noRoom(what string, refusal remoteerrors.ErrUnexpectedStatus) error {
	where := "the disk of the registry, or of the site's image cache,"
	code, message := answerOf(refusal)
	if code == "NO_SPACE" {
		where = "the image cache of the site's local orchestrator"
	}
	return engine.Errorf(protocol.NoSpace, "%s: %s has no room for it: %s: %w", what, where, cmp.Or(message, "free some space there"), refusal)
}

// pullFault is fault for errors of a pull.
func (s *Store) pullFault(err error, ref string) error {
	what := "pull " + ref
	var unexpected remoteerrors.ErrUnexpectedStatus
	var netErr net.Error
	switch text := err.Error(); {
	case errors.As(err, &unexpected) && (unexpected.StatusCode == http.StatusUnauthorized || unexpected.StatusCode == http.StatusForbidden),
		errors.Is(err, docker.ErrInvalidAuthorization):
		return engine.Errorf(protocol.ImageUnauthorized, "%s: the registry refuses access, check the credentials of the node: %w", what, err)
	case errors.As(err, &unexpected) && unexpected.StatusCode == http.StatusInsufficientStorage:
		return noRoom(what, unexpected)
	case strings.Contains(text, "no match for platform"):
		return engine.Errorf(protocol.Incompatible, "%s: the image is not made for this node's platform: %w", what, err)
	case strings.Contains(text, "unexpected commit digest"), strings.Contains(text, "unexpected commit size"),
		strings.Contains(text, "failed size validation"), strings.Contains(text, "wrong diff id"):
		return engine.Errorf(protocol.DigestMismatch, "%s: the registry served other bytes than the digest names: %w", what, err)
	case errdefs.IsNotFound(err):
		if mirror := s.Registries.Only(); mirror != "" {
			return engine.Errorf(protocol.ImageNotFound, "%s: the mirror %s does not have it, and this node asks no other registry (engine.mirrorOnly): "+
				"push the image to the registry of the mirror, that of the CO where it is an LO, or let the node ask others: %w", what, mirror, err)
		}
		return engine.Errorf(protocol.ImageNotFound, "%s: the registry does not have it: %w", what, err)
	case errors.As(err, &unexpected) && (unexpected.StatusCode >= http.StatusInternalServerError || unexpected.StatusCode == http.StatusTooManyRequests):
		return engine.Errorf(protocol.RegistryUnavailable, "%s: the registry answers %s%s", what, unexpected.Status, saidBy(unexpected))
	case errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(text, "unexpected EOF"):
		return engine.Errorf(protocol.RegistryUnavailable, "%s: the connection to the registry broke: %w", what, err)
	case stalled(err):
		return engine.Errorf(protocol.RegistryUnavailable, "%s: the registry stalled: %w", what, err)
	case !s.Away(err) && !errors.Is(err, context.Canceled) && errors.As(err, &netErr):
		return engine.Errorf(protocol.RegistryUnavailable, "%s: no registry can be reached: %w", what, err)
	default:
		return s.Fault(err, protocol.InternalError, what)
	}
}
