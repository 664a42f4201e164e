package cache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// A source says where a blob or manifest comes from.
type source struct {
	base string // URL of the registry
	path string // below /v2/
}

func (c *Cache) upstream(host string) string {
	if base, ok := c.opts.Upstreams[host]; ok {
		return strings.TrimSuffix(base, "/")
	}
	return strings.TrimSuffix(c.opts.Default, "/")
}

// fetch makes the blob present. Concurrent calls share one download, which continues
// when their clients are disconnected.
func (c *Cache) fetch(ctx context.Context, d protocol.Digest, from source) error {
	if c.has(d) {
		return nil
	}
	dl, err := c.begin(d, from)
	if err != nil {
		return err
	}
	select {
	case <-dl.done:
		return dl.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin returns the download of a blob, which it starts where there is none.
func (c *Cache) begin(d protocol.Digest, from source) (*download, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "the site's image cache stops")
	}
	if dl, ok := c.downloads[d]; ok {
		return dl, nil
	}
	dl := newDownload(d, from)
	c.downloads[d] = dl
	c.running.Go(func() {
		dl.err = c.download(c.ctx, dl)
		c.mu.Lock()
		delete(c.downloads, d)
		c.mu.Unlock()
		close(dl.done)
	})
	return dl, nil
}

// download fetches the blob into its partial file, checks it, and gives it its
// name. A partial file of an earlier try is continued. Once it has begun, a link
// that breaks ends it only after patience.
func (c *Cache) download(ctx context.Context, dl *download) error {
	if c.has(dl.digest) { // another download ended since the caller looked
		return nil
	}
	if err := c.sweep(); err != nil {
		return err
	}
	path := c.partialPath(dl.digest)
	f, err := statefile.Open(c.opts.Disk, path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return noSpace("open partial blob", err)
	}
	defer f.Close() //nolint:errcheck // closed with its error below
	if err := dl.resume(f); err != nil {
		return err
	}
	defer func() { // nothing came: so there is nothing to continue
		if info, err := c.opts.Disk.Stat(path); err == nil && info.Size() == 0 {
			_ = c.opts.Disk.Remove(path)
		}
	}()
	tries, heard := retry.Backoff{Policy: retry.Policy{Min: firstPause, Max: longestPause}}, time.Now()
	for {
		before := dl.progress()
		mediaType, err := c.attempt(ctx, dl, f)
		if err == nil {
			return c.finish(dl, f, mediaType)
		}
		if ctx.Err() != nil || protocol.KindOf(err) != protocol.Unavailable || errors.Is(err, errNoSpace) {
			return err
		}
		if dl.progress() > before {
			tries.Reset()
			heard = time.Now()
			continue
		}
		if !dl.begun() || time.Since(heard) > patience {
			return err
		}
		if tries.Wait(ctx) != nil {
			return err
		}
	}
}

// attempt asks once for what is missing (RFC 9110, section 14) and stores what
// comes. It returns the media type.
func (c *Cache) attempt(ctx context.Context, dl *download, f disk.File) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	have := dl.progress()
	resp, err := c.ask(ctx, dl.from, have)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	mediaType := resp.Header.Get("Content-Type")
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if total := totalOf(resp.Header.Get("Content-Range"), have); total > 0 {
			dl.expect(total)
		} else {
			return "", errAway(dl.from.base, fmt.Errorf("asked for the bytes from %d on, it sends %q", have, resp.Header.Get("Content-Range")))
		}
	case http.StatusRequestedRangeNotSatisfiable: // it is all there already, or more
		return mediaType, nil
	case http.StatusOK:
		if err := dl.restart(f); err != nil {
			return "", fmt.Errorf("restart partial blob: %w", err)
		}
		dl.expect(resp.ContentLength)
	default:
		return "", refusal(dl.from, resp)
	}
	if err := c.room(dl.missing()); err != nil {
		return "", err
	}
	watch := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing arrived for %s", silence)) })
	defer watch.Stop()
	n, err := io.Copy(c.writer(dl, f), watchedReader{resp.Body, watch})
	c.counts.fetched.Add(n)
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, errNoSpace) {
			_ = c.opts.Disk.Remove(c.partialPath(dl.digest))
			return "", noSpace("store blob", err)
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", errAway(dl.from.base, err)
	}
	return mediaType, nil
}

// finish checks a complete partial file and makes it the blob.
func (c *Cache) finish(dl *download, f disk.File, mediaType string) error {
	if got := "sha256:" + hex.EncodeToString(dl.sum.Sum(nil)); got != string(dl.digest) {
		_ = c.opts.Disk.Remove(c.partialPath(dl.digest))
		return protocol.Errorf(protocol.Unavailable, "the registry %s sent a blob with another digest than requested: want %s, got %s", dl.from.base, dl.digest, got)
	}
	if err := c.keep(f, dl.digest, mediaType); err != nil {
		return err
	}
	return c.added(dl.digest)
}

// sweep removes the oldest partial files that are not being downloaded, as far as all
// partial files together are more than a quarter of what the cache may hold.
func (c *Cache) sweep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	partial, err := c.list("partial")
	if err != nil {
		return err
	}
	var size int64
	for _, p := range partial {
		size += p.Size()
	}
	for _, p := range partial {
		if size <= c.opts.MaxBytes/4 {
			break
		}
		if c.downloads[protocol.Digest("sha256:"+p.Name())] != nil {
			continue
		}
		if err := c.opts.Disk.Remove(filepath.Join(c.opts.Dir, "partial", p.Name())); err != nil {
			return fmt.Errorf("remove abandoned download: %w", err)
		}
		size -= p.Size()
		c.log.Info("abandoned download removed", "digest", "sha256:"+p.Name(), "bytes", p.Size())
	}
	return nil
}

// keep makes a complete partial file the blob.
func (c *Cache) keep(f disk.File, d protocol.Digest, mediaType string) error {
	if err := c.typeFile(d).Save([]byte(mediaType)); err != nil {
		return noSpace("store media type", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return noSpace("flush blob", err)
	}
	if err := c.opts.Disk.Rename(c.partialPath(d), c.blobPath(d)); err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	return c.opts.Disk.SyncDir(c.opts.Dir + "/blobs")
}

// ask requests a blob or manifest, from the byte have on.
func (c *Cache) ask(ctx context.Context, from source, have int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.base+"/v2/"+from.path, nil)
	if err != nil {
		return nil, fmt.Errorf("address of the registry: %w", err)
	}
	req.Header.Set("Accept", accepted)
	if have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
	}
	resp, err := c.opts.Client.Do(req)
	if err != nil {
		return nil, errAway(from.base, err)
	}
	return resp, nil
}

// accepted are the media types of manifests that are asked for.
const accepted = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, " +
	"application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json, */*"

// refusal turns the answer of a registry into an error.
func refusal(from source, resp *http.Response) error {
	kind := protocol.Unavailable
	switch resp.StatusCode {
	case http.StatusNotFound:
		kind = protocol.NotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = protocol.Denied
	}
	return protocol.Errorf(kind, "the registry %s answers %s for %s", from.base, resp.Status, from.path)
}

// noSpace gives an error its kind.
func noSpace(what string, err error) error {
	if errors.Is(err, errNoSpace) {
		return err
	}
	if errors.Is(err, syscall.ENOSPC) {
		return protocol.Errorf(protocol.Unavailable, "%s: %w: %w: free some space on its disk, or enlarge it", what, errNoSpace, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
