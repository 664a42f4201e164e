package cache

import (
	"context"
	"crypto/sha256"
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

	"github.com/colonyfleet/colony/internal/atomicfile"
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

// fetch makes the blob present. Concurrent calls share one download, which goes
// on when those who asked for it went away.
func (c *Cache) fetch(ctx context.Context, d protocol.Digest, from source) error {
	if c.has(d) {
		return nil
	}
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return protocol.Errorf(protocol.Unavailable, "the site's image cache stops")
	}
	dl, ok := c.downloads[d]
	if !ok {
		dl = &download{done: make(chan struct{})}
		c.downloads[d] = dl
		c.running.Go(func() {
			dl.err = c.download(c.ctx, d, from)
			c.mu.Lock()
			delete(c.downloads, d)
			c.mu.Unlock()
			close(dl.done)
		})
	}
	c.mu.Unlock()
	select {
	case <-dl.done:
		return dl.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// download fetches the blob into its partial file, checks it, and gives it its
// name. A partial file of an earlier try is continued (RFC 9110, section 14).
func (c *Cache) download(ctx context.Context, d protocol.Digest, from source) error {
	if c.has(d) { // another download ended since the caller looked
		return nil
	}
	if err := c.sweep(); err != nil {
		return err
	}
	f, err := os.OpenFile(c.partialPath(d), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return noSpace("open partial blob", err)
	}
	defer f.Close() //nolint:errcheck // closed with its error below
	sum := sha256.New()
	have, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("read partial blob: %w", err)
	}
	defer func() { // nothing came: so there is nothing to continue
		if info, err := os.Stat(c.partialPath(d)); err == nil && info.Size() == 0 {
			_ = os.Remove(c.partialPath(d))
		}
	}()
	resp, err := c.ask(ctx, from, have)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable: // it is all there already, or more
	case http.StatusOK:
		sum.Reset()
		if err := errors.Join(f.Truncate(0), seekStart(f)); err != nil {
			return fmt.Errorf("restart partial blob: %w", err)
		}
	default:
		return refusal(from, resp)
	}
	if resp.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		if _, err := io.Copy(io.MultiWriter(f, sum), resp.Body); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				_ = os.Remove(c.partialPath(d))
				return noSpace("store blob", err)
			}
			return errAway(from.base, err)
		}
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != string(d) {
		_ = os.Remove(c.partialPath(d))
		return protocol.Errorf(protocol.Unavailable, "the registry %s sent other bytes than it was asked for: want %s, got %s", from.base, d, got)
	}
	if err := c.keep(f, d, resp.Header.Get("Content-Type")); err != nil {
		return err
	}
	return c.added(d)
}

// sweep removes the oldest partial files that nobody downloads now, as far as all
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
		if err := os.Remove(filepath.Join(c.opts.Dir, "partial", p.Name())); err != nil {
			return fmt.Errorf("remove abandoned download: %w", err)
		}
		size -= p.Size()
		c.log.Info("abandoned download removed", "digest", "sha256:"+p.Name(), "bytes", p.Size())
	}
	return nil
}

// keep makes a complete partial file the blob.
func (c *Cache) keep(f *os.File, d protocol.Digest, mediaType string) error {
	if err := atomicfile.Write(c.typePath(d), []byte(mediaType), 0o640); err != nil {
		return noSpace("store media type", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return noSpace("flush blob", err)
	}
	if err := os.Rename(c.partialPath(d), c.blobPath(d)); err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	return atomicfile.SyncDir(c.opts.Dir + "/blobs")
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

func noSpace(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return protocol.Errorf(protocol.Unavailable, "%s: %w", what, errors.Join(errNoSpace, err))
	}
	return fmt.Errorf("%s: %w", what, err)
}

func seekStart(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}
