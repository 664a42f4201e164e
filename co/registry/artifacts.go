package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// What Margo 1.0.0-rc.3 names an application package and a Compose archive.
const (
	packageType       = "application/vnd.margo.app.v1+json"
	descriptionMedia  = "application/vnd.margo.app.description.v1+yaml"
	packageMedia      = "application/vnd.margo.app."
	composeType       = "application/vnd.org.margo.component.compose+json"
	composeMedia      = "application/vnd.org.margo.component.compose.tar+gzip"
	titleAnnotation   = "org.opencontainers.image.title"
	typeAnnotation    = "org.margo.component.type"
	versionAnnotation = "org.margo.component.version"
	resourceMark      = "org.margo.app.resource"
	descriptionFile   = "margo.yaml"
	emptyMedia        = "application/vnd.oci.empty.v1+json"
	maxPackageFiles   = 64
)

var emptyConfig = []byte("{}")

// Archive fetches the Compose archive of a component: the layer of the artifact that
// revision names in repository, which is oci://host/path. The digest, of the archive,
// has been checked, before anybody unpacks it.
func (c *Client) Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error) {
	ref := strings.TrimSuffix(repository, "/") + ":" + revision
	t, err := c.parse(ref)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	m, _, err := c.manifest(ctx, t)
	if err != nil {
		return nil, "", failed(ctx, "pull Compose archive", ref, err)
	}
	if err := checkArchiveManifest(m, revision); err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "Compose archive %s: %w", ref, err)
	}
	b, err := c.fetch(ctx, t, m.Layers[0])
	if err != nil {
		return nil, "", failed(ctx, "pull Compose archive", ref, err)
	}
	return b, protocol.DigestOf(b), nil
}

func checkArchiveManifest(m *manifestFile, revision string) error {
	if m.ArtifactType != composeType {
		return fmt.Errorf("artifact type %q, want %s", m.ArtifactType, composeType)
	}
	if len(m.Layers) != 1 {
		return fmt.Errorf("%d layers, want exactly one", len(m.Layers))
	}
	if got := m.Layers[0].MediaType; got != composeMedia {
		return fmt.Errorf("layer of type %q, want %s", got, composeMedia)
	}
	for key, want := range map[string]string{typeAnnotation: "compose", versionAnnotation: revision} {
		// The specification wants them on the layer; its own example puts them on the
		// manifest. Both are read, and a contradiction between them is not settled.
		onLayer, onManifest := m.Layers[0].Annotations[key], m.Annotations[key]
		if onLayer != want && onManifest != want {
			return fmt.Errorf("annotation %s is %q, want %q", key, onLayer+onManifest, want)
		}
		if onLayer != "" && onManifest != "" && onLayer != onManifest {
			return fmt.Errorf("annotation %s is %q on the layer and %q on the manifest", key, onLayer, onManifest)
		}
	}
	return nil
}

// PushArchive stores a Compose archive as the artifact repository:revision and
// returns the digest of the artifact.
func (c *Client) PushArchive(ctx context.Context, repository, revision string, tgz []byte) (protocol.Digest, error) {
	annotations := map[string]string{typeAnnotation: "compose", versionAnnotation: revision}
	return c.pushArtifact(ctx, strings.TrimSuffix(repository, "/")+":"+revision, artifact{
		kind: composeType, annotations: annotations,
		layers: []artifactLayer{{media: composeMedia, annotations: annotations, content: tgz}},
	})
}

