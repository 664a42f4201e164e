package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/paging"
	"github.com/colonyfleet/colony/protocol"
)

// maxManifest bounds a manifest, in bytes, as the specification advises.
const maxManifest = 4 << 20

// mediaOCIIndex is the media type of an OCI image index.
const mediaOCIIndex = "application/vnd.oci.image.index.v1+json"

func (h *Handler) manifest(w http.ResponseWriter, r *http.Request, name, ref string) error {
	if !strings.Contains(ref, ":") && !tagForm.MatchString(ref) {
		return refuse(http.StatusBadRequest, "TAG_INVALID", "tag %q is not valid", ref)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return h.getManifest(w, r, name, ref)
	case http.MethodPut:
		return h.putManifest(w, r, name, ref)
	case http.MethodDelete:
		if err := h.guardDelete(r, name, ref); err != nil {
			return err
		}
		return h.deleteManifest(w, name, ref)
	}
	return notAllowed()
}

// resolve finds the digest that a tag or digest means in a repository.
func (h *Handler) resolve(name, ref string) (protocol.Digest, error) {
	if strings.Contains(ref, ":") {
		return parseDigest(ref)
	}
	b, err := h.store.Read(tagPath(name, ref))
	if errors.Is(err, fs.ErrNotExist) {
		return "", unknownManifest(name, ref)
	}
	if err != nil {
		return "", fault(err)
	}
	return parseDigest(string(b))
}

func unknownManifest(name, ref string) error {
	return refuse(http.StatusNotFound, "MANIFEST_UNKNOWN", "repository %s has no manifest %s", name, ref)
}

func (h *Handler) getManifest(w http.ResponseWriter, r *http.Request, name, ref string) error {
	d, mediaType, body, err := h.readManifest(name, ref)
	if errors.Is(err, fs.ErrNotExist) {
		return unknownManifest(name, ref)
	}
	if err != nil {
		return fault(err)
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Docker-Content-Digest", string(d))
	w.Header().Set("Etag", `"`+string(d)+`"`)
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // an error means that the client is gone
	}
	return nil
}

func (h *Handler) readManifest(name, ref string) (d protocol.Digest, mediaType string, body []byte, err error) {
	if err := h.store.RLock(); err != nil {
		return "", "", nil, err
	}
	defer h.store.RUnlock()
	if d, err = h.resolve(name, ref); err != nil {
		return "", "", nil, err
	}
	media, err := h.store.Read(manifestPath(name, d))
	if err != nil {
		return "", "", nil, err
	}
	body, err = h.store.Read(blobPath(d))
	return d, string(media), body, err
}

func (h *Handler) putManifest(w http.ResponseWriter, r *http.Request, name, ref string) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxManifest+1))
	if err != nil {
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "read manifest: %s", err)
	}
	if len(body) > maxManifest {
		return refuse(http.StatusRequestEntityTooLarge, "MANIFEST_INVALID", "the manifest is larger than %d bytes", maxManifest)
	}
	d := protocol.DigestOf(body)
	if strings.Contains(ref, ":") && ref != string(d) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "the manifest has digest %s, not %s", d, ref)
	}
	var m artifact.Manifest
	if err := json.Unmarshal(body, &m); err != nil {
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the manifest is not JSON: %s", err)
	}
	mediaType := r.Header.Get("Content-Type")
	switch {
	case mediaType == "":
		mediaType = m.MediaType
	case m.MediaType != "" && m.MediaType != mediaType:
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the manifest says media type %s, the request %s", m.MediaType, mediaType)
	}
	if mediaType == "" || strings.ContainsAny(mediaType, "\r\n") {
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the manifest has no media type")
	}
	if err := h.admit(name, ref, mediaType, body, &m); err != nil {
		return fault(err)
	}
	if m.Subject != nil {
		w.Header().Set("Oci-Subject", m.Subject.Digest)
	}
	w.Header().Set("Location", "/v2/"+name+"/manifests/"+string(d))
	w.Header().Set("Docker-Content-Digest", string(d))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// admit stores a manifest of which everything is here.
