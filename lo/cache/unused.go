package cache

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// keepUnused is how long a blob that nothing needs is kept after its last use: an image of the
	// version before, or one that a node pulls for another program.
	keepUnused = 7 * 24 * time.Hour
	// reclaimEvery is how often is looked for blobs that nothing needs.
	reclaimEvery = time.Hour
)

// Run removes the blobs that nothing at the site needs, some time after their last use,
// until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	tick := time.NewTicker(reclaimEvery)
	defer tick.Stop()
	for {
		if err := c.reclaim(c.opts.Now()); err != nil {
			c.log.WarnContext(ctx, "image cache not cleaned, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reclaim removes the blobs that nothing needs and that were not used for keepUnused. If it is
// unknown what the site needs, it removes nothing.
func (c *Cache) reclaim(now time.Time) error {
	needed, known := c.needed()
	if !known {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	blobs, err := c.list("blobs")
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if needed[b.Name()] {
			continue
		}
		if b.ModTime().After(now) { // the clock was set back: its last use counts from now on
			if err := c.opts.Disk.Chtimes(filepath.Join(c.opts.Dir, "blobs", b.Name()), now); err != nil {
				return fmt.Errorf("date the last use of a blob: %w", err)
			}
			continue
		}
		if now.Sub(b.ModTime()) < keepUnused {
			continue
		}
		if err := c.drop(b); err != nil {
			return err
		}
		c.log.Info("image blob removed that nothing at the site needs", "digest", "sha256:"+b.Name(), "bytes", b.Size())
	}
	return nil
}

// drop removes a blob. The caller holds mu.
func (c *Cache) drop(b fs.FileInfo) error {
	// A request that reads it has it open and is not disturbed.
	if err := c.opts.Disk.Remove(filepath.Join(c.opts.Dir, "blobs", b.Name())); err != nil {
		return err
	}
	c.size -= b.Size()
	return c.typeFile(protocol.Digest("sha256:" + b.Name())).Remove()
}

// needed returns the names of the blobs that the images of the site consist of, as far as
// their manifests are here; known is false where it is not known which images those are.
func (c *Cache) needed() (names map[string]bool, known bool) {
	names = map[string]bool{}
	images, known := c.opts.Images()
	if !known {
		return names, false
	}
	var left []string
	for _, image := range images {
		_, digest, _ := strings.Cut(image, "@")
		left = append(left, digest)
	}
	for len(left) > 0 {
		d, err := protocol.ParseDigest(left[0])
		left = left[1:]
		if err != nil || names[hexOf(d)] {
			continue
		}
		names[hexOf(d)] = true
		left = append(left, c.namedBy(d)...)
	}
	return names, true
}

// namedBy returns the digests that a manifest names; nothing of one that is not here.
func (c *Cache) namedBy(d protocol.Digest) (digests []string) {
	b, err := c.open(d)
	if err != nil {
		return nil
	}
	defer b.Close() //nolint:errcheck // read only
	if b.size > maxManifest {
		return nil
	}
	body := make([]byte, b.size)
	if _, err := b.ReadAt(body, 0); err != nil {
		return nil
	}
	type descriptor struct {
		Digest string `json:"digest"`
	}
	var m struct {
		Config    descriptor   `json:"config"`
		Layers    []descriptor `json:"layers"`
		Manifests []descriptor `json:"manifests"`
	}
	if json.Unmarshal(body, &m) != nil {
		return nil
	}
	for _, v := range slices.Concat([]descriptor{m.Config}, m.Layers, m.Manifests) {
		digests = append(digests, v.Digest)
	}
	return digests
}
