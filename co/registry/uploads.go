package registry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/protocol"
)

// startUpload answers POST: it begins an upload, takes a whole blob at once, or
// mounts one of the repository that from names. Where it cannot be mounted, an upload
// begins (distribution specification 1.1, "Mounting a blob from another repository").
func (h *Handler) startUpload(w http.ResponseWriter, r *http.Request, name string) error {
	if r.Method != http.MethodPost {
		return notAllowed()
	}
	if d, err := protocol.ParseDigest(r.URL.Query().Get("mount")); err == nil {
		if mounted, err := h.mount(r.URL.Query().Get("from"), name, d); err != nil {
			return fault(err)
		} else if mounted {
			return created(w, name, d)
		}
	}
	id, err := h.newUpload()
	if err != nil {
		return fault(err)
	}
	if digest := r.URL.Query().Get("digest"); digest != "" {
		if err := h.finishUpload(w, r, name, id); err != nil {
			_ = h.store.Drop(id) // the client does not know its name
			return err
		}
		return nil
	}
	h.progress(w, name, id, 0)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// newUpload creates an empty upload. The number of uploads is bounded: past it the one
// that was idle for the longest is given up, where it was idle for long enough.
func (h *Handler) newUpload() (string, error) {
	h.begin.Lock()
	defer h.begin.Unlock()
	if err := h.roomForUpload(time.Now()); err != nil {
		return "", err
	}
	id := strings.ToLower(rand.Text())
	return id, h.store.Begin(id)
}

// roomForUpload makes room for one more upload. The caller holds begin.
func (h *Handler) roomForUpload(now time.Time) error {
	list, err := h.store.Unfinished()
	if err != nil {
		return fmt.Errorf("list uploads: %w", err)
	}
	if len(list) < h.limits.Uploads {
		return nil
	}
	oldest, at := "", now.Add(-h.limits.IdleUpload)
	for _, u := range list {
		if !u.Busy && !u.Used.After(at) {
			oldest, at = u.Name, u.Used
		}
	}
	if oldest == "" {
		return refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS",
			"there are %d unfinished uploads, which is the limit: finish or cancel one, or try again later", len(list))
	}
	if err := h.store.Drop(oldest); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give up idle upload: %w", err)
	}
	return nil
}

// removeOldUploads removes the uploads without a write for their life.
func (h *Handler) removeOldUploads(now time.Time) error {
	list, err := h.store.Unfinished()
	if err != nil {
		return fmt.Errorf("list uploads: %w", err)
	}
	for _, u := range list {
		if u.Busy || now.Sub(u.Used) < h.limits.UploadLife {
			continue
		}
		if err := h.store.Drop(u.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old upload: %w", err)
		}
	}
	return nil
}

func (h *Handler) tooLarge() error {
	return refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "the blob is larger than %d bytes, the limit of this registry", h.limits.BlobBytes)
}

func (h *Handler) progress(w http.ResponseWriter, name, id string, size int64) {
	w.Header().Set("Location", "/v2/"+name+"/blobs/uploads/"+id)
	w.Header().Set("Docker-Upload-Uuid", id)
	w.Header().Set("Range", fmt.Sprintf("0-%d", max(size-1, 0)))
}

func created(w http.ResponseWriter, name string, d protocol.Digest) error {
	w.Header().Set("Location", "/v2/"+name+"/blobs/"+string(d))
	w.Header().Set("Docker-Content-Digest", string(d))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// upload serves one unfinished upload: its state, a further part, its end, or its
// cancellation.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request, name, id string) error {
	if !uploadForm.MatchString(id) {
		return refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload")
	}
	size, err := h.store.Uploaded(id)
	if err != nil {
		return uploadFault(err)
	}
	switch r.Method {
	case http.MethodGet:
		h.progress(w, name, id, size)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case http.MethodPatch:
		size, err := h.appendUpload(r, id)
		if err != nil {
			return err
		}
		h.progress(w, name, id, size)
		w.WriteHeader(http.StatusAccepted)
		return nil
	case http.MethodPut:
		return h.finishUpload(w, r, name, id)
	case http.MethodDelete:
		if err := h.store.Drop(id); err != nil {
			return uploadFault(err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return notAllowed()
}

// uploadFault turns an error of an upload into what a client may see.
func uploadFault(err error) error {
	if mismatch, ok := errors.AsType[*storage.MismatchError](err); ok {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "%s", mismatch)
	}
	switch {
	case errors.Is(err, storage.ErrBusy):
		return refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "%s", storage.ErrBusy)
	case errors.Is(err, fs.ErrNotExist):
		return refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload: begin again")
	}
	return fault(err)
}

// appendUpload adds the body of a request and returns the new size. An upload that is too
// large is given up.
func (h *Handler) appendUpload(r *http.Request, id string) (int64, error) {
	size, err := h.store.Append(r.Context(), id, r.Body, func(before int64) (int64, error) {
		if err := checkRange(r.Header.Get("Content-Range"), before); err != nil {
			return 0, err
		}
		room := h.limits.BlobBytes - before
		if r.ContentLength > room {
			return 0, storage.ErrTooLarge
		}
		return room, nil
	})
	if errors.Is(err, storage.ErrTooLarge) {
		return 0, errors.Join(h.tooLarge(), h.store.Drop(id))
	}
	if err != nil {
		return 0, uploadFault(err)
	}
	return size, nil
}

func checkRange(header string, size int64) error {
	if header == "" {
		return nil
	}
	var start, end int64
	if _, err := fmt.Sscanf(strings.TrimPrefix(header, "bytes "), "%d-%d", &start, &end); err != nil || start != size || end < start {
		return refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "the upload has %d bytes, and the part is %q", size, header)
	}
	return nil
}

// finishUpload takes the last part, checks the digest, and makes the blob visible
// once it is on disk.
func (h *Handler) finishUpload(w http.ResponseWriter, r *http.Request, name, id string) error {
	want, err := parseDigest(r.URL.Query().Get("digest"))
	if err != nil {
		return err
	}
	if _, err := h.appendUpload(r, id); err != nil {
		return err
	}
	for range sealings {
		if err = h.seal(r.Context(), name, id, want); !errors.Is(err, storage.ErrRemoved) {
			break
		}
	}
	if _, ok := errors.AsType[*storage.MismatchError](err); ok {
		_ = h.store.Drop(id) // it goes with its life otherwise
	}
	if err != nil {
		return uploadFault(err)
	}
	return created(w, name, want)
}

// sealings is how often a blob is sealed that a garbage collection removes before it has a link.
const sealings = 3

// seal checks an upload and makes it a blob of a repository. A crash in between leaves
// a blob without a link, which the next garbage collection removes.
func (h *Handler) seal(ctx context.Context, name, id string, want protocol.Digest) (err error) {
	sealed, err := h.store.Seal(ctx, id, want, blobPath(want))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sealed.Close()) }()
	if err := h.store.RLock(); err != nil {
		return err
	}
	defer h.store.RUnlock()
	if err := sealed.Place(); err != nil {
		return err
	}
	return h.link(name, want)
}
