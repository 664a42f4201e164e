// Package artifact has the manifests of OCI registries as they are read, with Margo's rules for
// packages and Compose archives. It also encodes artifacts that are no images: a manifest with the
// empty config and layers (OCI image specification 1.1).
package artifact

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// ManifestMedia is the media type of a manifest, EmptyMedia that of the empty config.
const (
	ManifestMedia = "application/vnd.oci.image.manifest.v1+json"
	EmptyMedia    = "application/vnd.oci.empty.v1+json"
)

// EmptyConfig is the content of the empty config, which says that the artifact cannot be run.
var EmptyConfig = []byte("{}")

// A Descriptor names content.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`              // of the content
	Digest       string            `json:"digest"`                 // algorithm:hex
	Size         int64             `json:"size"`                   // in bytes
	ArtifactType string            `json:"artifactType,omitempty"` // of a manifest; empty: none
	Annotations  map[string]string `json:"annotations,omitempty"`  // by key; empty: none
	URLs         []string          `json:"urls,omitempty"`         // where else the content is; empty: nowhere
}

// Describe returns the descriptor of content.
func Describe(media string, content []byte) Descriptor {
	return Descriptor{MediaType: media, Digest: string(protocol.DigestOf(content)), Size: int64(len(content))}
}

// A Layer is one blob of an artifact.
type Layer struct {
	Media       string
	Annotations map[string]string
	Content     []byte
}

// An Artifact is what one manifest names.
type Artifact struct {
	Kind        string // the artifactType
	Annotations map[string]string
	Layers      []Layer
}

// Blobs returns what must be in the registry before the manifest.
func (a Artifact) Blobs() []Layer {
	return append([]Layer{{Media: EmptyMedia, Content: EmptyConfig}}, a.Layers...)
}

// Manifest returns the OCI manifest. Equal artifacts have equal bytes.
func (a Artifact) Manifest() ([]byte, error) {
	layers := make([]Descriptor, 0, len(a.Layers))
	for _, l := range a.Layers {
		d := Describe(l.Media, l.Content)
		d.Annotations = l.Annotations
		layers = append(layers, d)
	}
	return json.Marshal(struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		ArtifactType  string            `json:"artifactType"`
		Config        Descriptor        `json:"config"`
		Layers        []Descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}{2, ManifestMedia, a.Kind, Describe(EmptyMedia, EmptyConfig), layers, a.Annotations})
}

// Format is the last part of the media type of a file, by its name.
func Format(file string) string {
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
