package runspec

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// devices gives a container its devices.
func devices(c engine.Container) ([]oci.SpecOpts, error) {
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
