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

	"github.com/colonyfleet/colony/protocol"
)

// blob serves GET, HEAD and DELETE of one blob. GET knows ranges, so that a pull
// over a bad link goes on where it was cut.
func (h *Handler) blob(w http.ResponseWriter, r *http.Request, ref string) error {
	d, err := parseDigest(ref)
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		f, err := os.Open(h.blobPath(d))
		if errors.Is(err, os.ErrNotExist) {
			return refuse(http.StatusNotFound, "BLOB_UNKNOWN", "blob %s is not here", d)
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
		err := os.Remove(h.blobPath(d))
		if errors.Is(err, os.ErrNotExist) {
			return refuse(http.StatusNotFound, "BLOB_UNKNOWN", "blob %s is not here", d)
		}
		if err != nil {
			return fault(err)
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return notAllowed()
}

func (h *Handler) has(d protocol.Digest) bool {
	info, err := os.Stat(h.blobPath(d))
	return err == nil && info.Mode().IsRegular()
}

// startUpload answers POST: it begins an upload, takes a whole blob at once, or
// mounts one that is here already.
func (h *Handler) startUpload(w http.ResponseWriter, r *http.Request, name string) error {
	if r.Method != http.MethodPost {
		return notAllowed()
	}
	if d, err := protocol.ParseDigest(r.URL.Query().Get("mount")); err == nil && h.has(d) {
		return created(w, name, d)
	}
	id := strings.ToLower(rand.Text())
	f, err := os.OpenFile(h.uploadPath(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return fault(err)
	}
	if err := f.Close(); err != nil {
		return fault(err)
	}
	if digest := r.URL.Query().Get("digest"); digest != "" {
		return h.finishUpload(w, r, name, id)
	}
	h.progress(w, name, id, 0)
	w.WriteHeader(http.StatusAccepted)
	return nil
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
	h.busy[id] = true
	return func() {
		h.busyMu.Lock()
		defer h.busyMu.Unlock()
		delete(h.busy, id)
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
	n, err := io.Copy(f, r.Body)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("write upload: %w", err), f.Truncate(before))
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
	if err := h.seal(id, want); err != nil {
		return fault(err)
	}
	return created(w, name, want)
}

func (h *Handler) seal(id string, want protocol.Digest) error {
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
	if err := os.Rename(h.uploadPath(id), h.blobPath(want)); err != nil {
		return fmt.Errorf("name blob: %w", err)
	}
	return syncDir(h.blobDir())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
