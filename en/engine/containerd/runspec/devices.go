package runspec

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// devices gives a container its devices.
func devices(c engine.Container, cdiDirs []string) ([]oci.SpecOpts, error) {
	var opts []oci.SpecOpts
	var named []string
	for _, d := range c.Spec.Devices {
		if !filepath.IsAbs(d.Host) {
			named = append(named, d.Host)
			continue
		}
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
	if len(named) > 0 {
		opts = append(opts, withCDI(c, named, cdiDirs))
	}
	return opts, nil
}

// withCDI makes the changes that the node's CDI files say for the devices of these names.
func withCDI(c engine.Container, names, dirs []string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		// Read for each container: drivers write the files anew when hardware changes.
		cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return engine.Errorf(protocol.CreateFailed, "container %s: read the CDI files of the node in %s: %w", c.ID, strings.Join(dirs, " and "), err)
		}
		missing, err := cache.InjectDevices(s, names...)
		if len(missing) > 0 {
			var broken []error
			for _, path := range slices.Sorted(maps.Keys(cache.GetErrors())) {
				broken = append(broken, cache.GetErrors()[path]...)
			}
			return engine.Errorf(protocol.CreateFailed, "container %s: the node has no CDI device %s in %s, it has %q: install the vendor's driver and "+
				"write its CDI file, or place the deployment on a node that has it: %w", c.ID, strings.Join(missing, ", "), strings.Join(dirs, " and "), cache.ListDevices(), errors.Join(append([]error{err}, broken...)...))
		}
		if err != nil {
			return engine.Errorf(protocol.CreateFailed, "container %s: CDI devices %s: %w", c.ID, strings.Join(names, ", "), err)
		}
		return nil
	}
}
