// Package registry is the fleet's own OCI registry. It holds what a site without a way
// to the internet needs: application packages, Compose archives, and container images.
// The client of any registry is in ociclient.
//
// The server is written here, over plain files, and not go-containerregistry's
// pkg/registry, which calls itself fit for tests: that one keeps manifests and
// whole uploads in memory, holds one lock for all uploads while it reads from the
// network, hashes a blob at each request for it, flushes nothing to disk, and
// refuses the open-ended ranges with which containerd resumes a pull. What was left
// of it to use was the routing of a dozen URLs. The tests push and pull with that
// project's client.
package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/co/registry/storage"
	"github.com/colonyfleet/colony/co/registry/storage/files"
	"github.com/colonyfleet/colony/protocol"
)

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	uploadForm = regexp.MustCompile(`^[a-z2-7]{26}$`)
)

// A Handler serves the OCI distribution API (1.1) under /v2/ from a storage. All that it confirmed is stored; a kill loses nothing. It may
// be used concurrently, by several processes, of several machines where they share the storage. No lock is held while a request reads from
// or writes to its client.
//
// A blob is stored once and linked into each repository that it was pushed to or mounted in: a repository serves, mounts and removes only
// what is linked into it.
//
// It has no access control: the program that mounts it decides which clients may write.
type Handler struct {
	// store keeps it all. Its lock guards the small files of repositories, where several
	// change together, and the removal of blobs.
	store  storage.Storage
	log    *slog.Logger
	limits Limits
	guard  Guard // nil: nothing is kept from being removed

	begin sync.Mutex // held while an upload begins, so that their number is bounded
}

// Limits bound what clients may leave in a registry. Zero fields mean the defaults.
type Limits struct {
	// BlobBytes bounds one blob. Default 16 GiB.
	BlobBytes int64
	// Uploads bounds how many unfinished uploads there are. Default 256. Past it, an upload without
	// a write for IdleUpload is given up, or the new one is refused with 429.
	Uploads int
	// IdleUpload is how long an unfinished upload is safe from a new one. Default 10 min.
	IdleUpload time.Duration
	// UploadLife is how long an unfinished upload is kept after the last write to it,
	// and how long a blob stays that no manifest names. Default 24 h.
	UploadLife time.Duration
}

func (l Limits) withDefaults() Limits {
	l.BlobBytes = cmp.Or(l.BlobBytes, 16<<30)
	l.Uploads = cmp.Or(l.Uploads, 256)
	l.IdleUpload = cmp.Or(l.IdleUpload, 10*time.Minute)
	l.UploadLife = cmp.Or(l.UploadLife, 24*time.Hour)
	return l
}

// NewHandler opens the registry in dir, which is created where it is missing. logger may be nil.
func NewHandler(dir string, limits Limits, logger *slog.Logger) (*Handler, error) {
	store, err := files.Open(dir)
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "open registry: %w", err)
	}
	return Open(store, limits, logger)
}

// Open opens the registry in a storage. One of a version without links gets them from its
// manifests. logger may be nil.
func Open(store storage.Storage, limits Limits, logger *slog.Logger) (*Handler, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{store: store, log: logger, limits: limits.withDefaults()}
	if err := errors.Join(h.removeOldUploads(time.Now()), h.migrate()); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "open registry: %w", err)
	}
	return h, nil
}

// Files:
//
//	blobs/sha256/<hex>                             layers, configs, manifests
//	linked                                         there since all blobs in use have links
//	repositories/<name>/_blobs/<hex>               empty: the blob is of this repository
//	repositories/<name>/_manifests/<hex>           media type of a manifest
//	repositories/<name>/_tags/<tag>                digest of a manifest
//	repositories/<name>/_removed/<hex>             empty: removed by its names, to be collected
//	repositories/<name>/_referrers/<hex>/<hex>     descriptor of a manifest whose subject is the first
const blobDir = "blobs/sha256"

func repoDir(name string) string        { return path.Join("repositories", name) }
func blobPath(d protocol.Digest) string { return path.Join(blobDir, hexOf(d)) }