// Package fetches an application package and returns its files by their path in the
// package; margo.yaml is among them. The digest is that of the artifact.
func (c *Client) Package(ctx context.Context, ref string) (map[string][]byte, protocol.Digest, error) {
	t, err := c.parse(ref)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	m, digest, err := c.manifest(ctx, t)
	if err != nil {
		return nil, "", failed(ctx, "pull package", ref, err)
	}
	if m.ArtifactType != packageType {
		return nil, "", protocol.Errorf(protocol.Invalid, "package %s: artifact type %q, want %s", ref, m.ArtifactType, packageType)
	}
	if len(m.Layers) > maxPackageFiles {
		return nil, "", protocol.Errorf(protocol.Invalid, "package %s: %d layers, the limit is %d", ref, len(m.Layers), maxPackageFiles)
	}
	if err := checkConfig(m); err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "package %s: %w", ref, err)
	}
	files, untitled := map[string][]byte{}, map[string][]byte{}
	for _, l := range m.Layers {
		title, err := fileOf(l)
		if err != nil {
			return nil, "", protocol.Errorf(protocol.Invalid, "package %s: %w", ref, err)
		}
		if title == "" {
			if untitled[kindOf(l)], err = c.fetch(ctx, t, l); err != nil {
				return nil, "", failed(ctx, "pull package", ref, err)
			}
			continue
		}
		if _, twice := files[title]; twice {
			return nil, "", protocol.Errorf(protocol.Invalid, "package %s: two layers are %s", ref, title)
		}
		if files[title], err = c.fetch(ctx, t, l); err != nil {
			return nil, "", failed(ctx, "pull package", ref, err)
		}
	}
	if files[descriptionFile] == nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "package %s: no layer of type %s", ref, descriptionMedia)
	}
	placeUntitled(files, untitled)
	return files, digest, nil
}

// checkConfig checks that an artifact has the empty config, which says that nobody
// should run it.
func checkConfig(m *manifestFile) error {
	if m.Config == nil {
		return fmt.Errorf("no config: want the empty one, of type %s", emptyMedia)
	}
	if want := describe(emptyMedia, emptyConfig); m.Config.MediaType != want.MediaType || m.Config.Digest != want.Digest {
		return fmt.Errorf("config of type %q and %d bytes: want the empty one, {} of type %s", m.Config.MediaType, m.Config.Size, emptyMedia)
	}
	return nil
}

// placeUntitled gives the resources that have a kind and no path the path that the
// description has for their kind. Those that it does not name are of no use.
func placeUntitled(files, untitled map[string][]byte) {
	if len(untitled) == 0 {
		return
	}
	app, err := v1rc3.ParseApplication(files[descriptionFile])
	if err != nil {
		return // what is wrong with it says the import
	}
	for key, file := range app.Metadata.Catalog.Application.Files() {
		content, ok := untitled[key]
		if _, titled := files[path.Clean(file)]; ok && !titled {
			files[path.Clean(file)] = content
		}
	}
}

// kindOf returns the kind of the resource that a layer holds, such as icon.
func kindOf(l descriptor) string {
	if kind := l.Annotations[resourceMark]; kind != "" {
		return kind
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(l.MediaType, packageMedia), ".")
	return kind
}

// resourceKinds are the kinds of resources, which are keys of the catalog entry.
var resourceKinds = []string{"descriptionFile", "icon", "licenseFile", "releaseNotes"}

// fileOf returns the path of the file that a layer of a package holds, "" for a resource
// that has no path of its own.
func fileOf(l descriptor) (string, error) {
	if !strings.HasPrefix(l.MediaType, packageMedia) {
		return "", fmt.Errorf("layer of type %q, want %s…", l.MediaType, packageMedia)
	}
	title := strings.TrimPrefix(l.Annotations[titleAnnotation], "./")
	if l.MediaType == descriptionMedia {
		if title != "" && title != descriptionFile {
			return "", fmt.Errorf("the layer of type %s is named %q, want %s", descriptionMedia, title, descriptionFile)
		}
		return descriptionFile, nil
	}
	if mark := l.Annotations[resourceMark]; mark != "" && !slices.Contains(resourceKinds, mark) {
		return "", fmt.Errorf("layer of type %s: annotation %s is %q, want one of %s", l.MediaType, resourceMark, mark, strings.Join(resourceKinds, ", "))
	}
	if title == "" && slices.Contains(resourceKinds, kindOf(l)) {
		return "", nil
	}
	if !fs.ValidPath(title) || title == "." || title == descriptionFile {
		return "", fmt.Errorf("layer of type %s: annotation %s is %q, want a path inside the package", l.MediaType, titleAnnotation, title)
	}
	return title, nil
}

