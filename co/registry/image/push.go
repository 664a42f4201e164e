package image

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Raw is a manifest as its bytes.
type Raw struct {
	Media types.MediaType
	Body  []byte
}

// RawManifest returns the bytes.
func (m Raw) RawManifest() ([]byte, error) { return m.Body, nil }

// MediaType returns the media type.
func (m Raw) MediaType() (types.MediaType, error) { return m.Media, nil }

// Index builds the index of images for several platforms.
func Index(images ...Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i := range images {
		built, err := images[i].Build()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: built, Descriptor: v1.Descriptor{Platform: images[i].Platform()}})
	}
	return index, nil
}
