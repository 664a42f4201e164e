package containerd

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// deviceOpts gives a container its devices.
func deviceOpts(c engine.Container) ([]oci.SpecOpts, error) {
	var opts []oci.SpecOpts
	for _, d := range c.Spec.Devices {
		// Stable names are symbolic links: /dev/serial/by-id/…
		host, err := filepath.EvalSymlinks(d.Host)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, engine.Errorf(protocol.CreateFailed, "container %s: the node has no device %s: plug it in, or place the deployment on a node that has it", c.ID, d.Host)
		}
		if err != nil {
			return nil, engine.Errorf(protocol.CreateFailed, "container %s: find device %s of the node: %w", c.ID, d.Host, err)
		}
		permissions, target := d.Permissions, d.Container
		if permissions == "" {
			permissions = "rwm"
		}
		if target == "" {
			target = d.Host
		}
		opts = append(opts, oci.WithDevices(host, target, permissions))
	}
	return opts, nil
}

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
	if c.Spec.Mounts, err = withImageVolumes(c, config); err != nil {
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
