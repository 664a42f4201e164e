package artifact

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// What Margo 1.0.0-rc.3 names an application package and a Compose archive.
const (
	PackageKind       = "application/vnd.margo.app.v1+json"                    // artifactType of a package
	DescriptionMedia  = "application/vnd.margo.app.description.v1+yaml"        // layer with the description
	PackageMedia      = "application/vnd.margo.app."                           // how the types of a package's layers begin
	ComposeKind       = "application/vnd.org.margo.component.compose+json"     // artifactType of a Compose archive
	ComposeMedia      = "application/vnd.org.margo.component.compose.tar+gzip" // its layer
	TitleAnnotation   = "org.opencontainers.image.title"                       // path of a file in a package
	TypeAnnotation    = "org.margo.component.type"                             // compose
	VersionAnnotation = "org.margo.component.version"                          // the revision of a component
	ResourceMark      = "org.margo.app.resource"                               // kind of a resource, such as icon
	DescriptionFile   = "margo.yaml"                                           // the description's path in a package
)

// A Manifest is what the registry reads of an image manifest or an index (OCI image
// specification 1.1).
type Manifest struct {
	MediaType    string            `json:"mediaType"`    // of the manifest itself
	ArtifactType string            `json:"artifactType"` // empty: that of the config
	Config       *Descriptor       `json:"config"`       // nil: an index
	Layers       []Descriptor      `json:"layers"`       // of an image or artifact
	Manifests    []Descriptor      `json:"manifests"`    // of an index
	Subject      *Descriptor       `json:"subject"`      // what it refers to, as a signature does; nil: nothing
	Annotations  map[string]string `json:"annotations"`  // by key
}

// Blobs returns the descriptors of the blobs that a manifest names.
func (m *Manifest) Blobs() []Descriptor {
	if m.Config == nil {
		return m.Layers
	}
	return append(slices.Clone(m.Layers), *m.Config)
}

// CheckArchive checks the manifest of the Compose archive of a revision.
func CheckArchive(m *Manifest, revision string) error {
	if m.ArtifactType != ComposeKind {
		return fmt.Errorf("artifact type %q, want %s", m.ArtifactType, ComposeKind)
	}
	if len(m.Layers) != 1 {
		return fmt.Errorf("%d layers, want exactly one", len(m.Layers))
	}
	if got := m.Layers[0].MediaType; got != ComposeMedia {
		return fmt.Errorf("layer of type %q, want %s", got, ComposeMedia)
	}
	for key, want := range map[string]string{TypeAnnotation: "compose", VersionAnnotation: revision} {
		// The specification wants them on the layer; its own example puts them on the
		// manifest. Both are read, and a contradiction between them is not settled.
		onLayer, onManifest := m.Layers[0].Annotations[key], m.Annotations[key]
		if onLayer != "" && onManifest != "" && onLayer != onManifest {
			return fmt.Errorf("annotation %s is %q on the layer and %q on the manifest", key, onLayer, onManifest)
		}
		if onLayer != want && onManifest != want {
			return fmt.Errorf("annotation %s is %q, want %q", key, cmp.Or(onLayer, onManifest), want)
		}
	}
	return nil
}

// CheckConfig checks that an artifact has the empty config, which says that it cannot be run.
func CheckConfig(m *Manifest) error {
	if m.Config == nil {
		return fmt.Errorf("no config: want the empty one, of type %s", EmptyMedia)
	}
	if want := Describe(EmptyMedia, EmptyConfig); m.Config.MediaType != want.MediaType || m.Config.Digest != want.Digest {
		return fmt.Errorf("config of type %q and %d bytes: want the empty one, {} of type %s", m.Config.MediaType, m.Config.Size, EmptyMedia)
	}
	return nil
}

// KindOf returns the kind of the resource that a layer holds, such as icon.
func KindOf(l Descriptor) string {
	if kind := l.Annotations[ResourceMark]; kind != "" {
		return kind
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(l.MediaType, PackageMedia), ".")
	return kind
}

// resourceKinds are the kinds of resources, which are keys of the catalog entry.
var resourceKinds = []string{"descriptionFile", "icon", "licenseFile", "releaseNotes"}

// FileOf returns the path of the file that a layer of a package holds, "" for a resource
// that has no path of its own.
func FileOf(l Descriptor) (string, error) {
	if !strings.HasPrefix(l.MediaType, PackageMedia) {
		return "", fmt.Errorf("layer of type %q, want %s…", l.MediaType, PackageMedia)
	}
	title := strings.TrimPrefix(l.Annotations[TitleAnnotation], "./")
	if l.MediaType == DescriptionMedia {
		if title != "" && title != DescriptionFile {
			return "", fmt.Errorf("the layer of type %s is named %q, want %s", DescriptionMedia, title, DescriptionFile)
		}
		return DescriptionFile, nil
	}
	if mark := l.Annotations[ResourceMark]; mark != "" && !slices.Contains(resourceKinds, mark) {
		return "", fmt.Errorf("layer of type %s: annotation %s is %q, want one of %s", l.MediaType, ResourceMark, mark, strings.Join(resourceKinds, ", "))
	}
	if title == "" && slices.Contains(resourceKinds, KindOf(l)) {
		return "", nil
	}
	if !fs.ValidPath(title) || title == "." || title == DescriptionFile {
		return "", fmt.Errorf("layer of type %s: annotation %s is %q, want a path inside the package", l.MediaType, TitleAnnotation, title)
	}
	return title, nil
}

// The bounds of an application package, in bytes.
const (
	MaxFile        = 64 << 20  // one file, and a Compose archive
	MaxDescription = 1 << 20   // margo.yaml
	maxPackage     = 256 << 20 // all files
)

// maxPackageFiles is how many files a package may have.
const maxPackageFiles = 64

// Files checks the manifest of a package and returns its layers by their path in the
// package, those without one by their kind.
func Files(m *Manifest) (titled, untitled map[string]Descriptor, err error) {
	if m.ArtifactType != PackageKind {
		return nil, nil, fmt.Errorf("artifact type %q, want %s", m.ArtifactType, PackageKind)
	}
	if len(m.Layers) > maxPackageFiles {
		return nil, nil, fmt.Errorf("%d layers, the limit is %d", len(m.Layers), maxPackageFiles)
	}
	if err := CheckConfig(m); err != nil {
		return nil, nil, err
	}
	titled, untitled = map[string]Descriptor{}, map[string]Descriptor{}
	total := int64(0)
	for _, l := range m.Layers {
		title, err := FileOf(l)
		if err != nil {
			return nil, nil, err
		}
		limit := int64(MaxFile)
		if title == DescriptionFile {
			limit = MaxDescription
		}
		if l.Size < 0 || l.Size > limit {
			return nil, nil, fmt.Errorf("layer %s has %d bytes, the limit is %d", title, l.Size, limit)
		}
		if total += l.Size; total > maxPackage {
			return nil, nil, fmt.Errorf("the layers have more than %d bytes in all: what an application runs belongs into its images", maxPackage)
		}
		if title == "" {
			untitled[KindOf(l)] = l
			continue
		}
		if _, twice := titled[title]; twice {
			return nil, nil, fmt.Errorf("two layers are %s", title)
		}
		titled[title] = l
	}
	if _, ok := titled[DescriptionFile]; !ok {
		return nil, nil, fmt.Errorf("no layer of type %s", DescriptionMedia)
	}
	return titled, untitled, nil
}
