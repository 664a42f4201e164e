package registry

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
		f, err := h.openBlob(name, d)
		if errors.Is(err, os.ErrNotExist) {
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
		if errors.Is(err, os.ErrNotExist) {
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
func (h *Handler) openBlob(name string, d protocol.Digest) (*os.File, error) {
	if err := h.links.RLock(); err != nil {
		return nil, err
	}
	defer h.links.RUnlock()
	if err := touch(h.linkPath(name, d)); err != nil {
		return nil, err
	}
	return os.Open(h.blobPath(d))
}

// has reports whether a blob is linked into a repository. The caller holds links.
func (h *Handler) has(name string, d protocol.Digest) bool {
	if _, err := os.Stat(h.linkPath(name, d)); err != nil {
		return false
	}
	info, err := os.Stat(h.blobPath(d))
	return err == nil && info.Mode().IsRegular()
}

// touch makes a file as young as what is used now. That keeps it from a garbage collection of another process, too: it is the last that is done before
// links is given back, so that a collection which began before finds it young, and one that began later finds what names it.
func touch(path string) error {
	now := time.Now()
	return os.Chtimes(path, now, now)
}

// link makes a blob one of a repository. The caller holds links, so that the blob is
// not removed meanwhile.
func (h *Handler) link(name string, d protocol.Digest) error {
	return errors.Join(write(h.linkPath(name, d), nil), touch(h.linkPath(name, d)), touch(h.blobPath(d)))
}

func (h *Handler) unlink(name string, d protocol.Digest) error {
	if err := h.links.Lock(); err != nil {
		return err
	}
	defer h.links.Unlock()
	path := h.linkPath(name, d)
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// mount links a blob of one repository into another, and reports whether it did.
func (h *Handler) mount(from, name string, d protocol.Digest) (bool, error) {
	if err := h.links.RLock(); err != nil {
		return false, err
	}
	defer h.links.RUnlock()
	if !nameForm.MatchString(from) || !h.has(from, d) {
		return false, nil
	}
	return true, h.link(name, d)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
