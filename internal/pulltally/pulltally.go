// Package pulltally counts how far the download of an image has come, as containerd
// fetches its parts: what was there before counts as downloaded.
package pulltally

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Tally adds up the progress of one pull. The zero value is ready. Its methods may
// be called concurrently.
type Tally struct {
	mu    sync.Mutex
	sizes map[digest.Digest]int64
	done  map[digest.Digest]int64
}

// Wrap returns a handler that calls h and notes the sizes of an image's parts as
// they become known, and the parts that are complete, be it because they were there
// before.
func (t *Tally) Wrap(h images.Handler) images.Handler {
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

func (t *Tally) expect(desc ocispec.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sizes == nil {
		t.sizes, t.done = map[digest.Digest]int64{}, map[digest.Digest]int64{}
	}
	t.sizes[desc.Digest] = desc.Size
}

// Expects reports whether a part belongs to the image.
func (t *Tally) Expects(d digest.Digest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.sizes[d]
	return ok
}

func (t *Tally) set(d digest.Digest, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size, ok := t.sizes[d]; ok {
		t.done[d] = min(bytes, size)
	}
}

// Complete counts everything as pulled: layers that were unpacked before are never
// fetched.
func (t *Tally) Complete() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d, size := range t.sizes {
		t.done[d] = size
	}
}

// progress returns the bytes that are there, and those that are known to be needed.
func (t *Tally) progress() (pulled, total uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d, size := range t.sizes {
		total += uint64(size)
		pulled += uint64(t.done[d])
	}
	return pulled, total
}

// Report calls f, on one goroutine, with each change of the bytes pulled and of
// their total, at most once in the time every. Stop reports the last state and waits.
func (t *Tally) Report(every time.Duration, f func(pulled, total uint64)) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		var lastPulled, lastTotal uint64
		for more := true; more; {
			select {
			case <-tick.C:
			case <-quit:
				more = false
			}
			if pulled, total := t.progress(); pulled != lastPulled || total != lastTotal {
				lastPulled, lastTotal = pulled, total
				f(pulled, total)
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// Resolver returns r with fetchers that count what they read.
func (t *Tally) Resolver(r remotes.Resolver) remotes.Resolver { return counting{r, t} }

// counting is a resolver whose fetchers count what they read.
type counting struct {
	remotes.Resolver
	tally *Tally
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
		return &countingReader{ReadCloser: rc, tally: c.tally, digest: desc.Digest}, nil
	}), nil
}

type countingReader struct {
	io.ReadCloser
	tally  *Tally
	digest digest.Digest
	at     int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.at += int64(n)
	r.tally.set(r.digest, r.at)
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
