package containerd

import (
	"context"
	"slices"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes"
	"github.com/colonyfleet/colony/protocol"
)

// foundAnew reports whether a container has what may be another thing at its next start.
func foundAnew(c engine.Container) bool {
	return len(c.Spec.Devices) > 0 || slices.ContainsFunc(c.Spec.Mounts, func(m protocol.Mount) bool { return m.Subpath != "" })
}

// findAnew looks up again what a container has of the node: a device that was unplugged has
// another number when it comes back, and a part of a volume may have been removed. The
// caller holds the lock.
func (e *Engine) findAnew(ctx context.Context, have client.Container, k string, c engine.Container) error {
	img, err := have.Image(ctx)
	if err != nil {
		return err
	}
	config, err := imageConfig(ctx, img)
	if err != nil {
		return err
	}
	if c.Spec.Mounts, err = volumes.WithImageVolumes(c, config); err != nil {
		return err
	}
	opts, err := e.specOf(k, c, config)
	if err != nil {
		return err
	}
	return have.Update(ctx, func(ctx context.Context, client *client.Client, record *containers.Container) error {
		spec, err := oci.GenerateSpec(ctx, client, record, opts...)
		if err != nil {
			return err
		}
		record.Spec, err = typeurl.MarshalAny(spec)
		return err
	})
}