func (h *Handler) admit(name, ref, mediaType string, body []byte, m *artifact.Manifest) error {
	if err := h.store.Lock(); err != nil {
		return err
	}
	defer h.store.Unlock()
	if err := h.complete(name, m); err != nil {
		return err
	}
	if err := h.record(name, ref, mediaType, body, m); err != nil {
		return err
	}
	err := h.store.Touch(blobPath(protocol.DigestOf(body)))
	for _, b := range m.Blobs() {
		if d, bad := protocol.ParseDigest(b.Digest); bad == nil && len(b.URLs) == 0 {
			err = errors.Join(err, h.store.Touch(linkPath(name, d)))
		}
	}
	return err
}

// complete checks that all that a manifest names is here: what can be pulled can be
// pulled whole.
func (h *Handler) complete(name string, m *artifact.Manifest) error {
	for _, b := range m.Blobs() {
		d, err := parseDigest(b.Digest)
		if err != nil {
			return err
		}
		if len(b.URLs) > 0 {
			continue
		}
		there, err := h.has(name, d)
		if err != nil {
			return err
		}
		if !there {
			return refuse(http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "blob %s of the manifest is not in %s: push it first", d, name)
		}
	}
	for _, c := range m.Manifests {
		d, err := parseDigest(c.Digest)
		if err != nil {
			return err
		}
		there, err := h.there(manifestPath(name, d))
		if err != nil {
			return err
		}
		if !there {
			return refuse(http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "manifest %s of the index is not in %s: push it first", d, name)
		}
	}
	return nil
}

// record writes the manifest, then what points to it; a crash in between leaves bytes that no
// request can reach.
func (h *Handler) record(name, ref, mediaType string, body []byte, m *artifact.Manifest) error {
	d := protocol.DigestOf(body)
	if err := h.store.Write(blobPath(d), body); err != nil {
		return err
	}
	if m.Subject != nil {
		if err := h.storeReferrer(name, mediaType, body, m); err != nil {
			return err
		}
	}
	if err := errors.Join(h.remove(removedPath(name, d)), h.store.Write(manifestPath(name, d), []byte(mediaType))); err != nil {
		return err
	}
	if strings.Contains(ref, ":") {
		return nil
	}
	return h.store.Write(tagPath(name, ref), []byte(d))
}

func (h *Handler) storeReferrer(name, mediaType string, body []byte, m *artifact.Manifest) error {
	subject, err := parseDigest(m.Subject.Digest)
	if err != nil {
		return err
	}
	d := protocol.DigestOf(body)
	artifactType := m.ArtifactType
	if artifactType == "" && m.Config != nil {
		artifactType = m.Config.MediaType
	}
	entry, err := json.Marshal(artifact.Descriptor{
		MediaType: mediaType, Digest: string(d), Size: int64(len(body)), ArtifactType: artifactType, Annotations: m.Annotations,
	})
	if err != nil {
		return fmt.Errorf("encode referrer: %w", err)
	}
	return h.store.Write(path.Join(referrerDir(name, subject), hexOf(d)), entry)
}

// deleteManifest removes a tag, or a manifest with all tags that name it. Blobs
// that nothing names any more go at a later garbage collection.
func (h *Handler) deleteManifest(w http.ResponseWriter, name, ref string) error {
	err := h.dropManifest(name, ref)
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	return err
}

func (h *Handler) dropManifest(name, ref string) error {
	if err := h.store.Lock(); err != nil {
		return err
	}
	defer h.store.Unlock()
	d, err := h.resolve(name, ref)
	if err != nil {
		return err
	}
	var removed []string
	if strings.Contains(ref, ":") {
		tags, err := h.tagsOf(name)
		if err != nil {
			return err
		}
		for _, tag := range tags {
			if at, err := h.resolve(name, tag); err == nil && at == d {
				removed = append(removed, tagPath(name, tag))
			}
		}
		removed = append(removed, h.linksOf(name, d)...)
	} else {
		removed = append(removed, tagPath(name, ref))
	}
	for i, file := range removed {
		switch err := h.store.Remove(file); {
		case errors.Is(err, fs.ErrNotExist) && i == len(removed)-1:
			return unknownManifest(name, ref)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fault(err)
		}
	}
	return nil
}

