package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/protocol"
)

// maxManifest bounds a manifest that is fetched by tag, in bytes, as registries do.
const maxManifest = 4 << 20

var (
	// route is /v2/<name>/(manifests|blobs)/<reference>.
	route = regexp.MustCompile(`^/v2/([a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)/(manifests|blobs)/([A-Za-z0-9_][A-Za-z0-9._:-]{0,199})$`)
	// hostForm is a registry host as containerd gives it in ns.
	hostForm = regexp.MustCompile(`^[A-Za-z0-9.\[\]:-]{1,255}$`)
)

// ServeHTTP serves pulls (distribution specification, section "Pull"). The query
// parameter ns names the registry that the image is from, as containerd sends it
// to a mirror.
func (c *Cache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "the cache of a site serves pulls only: push to the CO's registry")
		return
	}
	if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
		w.WriteHeader(http.StatusOK)
		return
	}
	m := route.FindStringSubmatch(r.URL.Path)
	ns := r.URL.Query().Get("ns")
	if m == nil || ns != "" && !hostForm.MatchString(ns) {
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN", "no such resource in the distribution API: "+r.URL.Path)
		return
	}
	from := source{base: c.upstream(ns), path: m[1] + "/" + m[2] + "/" + m[3]}
	digest, err := protocol.ParseDigest(m[3])
	count := &c.counts.misses
	if err == nil && c.has(digest) {
		count = &c.counts.hits
	}
	defer func() { count.Add(1) }()
	switch {
	case err == nil && m[2] == "blobs":
		var served bool
		if served, err = c.follow(w, r, digest, from); served {
			return
		}
	case err == nil:
		err = c.fetch(r.Context(), digest, from)
	case m[2] == "manifests":
		digest, err = c.resolve(r.Context(), ns, from)
	}
	if err != nil {
		count = &c.counts.failed
		c.fail(w, r, m[2], err)
		return
	}
	err = c.send(w, r, digest, m[2])
	if errors.Is(err, errDamaged) {
		// It was removed: once more from the registry.
		if err = c.fetch(r.Context(), digest, source{base: from.base, path: m[1] + "/" + m[2] + "/" + string(digest)}); err == nil {
			err = c.send(w, r, digest, m[2])
		}
	}
	if err != nil {
		count = &c.counts.failed
		c.fail(w, r, m[2], err)
	}
}

// follow answers with a blob that is not here yet, as it arrives. It reports false if it
// has not answered: the download failed before it began, or the blob is here.
func (c *Cache) follow(w http.ResponseWriter, r *http.Request, d protocol.Digest, from source) (served bool, err error) {
	if c.has(d) {
		return false, nil
	}
	dl, err := c.begin(d, from)
	if err != nil {
		return false, err
	}
	size, err := dl.open(r.Context())
	if size == 0 || err != nil {
		return false, err
	}
	f, err := c.opts.Disk.Open(c.partialPath(d), os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) { // it has just ended
		return false, c.fetch(r.Context(), d, from)
	}
	if err != nil {
		return false, fmt.Errorf("open partial blob: %w", err)
	}
	defer f.Close()
	head(w, d, "application/octet-stream")
	// An error in the middle cuts the answer off; the client sees that by its length.
	http.ServeContent(w, r, "", time.Time{}, &follower{ctx: r.Context(), dl: dl, f: f, size: size})
	return true, nil
}

func head(w http.ResponseWriter, d protocol.Digest, mediaType string) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", string(d))
	w.Header().Set("ETag", `"`+string(d)+`"`)
}

// send answers with a blob, or the part of it that Range asks for. An error says that it
// did not answer: with errDamaged, because the blob was damaged and is removed.
func (c *Cache) send(w http.ResponseWriter, r *http.Request, d protocol.Digest, what string) error {
	b, err := c.open(d)
	if err != nil {
		return err
	}
	defer b.Close()
	var content io.ReadSeeker = newChecked(b)
	if r.Header.Get("Range") != "" || b.size <= maxManifest {
		if err := b.check(); err != nil {
			c.damaged(b, err)
			return err
		}
		content = io.NewSectionReader(b, 0, b.size)
	}
	mediaType := "application/octet-stream"
	if what == "manifests" {
		manifest, err := io.ReadAll(io.NewSectionReader(b, 0, min(b.size, maxManifest)))
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		mediaType = c.mediaType(d, manifest)
	}
	head(w, d, mediaType)
	http.ServeContent(w, r, "", time.Time{}, content)
	if sent, ok := content.(*checked); ok && r.Method == http.MethodGet && sent.at == b.size {
		if err := sent.right(); err != nil {
			// The answer was cut off before its last byte: the client asks again.
			c.damaged(b, err)
		}
	}
	return nil
}

// resolve returns the digest that a tag has now, and fetches its manifest. While
// the upstream is away it is the one that the tag had last.
func (c *Cache) resolve(ctx context.Context, ns string, from source) (protocol.Digest, error) {
	known := c.tagFile(ns, from.path)
	digest, err := c.pullTag(ctx, from)
	if err == nil {
		return digest, known.Save([]byte(digest))
	}
	if protocol.KindOf(err) != protocol.Unavailable {
		return "", err
	}
	found := c.load(known, func(text string) (err error) {
		digest, err = protocol.ParseDigest(text)
		return err
	})
	if !found || !c.has(digest) {
		return "", err
	}
	return digest, nil
}

// pullTag fetches a manifest by tag and stores it under its digest.
func (c *Cache) pullTag(ctx context.Context, from source) (protocol.Digest, error) {
	resp, err := c.ask(ctx, from, 0)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", refusal(from, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return "", errAway(from.base, err)
	}
	if len(body) > maxManifest {
		return "", protocol.Errorf(protocol.Invalid, "the manifest %s is larger than %d bytes", from.path, maxManifest)
	}
	c.counts.fetched.Add(int64(len(body)))
	digest := protocol.DigestOf(body)
	if c.has(digest) {
		return digest, nil
	}
	if err := c.room(int64(len(body))); err != nil {
		return "", err
	}
	if err := c.typeFile(digest).Save([]byte(resp.Header.Get("Content-Type"))); err != nil {
		return "", noSpace("store media type", err)
	}
	if err := atomicfile.Write(c.opts.Disk, c.blobPath(digest), body, 0o640); err != nil {
		return "", noSpace("store manifest", err)
	}
	return digest, c.added(digest)
}

// fail answers an error in the form of the distribution specification.
func (c *Cache) fail(w http.ResponseWriter, r *http.Request, what string, err error) {
	if r.Context().Err() != nil {
		return // the client is disconnected
	}
	status, code := http.StatusBadGateway, "UNAVAILABLE"
	switch kind := protocol.KindOf(err); {
	case kind == protocol.NotFound && what == "blobs":
		status, code = http.StatusNotFound, "BLOB_UNKNOWN"
	case kind == protocol.NotFound:
		status, code = http.StatusNotFound, "MANIFEST_UNKNOWN"
	case kind == protocol.Denied:
		status, code = http.StatusForbidden, "DENIED"
	case kind == protocol.Invalid:
		status, code = http.StatusUnprocessableEntity, "MANIFEST_INVALID"
	case errors.Is(err, errNoSpace):
		status, code = http.StatusInsufficientStorage, "NO_SPACE" // one of its own: the specification has none
	}
	c.log.WarnContext(r.Context(), "image not served", "path", r.URL.Path, "status", status, "err", err)
	refuse(w, status, code, err.Error())
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}
