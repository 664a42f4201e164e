package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// BlobRole is the Role of a damaged blob or manifest, whose Name is its digest.
const BlobRole = "lo/image"

func (c *Cache) blobPath(d protocol.Digest) string {
	return filepath.Join(c.opts.Dir, "blobs", hexOf(d))
}

func (c *Cache) partialPath(d protocol.Digest) string {
	return filepath.Join(c.opts.Dir, "partial", hexOf(d))
}

func hexOf(d protocol.Digest) string { return strings.TrimPrefix(string(d), "sha256:") }

// typeFile holds the media type of a manifest.
func (c *Cache) typeFile(d protocol.Digest) statefile.File {
	return statefile.File{
		Disk: c.opts.Disk, Identity: statefile.Identity{Role: "lo/image/type", Name: string(d)},
		Path: filepath.Join(c.opts.Dir, "types", hexOf(d)),
	}
}

// tagFile holds the digest that a tag had last.
func (c *Cache) tagFile(ns, path string) statefile.File {
	sum := sha256.Sum256([]byte(ns + "\x00" + path))
	name := hex.EncodeToString(sum[:])
	return statefile.File{
		Disk: c.opts.Disk, Identity: statefile.Identity{Role: "lo/image/tag", Name: name},
		Path: filepath.Join(c.opts.Dir, "tags", name),
	}
}

// load reads a small file. What is damaged counts as not held.
func (c *Cache) load(f statefile.File, decode func(text string) error) (found bool) {
	found, err := f.Load(func(b []byte) error { return decode(strings.TrimSpace(string(b))) })
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		c.opts.Damaged(d)
	} else if err != nil {
		c.log.Warn("what is known of an image cannot be read", "err", err)
	}
	return found
}

// mediaType returns that of a manifest: as it was sent, or as it says itself.
func (c *Cache) mediaType(d protocol.Digest, manifest []byte) string {
	media := ""
	if c.load(c.typeFile(d), func(text string) error {
		media = text
		_, _, err := mime.ParseMediaType(text)
		return err
	}) {
		return media
	}
	var m struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	_ = json.Unmarshal(manifest, &m) // what is no manifest gets the general type
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Manifests != nil:
		return "application/vnd.oci.image.index.v1+json"
	}
	return "application/vnd.oci.image.manifest.v1+json"
}

// list returns the files of a folder of the cache, the one that was not used for
// the longest first.
func (c *Cache) list(sub string) ([]fs.FileInfo, error) {
	entries, err := c.opts.Disk.List(filepath.Join(c.opts.Dir, sub))
	if err != nil {
		return nil, fmt.Errorf("read cache: %w", err)
	}
	var blobs []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			blobs = append(blobs, info)
		}
	}
	slices.SortStableFunc(blobs, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return blobs, nil
}

// has reports whether the blob is there, and marks it as used.
func (c *Cache) has(d protocol.Digest) bool {
	return c.opts.Disk.Chtimes(c.blobPath(d), c.opts.Now()) == nil
}