// linksOf returns the files that make a manifest one of a repository: where it refers to another
// one, its entry there, and last its link.
func (h *Handler) linksOf(name string, d protocol.Digest) (files []string) {
	var m artifact.Manifest
	if body, err := h.store.Read(blobPath(d)); err == nil && json.Unmarshal(body, &m) == nil && m.Subject != nil {
		if subject, err := protocol.ParseDigest(m.Subject.Digest); err == nil {
			files = append(files, path.Join(referrerDir(name, subject), hexOf(d)))
		}
	}
	return append(files, manifestPath(name, d))
}

func (h *Handler) tagsOf(name string) ([]string, error) {
	all, err := h.names(repoDir(name))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, refuse(http.StatusNotFound, "NAME_UNKNOWN", "no repository %s", name)
	}
	return h.names(path.Join(repoDir(name), "_tags"))
}

// names returns what is in a folder that may be missing, sorted.
func (h *Handler) names(folder string) ([]string, error) {
	list, err := h.store.List(folder)
	if err != nil {
		return nil, fault(err)
	}
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names, nil
}

func (h *Handler) tags(w http.ResponseWriter, r *http.Request, name string) error {
	if r.Method != http.MethodGet {
		return notAllowed()
	}
	tags, err := h.tagsOf(name)
	if err != nil {
		return err
	}
	if tags, err = page(w, r, tags); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, map[string]any{"name": name, "tags": tags})
	return nil
}

// page cuts a sorted list as the request asks, and links to the next part.
func page(w http.ResponseWriter, r *http.Request, all []string) ([]string, error) {
	part, link, err := paging.Cut(r.URL, all)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "UNSUPPORTED", "%s", err)
	}
	if link != "" {
		w.Header().Set("Link", link)
	}
	return part, nil
}

func (h *Handler) catalog(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return notAllowed()
	}
	names, err := h.repositories()
	if err != nil {
		return fault(err)
	}
	named := []string{} // those of which there was ever a manifest
	for _, name := range names {
		all, err := h.names(repoDir(name))
		if err != nil {
			return err
		}
		if slices.Contains(all, "_manifests") {
			named = append(named, name)
		}
	}
	if names, err = page(w, r, named); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, map[string]any{"repositories": names})
	return nil
}

func (h *Handler) referrers(w http.ResponseWriter, r *http.Request, name, ref string) error {
	if r.Method != http.MethodGet {
		return notAllowed()
	}
	subject, err := parseDigest(ref)
	if err != nil {
		return err
	}
	filter := r.URL.Query().Get("artifactType")
	found, err := h.readReferrers(name, subject, filter)
	if err != nil {
		return err
	}
	if filter != "" {
		w.Header().Set("Oci-Filters-Applied", "artifactType")
	}
	w.Header().Set("Content-Type", mediaOCIIndex)
	writeJSON(w, map[string]any{"schemaVersion": 2, "mediaType": mediaOCIIndex, "manifests": found})
	return nil
}

func (h *Handler) readReferrers(name string, subject protocol.Digest, artifactType string) ([]artifact.Descriptor, error) {
	if err := h.store.RLock(); err != nil {
		return nil, err
	}
	defer h.store.RUnlock()
	dir := referrerDir(name, subject)
	files, err := h.names(dir)
	if err != nil {
		return nil, err
	}
	found := []artifact.Descriptor{}
	for _, f := range files {
		var d artifact.Descriptor
		b, err := h.store.Read(path.Join(dir, f))
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil {
			return nil, fault(err)
		}
		if artifactType == "" || d.ArtifactType == artifactType {
			found = append(found, d)
		}
	}
	return found, nil
}
