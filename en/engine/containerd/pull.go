package containerd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/colonyfleet/colony/en/engine"
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
	unlock, err := e.locks.lock(ctx, "pull "+ref)
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
	var seen tally
	stop := seen.report(report)
	defer stop()
	err = e.fetch(ctx, ref, snapshotter, &seen)
	if engine.CodeOf(err) == protocol.DigestMismatch {
		// What an earlier, broken download left may be to blame.
		if err := e.dropPartial(ctx, &seen); err != nil {
			return err
		}
		if err = e.fetch(ctx, ref, snapshotter, &seen); engine.CodeOf(err) == protocol.DigestMismatch {
			return errors.Join(err, e.dropPartial(ctx, &seen))
		}
	}
	if err == nil {
		seen.complete()
	}
	return err
}

func (e *Engine) fetch(ctx context.Context, ref, snapshotter string, seen *tally) error {
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: e.hosts})
	img, err := e.client.Pull(ctx, ref,
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithPullLabel(labelOwned, "true"),
		// A layer's archive is of no use once it is unpacked.
		client.WithChildLabelMap(images.ChildGCLabelsFilterLayers),
		client.WithMaxConcurrentDownloads(3),
		client.WithResolver(counting{resolver, seen}),
		client.WithImageHandlerWrapper(seen.wrap))
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
func (e *Engine) dropPartial(ctx context.Context, seen *tally) error {
	store := e.client.ContentStore()
	partial, err := store.ListStatuses(ctx)
	if err != nil {
		return e.fault(err, protocol.InternalError, "list downloads")
	}
	for _, st := range partial {
		// layer-sha256:…
		if _, d, ok := strings.Cut(st.Ref, "-"); ok && seen.expects(digest.Digest(d)) {
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

func registryClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       30 * time.Second,
	}}
}

// hosts lists where images of a registry host are fetched, in order.
func (e *Engine) hosts(host string) ([]docker.RegistryHost, error) {
	var out []docker.RegistryHost
	add := func(scheme, address, path string) {
		auth := []docker.AuthorizerOpt{docker.WithAuthClient(e.http)}
		if e.opts.Credentials != nil {
			auth = append(auth, docker.WithAuthCreds(e.opts.Credentials))
		}
		out = append(out, docker.RegistryHost{
			Client: e.http, Authorizer: docker.NewDockerAuthorizer(auth...),
			Host: address, Scheme: scheme, Path: path + "/v2",
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		})
	}
	if e.opts.Mirror != "" {
		u, err := url.Parse(e.opts.Mirror)
		if err != nil {
			return nil, err
		}
		add(u.Scheme, u.Host, strings.TrimSuffix(u.Path, "/"))
	}
	if e.opts.MirrorOnly || len(out) > 0 && out[0].Host == host {
		return out, nil
	}
	address, err := docker.DefaultHost(host)
	if err != nil {
		return nil, err
	}
	scheme := "https"
	local, err := docker.MatchLocalhost(host)
	if err != nil {
		return nil, err
	}
	if local || slices.Contains(e.opts.PlainHTTP, host) {
		scheme = "http"
	}
	add(scheme, address, "")
	return out, nil
}

// A tally adds up the progress of one pull. The zero value is ready.
type tally struct {
	mu    sync.Mutex
	sizes map[digest.Digest]int64
	done  map[digest.Digest]int64
}

// wrap notes the sizes of an image's parts as they become known, and the parts
// that are complete, be it because they were there before.
func (t *tally) wrap(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		t.expect(desc)
		children, err := h.Handle(ctx, desc)
		if err != nil {
			return children, err
		}
		t.set(desc.Digest, desc.Size)
		for _, c := range children {
			t.expect(c)
		}
		return children, nil
	})
}

func (t *tally) expect(desc ocispec.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sizes == nil {
		t.sizes, t.done = map[digest.Digest]int64{}, map[digest.Digest]int64{}
	}
	t.sizes[desc.Digest] = desc.Size
}

func (t *tally) expects(d digest.Digest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.sizes[d]
	return ok
}

func (t *tally) set(d digest.Digest, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size, ok := t.sizes[d]; ok {
		t.done[d] = min(bytes, size)
	}
}

// complete counts everything as pulled: layers that were unpacked before are
// never fetched.
func (t *tally) complete() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d, size := range t.sizes {
		t.done[d] = size
	}
}

func (t *tally) progress() (p engine.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d, size := range t.sizes {
		p.Total += uint64(size)
		p.Pulled += uint64(t.done[d])
	}
	return p
}

// report calls f with each change until stop is called, which reports the last
// state and waits. F may be nil.
func (t *tally) report(f func(engine.Progress)) (stop func()) {
	if f == nil {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		var last engine.Progress
		for more := true; more; {
			select {
			case <-tick.C:
			case <-quit:
				more = false
			}
			if p := t.progress(); p != last {
				last = p
				f(p)
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// counting is a resolver whose fetchers count what they read.
type counting struct {
	remotes.Resolver
	seen *tally
}

func (c counting) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	f, err := c.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		rc, err := f.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		return &countingReader{ReadCloser: rc, seen: c.seen, digest: desc.Digest}, nil
	}), nil
}

type countingReader struct {
	io.ReadCloser
	seen   *tally
	digest digest.Digest
	at     int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.at += int64(n)
	r.seen.set(r.digest, r.at)
	return n, err
}

// Seek is how containerd resumes a download.
func (r *countingReader) Seek(offset int64, whence int) (int64, error) {
	s, ok := r.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	at, err := s.Seek(offset, whence)
	if err == nil {
		r.at = at
	}
	return at, err
}
