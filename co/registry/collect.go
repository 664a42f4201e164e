package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/protocol"
)

// cleanEvery is the time between two cleanings of a running registry.
const cleanEvery = 30 * time.Minute

// Run cleans the registry now and then until ctx ends: old uploads, and blobs that
// nothing names any more.
func (h *Handler) Run(ctx context.Context) {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	for {
		if err := h.Clean(ctx, time.Now()); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "registry not cleaned", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Clean removes, in this order: the uploads that were idle for Limits.UploadLife; the manifests that
// were removed by their names that long ago and that are not in use; the links of blobs that no
// manifest of their repository names; and the blobs of that age without a link. Requests go on
// meanwhile: content that they link or name while Clean runs stays. A crash at any moment leaves only
// content that the next run removes. Of the processes that share the directory only one runs it at a
// time; the others return at once.
func (h *Handler) Clean(ctx context.Context, now time.Time) error {
	alone, err := h.store.Alone()
	if errors.Is(err, storage.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(h.clean(ctx, now), alone.Close())
}

func (h *Handler) clean(ctx context.Context, now time.Time) error {
	if err := h.removeOldUploads(now); err != nil {
		return err
	}
	return h.collect(ctx, now.Add(-h.limits.UploadLife))
}

// collect removes links and blobs that are older than before and that nothing names. It skips what
// it cannot read: from a repository with an unreadable manifest it removes nothing, and it removes
// no blob while the contents of any repository are unknown.
func (h *Handler) collect(ctx context.Context, before time.Time) error {
	repositories, err := h.repositories()
	if err != nil {
		return fmt.Errorf("list repositories: %w", err)
	}
	inUse := map[protocol.Digest]bool{}
	var errs []error
	for _, name := range repositories {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := errors.Join(h.removeOld(ctx, name, before), h.cleanRepository(ctx, name, before, inUse)); err != nil {
			errs = append(errs, fmt.Errorf("clean repository %s: %w", name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(append(errs, errors.New("no blob was removed"))...)
	}
	return h.removeUnused(ctx, before, inUse)
}

// cleanRepository removes the stale links of a repository and adds to inUse what it
// keeps.
func (h *Handler) cleanRepository(ctx context.Context, name string, before time.Time, inUse map[protocol.Digest]bool) error {
	_, named, unread := h.contents(name)
	h.report(ctx, name, unread)
	links, err := h.store.List(path.Join(repoDir(name), "_blobs"))
	if err != nil {
		return err
	}
	for _, e := range links {
		d := protocol.Digest("sha256:" + e.Name)
		if named[d] || len(unread) > 0 || !e.Used.Before(before) {
			named[d] = true
			continue
		}
		removed, err := h.removeIfUnused(linkPath(name, d), before)
		if err != nil {
			return err
		}
		if !removed {
			named[d] = true
		}
	}
	for d := range named {
		inUse[d] = true
	}
	return nil
}

// report logs the manifests of a repository that cannot be read.
func (h *Handler) report(ctx context.Context, name string, unread []error) {
	if len(unread) > 0 {
		h.log.WarnContext(ctx, "manifests cannot be read, so nothing of their repository is removed: push them again, or delete them",
			"repository", name, "count", len(unread), "err", errors.Join(unread...))
	}
}

// removeUnused removes the blobs that are not in use.
func (h *Handler) removeUnused(ctx context.Context, before time.Time, inUse map[protocol.Digest]bool) error {
	blobs, err := h.store.List(blobDir)
	if err != nil {
		return fmt.Errorf("list blobs: %w", err)
	}
	for _, e := range blobs {
		if err := ctx.Err(); err != nil {
			return err
		}
		d := protocol.Digest("sha256:" + e.Name)
		if inUse[d] || !e.Used.Before(before) {
			continue
		}
		removed, err := h.removeIfUnused(blobPath(d), before)
		if err != nil {
			return fmt.Errorf("remove blob: %w", err)
		}
		if removed {
			h.log.InfoContext(ctx, "blob without a link removed", "digest", d)
		}
	}
	return nil
}

// removeIfUnused removes a link or a blob unless a request, of this process or of another one, has used it meanwhile: then it is young.
func (h *Handler) removeIfUnused(file string, before time.Time) (bool, error) {
	if err := h.store.Lock(); err != nil {
		return false, err
	}
	defer h.store.Unlock()
	info, err := h.store.Stat(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && !info.Used.Before(before) {
		return false, err
	}
	if err := h.store.Held(); err != nil {
		return false, err
	}
	return true, h.remove(file)
}

// digestForm finds the digests in the bytes of a manifest.
var digestForm = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

// contents reads what a repository holds, and returns the digests of its manifests and of the blobs
// that they name. unread says of each manifest that cannot be read why; of one that is damaged, the
// digests that can still be found in it are named. If the caller does not hold the lock, tags may
// change meanwhile.
func (h *Handler) contents(name string) (r *graph.Repository, named map[protocol.Digest]bool, unread []error) {
	r = &graph.Repository{Name: name, Tags: map[string]protocol.Digest{}, Manifests: map[protocol.Digest]*artifact.Manifest{}}
	named = map[protocol.Digest]bool{}
	manifests, err := h.names(path.Join(repoDir(name), "_manifests"))
	tags, tagsErr := h.names(path.Join(repoDir(name), "_tags"))
	if err = errors.Join(err, tagsErr); err != nil {
		unread = append(unread, fmt.Errorf("list manifests and tags: %w", err))
	}
	for _, tag := range tags {
		if d, err := h.resolve(name, tag); err == nil {
			r.Tags[tag] = d
		}
	}
	for _, hex := range manifests {
		d, m := protocol.Digest("sha256:"+hex), &artifact.Manifest{}
		named[d] = true
		body, err := h.store.Read(blobPath(d))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted as a blob by a version that allowed it
		}
		if err == nil {
			err = errors.Join(d.Verify(body), json.Unmarshal(body, m))
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("manifest %s: %w", d, err))
			for _, found := range digestForm.FindAllString(string(body), -1) {
				named[protocol.Digest(found)] = true
			}
			continue
		}
		r.Manifests[d] = m
		for _, b := range m.Blobs() {
			if d, err := protocol.ParseDigest(b.Digest); err == nil {
				named[d] = true
			}
		}
	}
	return r, named, unread
}

// repositories returns the names of all repositories, sorted.
func (h *Handler) repositories() ([]string, error) {
	names, err := h.below("")
	slices.Sort(names)
	return names, err
}

// below returns the names of a repository, where there is one, and of those whose names
// begin with its.
func (h *Handler) below(name string) ([]string, error) {
	list, err := h.store.List(repoDir(name))
	if err != nil {
		return nil, err
	}
	names := []string{}
	if slices.ContainsFunc(list, func(i storage.Info) bool { return i.Folder && strings.HasPrefix(i.Name, "_") }) {
		names = append(names, name)
	}
	for _, i := range list {
		if !i.Folder || strings.HasPrefix(i.Name, "_") {
			continue
		}
		more, err := h.below(path.Join(name, i.Name))
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	return names, nil
}

// migrate links the blobs of a directory that was written before there were links:
// those that a repository's manifests name. It is done once, and again after a crash.
// Where a manifest cannot be read, its repository gets all blobs that no other names: one
// of them may be of it.
func (h *Handler) migrate() error {
	const done = "linked"
	if there, err := h.there(done); there || err != nil {
		return err
	}
	names, err := h.repositories()
	if err != nil {
		return fmt.Errorf("list repositories: %w", err)
	}
	linked := map[protocol.Digest]bool{}
	var doubtful []string
	for _, name := range names {
		_, named, unread := h.contents(name)
		if h.report(context.Background(), name, unread); len(unread) > 0 {
			doubtful = append(doubtful, name)
		}
		if err := h.linkAll(name, named, linked); err != nil {
			return err
		}
	}
	rest := map[protocol.Digest]bool{}
	if len(doubtful) > 0 {
		blobs, err := h.names(blobDir)
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		for _, hex := range blobs {
			if d := protocol.Digest("sha256:" + hex); !linked[d] {
				rest[d] = true
			}
		}
	}
	for _, name := range doubtful {
		if err := h.linkAll(name, rest, map[protocol.Digest]bool{}); err != nil {
			return err
		}
	}
	return h.store.Write(done, nil)
}

// linkAll links those of some blobs that there are into a repository, and adds them to
// linked.
func (h *Handler) linkAll(name string, blobs, linked map[protocol.Digest]bool) error {
	for d := range blobs {
		there, err := h.there(blobPath(d))
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := h.link(name, d); err != nil {
			return fmt.Errorf("link the blobs of repository %s: %w", name, err)
		}
		linked[d] = true
	}
	return nil
}
