// Package cache is the image cache of a site: a pull-through OCI registry (distribution
// specification 1.1, pull only) that the site's nodes pull from instead of the
// registries beyond the WAN. What it holds it serves while the WAN is down.
//
// Everything is stored under its digest and checked against it. A download that breaks
// resumes where it stopped, by itself and also after a restart, however short the link
// is up at a time. Any number of nodes that pull one blob cause one download. A client
// gets the blob as it arrives, so that it does not take a slow link for a dead registry,
// except for the last byte: that is sent once the digest of the whole is right, so that
// no client gets a whole blob that is wrong. So is a blob that is held: one that its disk
// has damaged is removed, reported, and downloaded again.
//
// A download that would leave too little room for others on the disk removes what the site
// does not need, then what was not used for the longest, or fails. What nothing at the site
// needs goes a week after its last use.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure a Cache. Dir and Default are required.
type Options struct {
	Dir string
	// Disk is where Dir is; nil: the file system of the machine.
	Disk disk.FS
	// Default is the base URL of the registry that is asked where Upstreams has no
	// entry for the host of an image: the CO's.
	Default string
	// Upstreams maps the host of an image to the base URL of its registry.
	Upstreams map[string]string
	// Images, unless nil, returns the images that the site needs, as host/repository@digest;
	// known is false where that is not known. It may be called concurrently.
	Images func() (images []string, known bool)
	// MaxBytes bounds the blobs; what the site does not need is removed first, and the least
	// recently used before others. Broken
	// downloads that may resume come on top, up to a quarter of it.
	// 0 means 20 GiB.
	MaxBytes int64
	// Spare, unless nil, returns how many bytes must stay free on the disk for others.
	Spare func() int64
	// Damaged, unless nil, is called for what the disk did not keep.
	Damaged func(*statefile.Damage)
	// Client makes the requests to registries; it bounds the wait for an answer. It must be given.
	Client *http.Client
	// Now is what the time of day is taken for, which may be wrong: it dates the last use of a
	// blob. Nil: time.Now.
	Now    func() time.Time
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

	counts counts
}

// counts are of this run.
type counts struct {
	hits, misses, failed atomic.Uint64
	fetched, evicted     atomic.Int64 // bytes
}

// Stats are how the cache is, and what it did in this run.
type Stats struct {
	// Bytes are those of the blobs that it holds, and MaxBytes the most that it may.
	Bytes, MaxBytes int64
	// Hits are requests for what it held, Misses those that it asked a registry for, and Failed those that it could not answer.
	Hits, Misses, Failed uint64
	// Fetched are the bytes that came from registries, and Evicted those of blobs that were removed to make room.
	Fetched, Evicted int64
}

// New opens the cache in o.Dir.
func New(o Options) (*Cache, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 20 << 30
	}
	o.Disk = disk.Or(o.Disk)
	if o.Images == nil {
		o.Images = func() ([]string, bool) { return nil, false }
	}
	if o.Spare == nil {
		o.Spare = func() int64 { return 0 }
	}
	if o.Damaged == nil {
		o.Damaged = func(*statefile.Damage) {}
	}
	if o.Client == nil {
		return nil, protocol.Errorf(protocol.Internal, "cache: no Client")
	}
	if o.Now == nil {
		o.Now = time.Now
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
		dir := filepath.Join(o.Dir, sub)
		if err := o.Disk.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("create cache: %w", err)
		}
		if err := atomicfile.Clean(o.Disk, dir); err != nil {
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

// Stats returns how the cache is.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Bytes: c.size, MaxBytes: c.opts.MaxBytes, Hits: c.counts.hits.Load(), Misses: c.counts.misses.Load(), Failed: c.counts.failed.Load(),
		Fetched: c.counts.fetched.Load(), Evicted: c.counts.evicted.Load(),
	}
}

// errAway is an upstream that does not answer.
func errAway(base string, err error) error {
	return protocol.Errorf(protocol.Unavailable, "the registry %s is not reachable, and the site does not hold this: %w", base, err)
}

var errNoSpace = errors.New("no space left for images at the site's local orchestrator")
