package registry

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"time"

	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

// A Guard returns an error of kind Conflict where something needs what a removal takes
// away, and another error where that is not known.
type Guard func(ctx context.Context, r graph.Removal) error

// SetGuard sets the Guard that is asked before a tag or a manifest is removed. It is called before
// the first request, and before Run.
func (h *Handler) SetGuard(g Guard) { h.guard = g }

func (h *Handler) allow(ctx context.Context, r graph.Removal) error {
	if h.guard == nil {
		return nil
	}
	return h.guard(ctx, r)
}

func removedPath(name string, d protocol.Digest) string {
	return path.Join(repoDir(name), "_removed", hexOf(d))
}

// Entries lists what a repository holds, or all of them where name is "", sorted by
// repository. What cannot be read is left out.
func (h *Handler) Entries(ctx context.Context, name string) ([]graph.Entry, error) {
	names, err := h.repositories()
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "list repositories: %w", err)
	}
	var all []graph.Entry
	for _, n := range names {
		if name != "" && n != name {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, _ := h.read(n)
		for _, e := range r.Entries() {
			if info, err := h.store.Stat(removedPath(n, e.Digest)); err == nil && e.Tag == "" {
				e.Removed = info.Used
			}
			all = append(all, e)
		}
	}
	return all, nil
}

// Find returns what goes with a tag or a digest of a repository. Errors are those of
// graph.Repository.Removal.
func (h *Handler) Find(name, ref string) (graph.Removal, error) {
	if !nameForm.MatchString(name) {
		return graph.Removal{}, protocol.Errorf(protocol.NotFound, "the registry has no repository %q", name)
	}
	r, _ := h.read(name)
	return r.Removal(ref)
}

// Remove removes a tag, or a digest with all its tags, unless the guard refuses. Content that no
// tag and no index names any more can be pulled by its digest until it is collected,
// Limits.UploadLife later. If the guard refuses at that time, as for a deployment that was under
// way, the content stays.
func (h *Handler) Remove(ctx context.Context, name, ref string) (graph.Removal, error) {
	r, err := h.Find(name, ref)
	if err == nil {
		err = h.allow(ctx, r)
	}
	if err != nil {
		return r, err
	}
	if err := h.store.Lock(); err != nil {
		return r, err
	}
	defer h.store.Unlock()
	for _, d := range r.Manifests { // first: a crash leaves nothing that is never collected
		if err := h.store.Write(removedPath(name, d), nil); err != nil {
			return r, protocol.Errorf(protocol.Unavailable, "remove %s: %w", graph.Reference(name, ref), err)
		}
	}
	for _, tag := range r.Tags {
		err = errors.Join(err, h.remove(tagPath(name, tag)))
	}
	if err != nil {
		return r, protocol.Errorf(protocol.Unavailable, "remove %s: %w", graph.Reference(name, ref), err)
	}
	return r, nil
}

// remove removes a file that may be missing.
func (h *Handler) remove(file string) error {
	if err := h.store.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// read reads what a repository holds.
func (h *Handler) read(name string) (r *graph.Repository, unread []error) {
	if err := h.store.RLock(); err != nil {
		return &graph.Repository{Name: name}, []error{err}
	}
	defer h.store.RUnlock()
	r, _, unread = h.contents(name)
	return r, unread
}

// removeOld removes the manifests of a repository that were removed by their names before a
// time. One that has a name again, or that something needs, stays.
func (h *Handler) removeOld(ctx context.Context, name string, before time.Time) error {
	marks, err := h.store.List(path.Join(repoDir(name), "_removed"))
	if err != nil || len(marks) == 0 {
		return err
	}
	r, unread := h.read(name)
	for _, e := range marks {
		if len(unread) > 0 {
			return nil // an index among them may name it
		}
		d := protocol.Digest("sha256:" + e.Name)
		old := graph.Removal{Repository: name, Manifests: r.Orphans(d)}
		if !e.Used.Before(before) || len(r.TagsOf(d)) > 0 || len(old.Manifests) == 0 {
			continue
		}
		if err := h.allow(ctx, old); err != nil {
			h.log.InfoContext(ctx, "a removed image is kept for now", "image", graph.Reference(name, string(d)), "err", err)
			continue
		}
		if err := h.drop(name, d); err != nil {
			return err
		}
		r, unread = h.read(name) // what an index named may go now
	}
	return nil
}

// drop removes a manifest that was removed by its name, unless it has one again.
func (h *Handler) drop(name string, d protocol.Digest) error {
	if err := h.store.Lock(); err != nil {
		return err
	}
	defer h.store.Unlock()
	r, _, unread := h.contents(name)
	marked, err := h.there(removedPath(name, d))
	if !marked || len(unread) > 0 || len(r.TagsOf(d)) > 0 {
		return err // it was pushed again meanwhile
	}
	if err := h.store.Held(); err != nil {
		return err
	}
	for _, d := range r.Orphans(d) {
		for _, file := range h.linksOf(name, d) {
			err = errors.Join(err, h.remove(file))
		}
		referrers, listErr := h.names(referrerDir(name, d))
		for _, hex := range referrers {
			err = errors.Join(err, h.remove(path.Join(referrerDir(name, d), hex)))
		}
		err = errors.Join(err, listErr)
	}
	return errors.Join(err, h.remove(removedPath(name, d)))
}

// guardDelete refuses to delete a tag or a manifest that something needs.
func (h *Handler) guardDelete(r *http.Request, name, ref string) error {
	old, err := h.Find(name, ref)
	if protocol.KindOf(err) == protocol.NotFound {
		return nil // or it cannot be read: then only deleting it helps
	}
	if err == nil {
		err = h.allow(r.Context(), old)
	}
	switch {
	case err == nil:
		return nil
	case protocol.KindOf(err) == protocol.Conflict:
		return refuse(http.StatusForbidden, "DENIED", "%s", err)
	}
	return &refusal{status: http.StatusServiceUnavailable, code: "UNKNOWN", message: "it is not known whether anything needs it: try again later", cause: err}
}