func manifestPath(name string, d protocol.Digest) string {
	return path.Join(repoDir(name), "_manifests", hexOf(d))
}

func tagPath(name, tag string) string { return path.Join(repoDir(name), "_tags", tag) }

func referrerDir(name string, subject protocol.Digest) string {
	return path.Join(repoDir(name), "_referrers", hexOf(subject))
}

func linkPath(name string, d protocol.Digest) string {
	return path.Join(repoDir(name), "_blobs", hexOf(d))
}

func hexOf(d protocol.Digest) string { return strings.TrimPrefix(string(d), "sha256:") }

// A refusal is an error as the API words it.
type refusal struct {
	status  int
	code    string
	message string
	cause   error // of a fault of this side; goes to the log only
}

// Error returns the message.
func (e *refusal) Error() string { return e.message }

// Unwrap returns the cause.
func (e *refusal) Unwrap() error { return e.cause }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// fault turns an error of the storage into what a client may see.
func fault(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return err
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &refusal{status: http.StatusInsufficientStorage, code: "UNKNOWN", message: "the registry's disk is full", cause: err}
	}
	if protocol.KindOf(err) == protocol.Unavailable {
		return &refusal{status: http.StatusServiceUnavailable, code: "UNKNOWN", message: "the registry cannot use its storage: try again later", cause: err}
	}
	return &refusal{status: http.StatusInternalServerError, code: "UNKNOWN", message: "the registry cannot use its storage", cause: err}
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	err := h.route(w, r)
	if err == nil {
		return
	}
	e, ok := errors.AsType[*refusal](err)
	if !ok {
		e = &refusal{status: http.StatusInternalServerError, code: "UNKNOWN", message: "internal error", cause: err}
	}
	if e.cause != nil {
		h.log.ErrorContext(r.Context(), "registry request failed", "method", r.Method, "path", r.URL.Path, "err", e.cause)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		writeJSON(w, map[string]any{"errors": []map[string]string{{"code": e.code, "message": e.message}}})
	}
}

// writeJSON ends a response; an error means that the client is gone.
func writeJSON(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// route finds the handler by the last parts of the path: a repository's name may
// itself hold slashes.
func (h *Handler) route(w http.ResponseWriter, r *http.Request) error {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	switch {
	case r.URL.Path == "/v2", ok && rest == "":
		w.Header().Set("Content-Type", "application/json")
		writeJSON(w, struct{}{})
		return nil
	case !ok:
		return refuse(http.StatusNotFound, "UNSUPPORTED", "no such path")
	case rest == "_catalog":
		return h.catalog(w, r)
	}
	parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	n := len(parts)
	if n >= 4 && parts[n-3] == "blobs" && parts[n-2] == "uploads" {
		return h.named(parts[:n-3], func(name string) error { return h.upload(w, r, name, parts[n-1]) })
	}
	if n < 3 {
		return refuse(http.StatusNotFound, "UNSUPPORTED", "no such path")
	}
	return h.named(parts[:n-2], func(name string) error {
		switch last := parts[n-1]; parts[n-2] {
		case "blobs":
			if last == "uploads" {
				return h.startUpload(w, r, name)
			}
			return h.blob(w, r, name, last)
		case "manifests":
			return h.manifest(w, r, name, last)
		case "tags":
			return h.tags(w, r, name)
		case "referrers":
			return h.referrers(w, r, name, last)
		}
		return refuse(http.StatusNotFound, "UNSUPPORTED", "no such path")
	})
}

func (h *Handler) named(parts []string, serve func(name string) error) error {
	name := strings.Join(parts, "/")
	if len(name) > 255 || !nameForm.MatchString(name) {
		return refuse(http.StatusBadRequest, "NAME_INVALID", "repository name %q is not valid", name)
	}
	return serve(name)
}

func notAllowed() error {
	return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "the method is not supported here")
}

func parseDigest(s string) (protocol.Digest, error) {
	d, err := protocol.ParseDigest(s)
	if err != nil {
		return "", refuse(http.StatusBadRequest, "DIGEST_INVALID", "%s", err)
	}
	return d, nil
}
