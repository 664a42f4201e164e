package registry

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/protocol"
)

// PushImage builds an image and stores it under ref; with several, one for each
// platform, it stores an index of them. It returns the digest under which ref is then
// found.
func (c *Client) PushImage(ctx context.Context, ref string, images ...image.Image) (protocol.Digest, error) {
	t, err := c.reach(ref)
	if err != nil {
		return "", err
	}
	if len(images) == 0 {
		return "", protocol.Errorf(protocol.Invalid, "push image %s: no image is given", ref)
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	built := make([]v1.Image, len(images))
	for i := range images {
		if built[i], err = images[i].Build(); err != nil {
			return "", protocol.Errorf(protocol.Invalid, "build image %s: %w", ref, err)
		}
	}
	var digest v1.Hash
	if len(built) == 1 {
		err = remote.Write(t.dialled, built[0], c.options(ctx)...)
		if err == nil {
			digest, err = built[0].Digest()
		}
	} else {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for i, img := range built {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: images[i].Platform()},
			})
		}
		err = remote.WriteIndex(t.dialled, index, c.options(ctx)...)
		if err == nil {
			digest, err = index.Digest()
		}
	}
	if err != nil {
		return "", failed(ctx, "push image", ref, err)
	}
	return protocol.Digest(digest.String()), nil
}
