package registry

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// blob serves GET, HEAD and DELETE of one blob of a repository. GET knows ranges, so
// that a pull over a bad link goes on where it was cut. DELETE removes the link: the
// bytes go with the last one, at the next garbage collection.
func (h *Handler) blob(w http.ResponseWriter, r *http.Request, name, ref string) error {
	d, err := parseDigest(ref)
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		f, err := h.openBlob(r.Context(), name, d)
		if errors.Is(err, fs.ErrNotExist) {
			return unknownBlob(name, d)
		}
		if err != nil {
			return fault(err)
		}
		defer f.Close() //nolint:errcheck // read only
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Docker-Content-Digest", string(d))
		w.Header().Set("Etag", `"`+string(d)+`"`)
		http.ServeContent(w, r, "", time.Time{}, f)
		return nil
	case http.MethodDelete:
		err := h.unlink(name, d)
		if errors.Is(err, fs.ErrNotExist) {
			return unknownBlob(name, d)
		}
		if err != nil {
			return fault(err)
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return notAllowed()
}

func unknownBlob(name string, d protocol.Digest) error {
	return refuse(http.StatusNotFound, "BLOB_UNKNOWN", "repository %s has no blob %s", name, d)
}

// openBlob opens a blob of a repository. A client that finds the blob pushes it no
// more, so the link counts as new from now on.
func (h *Handler) openBlob(ctx context.Context, name string, d protocol.Digest) (io.ReadSeekCloser, error) {
	if err := h.store.RLock(); err != nil {
		return nil, err
	}
	defer h.store.RUnlock()
	if err := h.store.Touch(linkPath(name, d)); err != nil {
		return nil, err
	}
	return h.store.Open(ctx, blobPath(d))
}

// has reports whether a blob is linked into a repository. The caller holds the lock.
func (h *Handler) has(name string, d protocol.Digest) (bool, error) {
	linked, err := h.there(linkPath(name, d))
	if !linked {
		return false, err
	}
	return h.there(blobPath(d))
}

// there reports whether there is a file.
func (h *Handler) there(path string) (bool, error) {
	info, err := h.store.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && !info.Folder, err
}

// link makes a blob one of a repository. The caller holds the lock, so that the blob is
// not removed meanwhile.
func (h *Handler) link(name string, d protocol.Digest) error {
	return errors.Join(h.store.Write(linkPath(name, d), nil), h.store.Touch(linkPath(name, d)), h.store.Touch(blobPath(d)))
}

func (h *Handler) unlink(name string, d protocol.Digest) error {
	if err := h.store.Lock(); err != nil {
		return err
	}
	defer h.store.Unlock()
	return h.store.Remove(linkPath(name, d))
}

// mount links a blob of one repository into another, and reports whether it did.
func (h *Handler) mount(from, name string, d protocol.Digest) (bool, error) {
	if err := h.store.RLock(); err != nil {
		return false, err
	}
	defer h.store.RUnlock()
	if !nameForm.MatchString(from) {
		return false, nil
	}
	if there, err := h.has(from, d); !there {
		return false, err
	}
	return true, h.link(name, d)
}
