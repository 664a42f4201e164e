package containerd

import (
	"context"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes"
)

// findDevices looks the devices of a container up anew: one that was unplugged has
// another number when it comes back. The caller holds the lock.
func (e *Engine) findDevices(ctx context.Context, have client.Container, k string, c engine.Container) error {
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