// added counts a new blob and removes old ones past the limit.
func (c *Cache) added(d protocol.Digest) error {
	info, err := c.opts.Disk.Stat(c.blobPath(d))
	if err != nil {
		return fmt.Errorf("look at new blob: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size += info.Size()
	return c.evict(d, func() (bool, error) { return c.size <= c.opts.MaxBytes, nil })
}

// evict removes blobs until enough reports true, except for the one that stays: first those that
// nothing at the site needs, then the others, in both groups the least recently used first. The
// caller holds mu.
func (c *Cache) evict(stays protocol.Digest, enough func() (bool, error)) error {
	if done, err := enough(); done || err != nil {
		return err
	}
	blobs, err := c.list("blobs")
	if err != nil {
		return err
	}
	needed, _ := c.needed()
	slices.SortStableFunc(blobs, func(a, b fs.FileInfo) int {
		rank := map[bool]int{true: 1}
		return rank[needed[a.Name()]] - rank[needed[b.Name()]]
	})
	for _, b := range blobs {
		if b.Name() == hexOf(stays) {
			continue
		}
		if err := c.drop(b); err != nil {
			return fmt.Errorf("remove old blob: %w", err)
		}
		c.counts.evicted.Add(b.Size())
		c.log.Info("image blob evicted", "digest", "sha256:"+b.Name(), "bytes", b.Size())
		if done, err := enough(); done || err != nil {
			return err
		}
	}
	return nil
}

// room sees to it that need more bytes can be written and what others need stays free. It
// removes nothing where that would not be enough.
func (c *Cache) room(need int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := need + c.opts.Spare()
	free, err := c.opts.Disk.Free(c.opts.Dir)
	if err != nil {
		return fmt.Errorf("look for room for an image: %w", err)
	}
	if free < want && free+c.size >= want {
		err := c.evict("", func() (bool, error) {
			var err error
			free, err = c.opts.Disk.Free(c.opts.Dir)
			return free >= want, err
		})
		if err != nil {
			return err
		}
	}
	if free < want {
		return protocol.Errorf(protocol.Unavailable, "%w: %d bytes are free on the disk of %s, %d are needed, and %d must stay free for what the site stores for the CO: enlarge the disk, or lower journalBytes or the bounds of data rules",
			errNoSpace, free, c.opts.Dir, need, c.opts.Spare())
	}
	return nil
}

// blob is a blob that is being served.
type blob struct {
	disk.File
	digest protocol.Digest
	size   int64
}

func (c *Cache) open(d protocol.Digest) (*blob, error) {
	f, err := c.opts.Disk.Open(c.blobPath(d), os.O_RDONLY, 0)
	if disk.Unreadable(err) {
		aside, failed := statefile.SetAside(c.opts.Disk, c.blobPath(d))
		c.opts.Damaged(&statefile.Damage{Identity: statefile.Identity{Role: BlobRole, Name: string(d)}, Path: c.blobPath(d), Aside: aside, Err: errors.Join(err, failed)})
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open blob: %w", err), f.Close())
	}
	return &blob{File: f, digest: d, size: size}, nil
}

var errDamaged = errors.New("the disk did not keep the blob")

// check reads the whole blob, and fails with errDamaged where it is not what its digest
// names.
func (b *blob) check() error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(b, 0, b.size)); err != nil {
		return errors.Join(errDamaged, err)
	}
	return b.named(sum)
}

// named fails with errDamaged where sum is not what the digest of the blob names.
func (b *blob) named(sum hash.Hash) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != string(b.digest) {
		return fmt.Errorf("%w: its digest is %s", errDamaged, got)
	}
	return nil
}

// damaged removes a blob that its disk did not keep, and reports it.
func (c *Cache) damaged(b *blob, why error) {
	c.mu.Lock()
	err := c.opts.Disk.Remove(c.blobPath(b.digest))
	if err == nil {
		c.size -= b.size
	}
	c.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return // another request found it
	}
	c.opts.Damaged(&statefile.Damage{
		Identity: statefile.Identity{Role: BlobRole, Name: string(b.digest)}, Path: c.blobPath(b.digest), Removed: err == nil, Err: errors.Join(why, err),
	})
}

// A checked reads a blob from its beginning and gives out its last byte only if the
// digest of the whole is right. It implements io.ReadSeeker as far as http.ServeContent
// needs it for a whole answer.
type checked struct {
	*blob
	at  int64
	sum hash.Hash // of what was read
}

func newChecked(b *blob) *checked { return &checked{blob: b, sum: sha256.New()} }

// right fails with errDamaged where what was read is not what the digest names.
func (r *checked) right() error { return r.named(r.sum) }

// Read implements io.Reader.
func (r *checked) Read(p []byte) (int, error) {
	if r.at >= r.size {
		return 0, io.EOF
	}
	n, err := r.ReadAt(p[:min(int64(len(p)), r.size-r.at)], r.at)
	if n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return 0, errors.Join(errDamaged, err)
	}
	_, _ = r.sum.Write(p[:n]) // a hash never fails
	r.at += int64(n)
	if r.at < r.size {
		return n, nil
	}
	if err := r.right(); err != nil {
		return n - 1, err
	}
	return n, nil
}

// Seek implements io.Seeker. It goes to the beginning, and returns the size.
func (r *checked) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence == io.SeekCurrent {
		return 0, errors.New("a blob is read from its beginning")
	}
	if whence == io.SeekEnd {
		return r.size, nil
	}
	return 0, nil
}