// PushPackage stores the application package in pkg, a folder with margo.yaml, as the
// artifact ref and returns its digest. The tag of ref must be the version in
// margo.yaml; a ref without a tag gets it.
func (c *Client) PushPackage(ctx context.Context, ref string, pkg fs.FS) (protocol.Digest, error) {
	doc, err := fs.ReadFile(pkg, descriptionFile)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: %w", ref, err)
	}
	app, err := v1rc3.ParseApplication(doc)
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: %w", ref, err)
	}
	version := app.Metadata.Version
	if last := ref[strings.LastIndex(ref, "/")+1:]; !strings.Contains(last, ":") {
		ref += ":" + version
	} else if !strings.HasSuffix(last, ":"+version) {
		return "", protocol.Errorf(protocol.Invalid, "package for %s: its version is %s, and the tag must be the same", ref, version)
	}
	a := artifact{kind: packageType, layers: []artifactLayer{{
		media: descriptionMedia, annotations: map[string]string{titleAnnotation: descriptionFile}, content: doc,
	}}}
	resources := app.Metadata.Catalog.Application.Files()
	for _, key := range slices.Sorted(maps.Keys(resources)) {
		file := path.Clean(resources[key])
		content, err := fs.ReadFile(pkg, file)
		if err != nil {
			return "", protocol.Errorf(protocol.Invalid, "package for %s: %s: %w", ref, key, err)
		}
		a.layers = append(a.layers, artifactLayer{
			media:       packageMedia + key + ".v1+" + formatOf(file),
			annotations: map[string]string{titleAnnotation: file, resourceMark: key},
			content:     content,
		})
	}
	return c.pushArtifact(ctx, ref, a)
}

// formatOf is the last part of a resource's media type.
func formatOf(file string) string {
	switch ext := strings.TrimPrefix(strings.ToLower(path.Ext(file)), "."); ext {
	case "md", "":
		return "markdown"
	case "jpg":
		return "jpeg"
	case "txt":
		return "plain"
	case "svg":
		return "svg+xml"
	default:
		return ext
	}
}

// An artifact is an OCI manifest with the empty config, to be pushed.
type artifact struct {
	kind        string
	annotations map[string]string
	layers      []artifactLayer
}

type artifactLayer struct {
	media       string
	annotations map[string]string
	content     []byte
}

// rawManifest is a manifest as its bytes.
type rawManifest struct {
	media types.MediaType
	body  []byte
}

// RawManifest returns the bytes.
func (m rawManifest) RawManifest() ([]byte, error) { return m.body, nil }

// MediaType returns the media type.
func (m rawManifest) MediaType() (types.MediaType, error) { return m.media, nil }

func describe(media string, content []byte) descriptor {
	return descriptor{MediaType: media, Digest: string(protocol.DigestOf(content)), Size: int64(len(content))}
}

// pushArtifact writes the blobs and then the manifest. Equal artifacts have equal
// bytes.
func (c *Client) pushArtifact(ctx context.Context, ref string, a artifact) (protocol.Digest, error) {
	t, err := c.parse(ref)
	if err != nil {
		return "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	options := c.options(ctx)
	push := func(media string, content []byte) error {
		return remote.WriteLayer(t.dialled.Context(), static.NewLayer(content, types.MediaType(media)), options...)
	}
	if err := push(emptyMedia, emptyConfig); err != nil {
		return "", failed(ctx, "push", ref, err)
	}
	layers := make([]descriptor, 0, len(a.layers))
	for _, l := range a.layers {
		if err := push(l.media, l.content); err != nil {
			return "", failed(ctx, "push", ref, err)
		}
		d := describe(l.media, l.content)
		d.Annotations = l.annotations
		layers = append(layers, d)
	}
	body, err := json.Marshal(struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		ArtifactType  string            `json:"artifactType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}{2, string(types.OCIManifestSchema1), a.kind, describe(emptyMedia, emptyConfig), layers, a.annotations})
	if err != nil {
		return "", fmt.Errorf("encode manifest of %s: %w", ref, err)
	}
	if err := remote.Put(t.dialled, rawManifest{types.OCIManifestSchema1, body}, options...); err != nil {
		return "", failed(ctx, "push", ref, err)
	}
	return protocol.DigestOf(body), nil
}
