// Package cache is the image cache of a site: a pull-through OCI registry (distribution
// specification 1.1, pull only) that the site's nodes pull from instead of the
// registries beyond the WAN. What it holds it serves while the WAN is down.
//
// Everything is stored under its digest and checked against it. A download that breaks
// resumes where it stopped, by itself and also after a restart, however short the link
// is up at a time. Any number of nodes that pull one blob cause one download. A client
// gets the blob as it arrives, so that it does not take a slow link for a dead registry,
// except for the last byte: that is sent once the digest of the whole is right, so that
// no client gets a whole blob that is wrong.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// Options configure a Cache. Dir and Default are required.
type Options struct {
	Dir string
	// Default is the base URL of the registry that is asked where Upstreams has no
	// entry for the host of an image: the CO's.
	Default string
	// Upstreams maps the host of an image to the base URL of its registry.
	Upstreams map[string]string
	// MaxBytes bounds the blobs; the least recently used are removed first. Broken
	// downloads that may resume come on top, up to a quarter of it.
	// 0 means 20 GiB.
	MaxBytes int64
	// Client makes the requests. Nil: one with sane limits.
	Client *http.Client
	Logger *slog.Logger
}

// A Cache serves images. It is an http.Handler for /v2/, safe for concurrent use.
type Cache struct {
	opts   Options
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the life of the Cache, for downloads that outlive a request
	cancel context.CancelFunc

	mu        sync.Mutex
	downloads map[protocol.Digest]*download
	running   sync.WaitGroup
	size      int64 // bytes of all blobs
}

// New opens the cache in o.Dir.
func New(o Options) (*Cache, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 20 << 30
	}
	if o.Client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck,forcetypeassert // it is what net/http says it is
		t.ResponseHeaderTimeout = time.Minute
		t.DialContext = (&net.Dialer{Timeout: longestPause}).DialContext
		t.DisableCompression = true // a digest is that of the bytes as sent
		o.Client = &http.Client{Transport: t}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, base := range append([]string{o.Default}, values(o.Upstreams)...) {
		if u, err := url.Parse(base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, protocol.Errorf(protocol.Invalid, "registry %q: want http://host[:port] or https://host[:port]", base)
		}
	}
	c := &Cache{opts: o, log: o.Logger.With("component", "cache"), downloads: map[protocol.Digest]*download{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for _, sub := range []string{"blobs", "partial", "tags", "types"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o750); err != nil {
			return nil, fmt.Errorf("create cache: %w", err)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.Dir, "*", ".*.tmp-*")) // by a crash in the middle of a write
	if err != nil {
		return nil, fmt.Errorf("clean cache: %w", err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("clean cache: %w", err)
		}
	}
	blobs, err := c.list("blobs")
	if err != nil {
		return nil, err
	}
	for _, b := range blobs {
		c.size += b.Size()
	}
	return c, nil
}

func values(m map[string]string) []string {
	var out []string
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// Close ends the downloads; a later run resumes them.
func (c *Cache) Close() error {
	c.cancel()
	c.running.Wait()
	c.opts.Client.CloseIdleConnections()
	return nil
}

// Size returns how many bytes the cache holds.
func (c *Cache) Size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

func (c *Cache) blobPath(d protocol.Digest) string {
	return filepath.Join(c.opts.Dir, "blobs", hexOf(d))
}

func (c *Cache) partialPath(d protocol.Digest) string {
	return filepath.Join(c.opts.Dir, "partial", hexOf(d))
}

func (c *Cache) typePath(d protocol.Digest) string {
	return filepath.Join(c.opts.Dir, "types", hexOf(d))
}

func hexOf(d protocol.Digest) string { return strings.TrimPrefix(string(d), "sha256:") }

// list returns the files of a folder of the cache, the one that was not used for
// the longest first.
func (c *Cache) list(sub string) ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(filepath.Join(c.opts.Dir, sub))
	if err != nil {
		return nil, fmt.Errorf("read cache: %w", err)
	}
	var blobs []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			blobs = append(blobs, info)
		}
	}
	slices.SortFunc(blobs, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return blobs, nil
}

// has reports whether the blob is there, and marks it as used.
func (c *Cache) has(d protocol.Digest) bool {
	now := time.Now()
	return os.Chtimes(c.blobPath(d), now, now) == nil
}

// added counts a new blob and removes old ones past the limit.
func (c *Cache) added(d protocol.Digest) error {
	info, err := os.Stat(c.blobPath(d))
	if err != nil {
		return fmt.Errorf("look at new blob: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size += info.Size()
	if c.size <= c.opts.MaxBytes {
		return nil
	}
	blobs, err := c.list("blobs")
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if c.size <= c.opts.MaxBytes {
			break
		}
		if b.Name() == hexOf(d) {
			continue
		}
		// A request that reads it has it open and is not disturbed.
		if err := os.Remove(filepath.Join(c.opts.Dir, "blobs", b.Name())); err != nil {
			return fmt.Errorf("remove old blob: %w", err)
		}
		c.size -= b.Size()
		c.log.Info("image blob evicted", "digest", "sha256:"+b.Name(), "bytes", b.Size())
	}
	return nil
}

// errAway is an upstream that does not answer.
func errAway(base string, err error) error {
	return protocol.Errorf(protocol.Unavailable, "the registry %s is not reachable, and the site does not hold this: %w", base, err)
}

var errNoSpace = errors.New("no space left for images at the site")
