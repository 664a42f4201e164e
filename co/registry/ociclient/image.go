package ociclient

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/colonyfleet/colony/co/registry/failure"
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
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var built interface{ Digest() (v1.Hash, error) }
	var push func() error
	switch len(images) {
	case 0:
		return "", protocol.Errorf(protocol.Invalid, "push image %s: no image is given", ref)
	case 1:
		var img v1.Image
		img, err = images[0].Build()
		built, push = img, func() error { return remote.Write(t.Dialled, img, c.options(ctx)...) }
	default:
		var index v1.ImageIndex
		index, err = image.Index(images...)
		built, push = index, func() error { return remote.WriteIndex(t.Dialled, index, c.options(ctx)...) }
	}
	if err != nil {
		return "", protocol.Errorf(protocol.Invalid, "build image %s: %w", ref, err)
	}
	if err := push(); err != nil {
		return "", failure.Of(ctx, "push image", ref, err)
	}
	digest, err := built.Digest()
	return protocol.Digest(digest.String()), err
}
