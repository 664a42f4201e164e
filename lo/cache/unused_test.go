package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/protocol"
)

// image adds an image to the upstream: an index of one manifest with a config and a layer. It
// returns all digests, that of the index first.
func (u *upstream) image(name string) []protocol.Digest {
	config, layer := u.add(name, noise(100)), u.add(name, noise(1000))
	manifest := []byte(fmt.Sprintf(`{"config":{"digest":%q},"layers":[{"digest":%q}]}`, config, layer))
	index := []byte(fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, protocol.DigestOf(manifest)))
	for _, body := range [][]byte{manifest, index} {
		u.set(name+"/manifests/"+string(protocol.DigestOf(body)), body)
	}
	return []protocol.Digest{protocol.DigestOf(index), protocol.DigestOf(manifest), config, layer}
}

// pulled is a cache with two images, old and new, that it got now; the site needs what
// needs names.
func pulled(t *testing.T, max int64, images func() ([]string, bool)) (c *Cache, old, recent []protocol.Digest, d *simdisk.Disk) {
	t.Helper()
	u := newUpstream(t)
	d = simdisk.New(1)
	old, recent = u.image("old"), u.image("new")
	c, s := serve(t, u, Options{Dir: "/images", Disk: d, MaxBytes: max, Images: images})
	for n, image := range map[string][]protocol.Digest{"old": old, "new": recent} {
		for i, digest := range image {
			kind := "manifests"
			if i > 1 {
				kind = "blobs"
			}
			if resp, _ := get(t, s, "/v2/"+n+"/"+kind+"/"+string(digest)); resp.StatusCode != 200 {
				t.Fatalf("pull %s: %s", n, resp.Status)
			}
		}
	}
	return c, old, recent, d
}

func held(t *testing.T, c *Cache, digests []protocol.Digest) (n int) {
	t.Helper()
	for _, d := range digests {
		if _, err := c.opts.Disk.Stat(c.blobPath(d)); err == nil {
			n++
		}
	}
	return n
}

// TestReclaims removes the whole image that nothing needs, a week after its last use, and no
// byte of the one that the site needs, however old.
func TestReclaims(t *testing.T) {
	t.Parallel()
	var need []string
	known := true
	c, old, recent, _ := pulled(t, 0, func() ([]string, bool) { return need, known })
	need = []string{"registry.colony/old@" + string(old[0])}
	late := time.Now().Add(keepUnused + time.Minute)
	must(t, c.reclaim(time.Now()))
	if held(t, c, recent) != 4 {
		t.Error("an image that was just used is removed")
	}
	known = false
	must(t, c.reclaim(late))
	if held(t, c, recent) != 4 {
		t.Error("an image is removed though it is not known what the site needs")
	}
	known = true
	before := c.Stats().Bytes
	must(t, c.reclaim(late))
	if held(t, c, old) != 4 || held(t, c, recent) != 0 {
		t.Errorf("%d of 4 blobs are left of what the site needs, %d of what it does not", held(t, c, old), held(t, c, recent))
	}
	if c.Stats().Bytes >= before {
		t.Errorf("it counts %d bytes, was %d", c.Stats().Bytes, before)
	}
	if names, err := c.opts.Disk.List("/images/types"); err != nil || len(names) != 4 {
		t.Errorf("%d media types are left, want those of the 4 blobs: %v", len(names), err)
	}
}

// TestClockThatWasSetBack dates the last use of blobs by a clock that is ten years ahead: after it
// is set back they count as used from then on, and are removed in time.
func TestClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	c, old, recent, _ := pulled(t, 0, func() ([]string, bool) { return nil, true })
	ahead := time.Now().AddDate(10, 0, 0)
	c.opts.Now = func() time.Time { return ahead }
	for _, d := range append(old, recent...) {
		c.has(d)
	}
	now := time.Now()
	must(t, c.reclaim(now))
	if got := held(t, c, old) + held(t, c, recent); got != 8 {
		t.Errorf("%d of 8 blobs are left when the clock is set back", got)
	}
	must(t, c.reclaim(now.Add(keepUnused+time.Minute)))
	if got := held(t, c, old) + held(t, c, recent); got != 0 {
		t.Errorf("%d blobs are left after nobody used them for %s", got, keepUnused)
	}
}

// TestEvictsWhatNothingNeeds removes what the site does not need before what it needs and did
// not use for longer.
func TestEvictsWhatNothingNeeds(t *testing.T) {
	t.Parallel()
	var need []string
	c, old, recent, d := pulled(t, 4000, func() ([]string, bool) { return need, true })
	need = []string{"registry.colony/old@" + string(old[0])}
	for i, digests := range [][]protocol.Digest{old, recent} {
		for _, digest := range digests {
			must(t, d.Chtimes(c.blobPath(digest), time.Unix(int64(i+1), 0)))
		}
	}
	c.opts.MaxBytes = c.Stats().Bytes - 1
	c.mu.Lock()
	err := c.evict("", func() (bool, error) { return c.size <= c.opts.MaxBytes, nil })
	c.mu.Unlock()
	must(t, err)
	if held(t, c, old) != 4 || held(t, c, recent) == 4 {
		t.Errorf("%d of 4 blobs are left of what the site needs, %d of what it does not", held(t, c, old), held(t, c, recent))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
