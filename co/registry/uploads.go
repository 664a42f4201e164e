package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/colonyfleet/colony/internal/filelock"
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
			_ = os.Remove(h.uploadPath(id)) // the client does not know its name
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
	h.busyMu.Lock()
	defer h.busyMu.Unlock()
	if err := h.roomForUpload(time.Now()); err != nil {
		return "", err
	}
	id := strings.ToLower(rand.Text())
	f, err := os.OpenFile(h.uploadPath(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return "", fmt.Errorf("begin upload: %w", err)
	}
	return id, f.Close()
}

// roomForUpload makes room for one more upload. The caller holds busyMu.
func (h *Handler) roomForUpload(now time.Time) error {
	entries, err := os.ReadDir(h.uploadDir())
	if err != nil {
		return fmt.Errorf("read uploads: %w", err)
	}
	if len(entries) < h.limits.Uploads {
		return nil
	}
	oldest, at := "", now.Add(-h.limits.IdleUpload)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !h.busy[e.Name()] && !info.ModTime().After(at) {
			oldest, at = e.Name(), info.ModTime()
		}
	}
	if oldest == "" {
		return refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS",
			"there are %d unfinished uploads, which is the limit: finish or cancel one, or try again later", len(entries))
	}
	if err := os.Remove(h.uploadPath(oldest)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("give up idle upload: %w", err)
	}
	return nil
}

// removeOldUploads removes the uploads that nobody wrote to for their life.
func (h *Handler) removeOldUploads(now time.Time) error {
	entries, err := os.ReadDir(h.uploadDir())
	if err != nil {
		return fmt.Errorf("read uploads: %w", err)
	}
	h.busyMu.Lock()
	defer h.busyMu.Unlock()
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || h.busy[e.Name()] || now.Sub(info.ModTime()) < h.limits.UploadLife {
			continue
		}
		if err := os.Remove(h.uploadPath(e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old upload: %w", err)
		}
	}
	return nil
}

func (h *Handler) tooLarge() error {
	return refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "the blob is larger than %d bytes, the limit of this registry", h.limits.BlobBytes)
}

func (h *Handler) uploadPath(id string) string { return filepath.Join(h.uploadDir(), id) }

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
	info, err := os.Stat(h.uploadPath(id))
	if errors.Is(err, os.ErrNotExist) {
		return refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload: begin again")
	}
	if err != nil {
		return fault(err)
	}
	switch r.Method {
	case http.MethodGet:
		h.progress(w, name, id, info.Size())
		w.WriteHeader(http.StatusNoContent)
		return nil
	case http.MethodPatch:
		size, err := h.appendUpload(r, id)
		if err != nil {
			return fault(err)
		}
		h.progress(w, name, id, size)
		w.WriteHeader(http.StatusAccepted)
		return nil
	case http.MethodPut:
		return h.finishUpload(w, r, name, id)
	case http.MethodDelete:
		if err := os.Remove(h.uploadPath(id)); err != nil {
			return fault(err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return notAllowed()
}

// claim makes a request the only one that writes to an upload.
func (h *Handler) claim(id string) (release func(), err error) {
	h.busyMu.Lock()
	defer h.busyMu.Unlock()
	if h.busy[id] {
		return nil, refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "another request writes to this upload")
	}
	alone, err := filelock.Try(h.uploadPath(id)) // of another process
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil, refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "another request writes to this upload")
	case errors.Is(err, os.ErrNotExist):
		return nil, refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload: begin again")
	case err != nil:
		return nil, err
	}
	h.busy[id] = true
	return func() {
		h.busyMu.Lock()
		defer h.busyMu.Unlock()
		delete(h.busy, id)
		_ = alone.Close() // the file may be a blob now
	}, nil
}

// appendUpload adds the body of a request and returns the new size. A part that was
// cut off is taken back, so that the client's count and ours agree.
func (h *Handler) appendUpload(r *http.Request, id string) (int64, error) {
	release, err := h.claim(id)
	if err != nil {
		return 0, err
	}
	defer release()
	f, err := os.OpenFile(h.uploadPath(id), os.O_WRONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("open upload: %w", err)
	}
	defer f.Close() //nolint:errcheck // flushed when the upload is finished
	before, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("open upload: %w", err)
	}
	if err := checkRange(r.Header.Get("Content-Range"), before); err != nil {
		return 0, err
	}
	if r.ContentLength > h.limits.BlobBytes-before {
		return 0, errors.Join(h.tooLarge(), os.Remove(h.uploadPath(id)))
	}
	n, err := io.Copy(f, io.LimitReader(r.Body, h.limits.BlobBytes-before+1))
	if err != nil {
		return 0, errors.Join(fmt.Errorf("write upload: %w", err), f.Truncate(before))
	}
	if before+n > h.limits.BlobBytes {
		return 0, errors.Join(h.tooLarge(), os.Remove(h.uploadPath(id)))
	}
	return before + n, nil
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
		return fault(err)
	}
	release, err := h.claim(id)
	if err != nil {
		return err
	}
	defer release()
	if err := h.seal(name, id, want); err != nil {
		return fault(err)
	}
	return created(w, name, want)
}

// seal checks an upload and makes it a blob of a repository. A crash in between leaves
// a blob without a link, which the next garbage collection removes.
func (h *Handler) seal(name, id string, want protocol.Digest) error {
	f, err := os.OpenFile(h.uploadPath(id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open upload: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was flushed
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("read upload: %w", err)
	}
	if got := protocol.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != want {
		return errors.Join(
			refuse(http.StatusBadRequest, "DIGEST_INVALID", "the upload has digest %s, not %s", got, want),
			os.Remove(h.uploadPath(id)))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush upload: %w", err)
	}
	if err := h.links.RLock(); err != nil {
		return err
	}
	defer h.links.RUnlock()
	if err := os.Rename(h.uploadPath(id), h.blobPath(want)); err != nil {
		return fmt.Errorf("name blob: %w", err)
	}
	if err := syncDir(h.blobDir()); err != nil {
		return err
	}
	return h.link(name, want)
}
