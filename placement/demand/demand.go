// Package demand says what one version of a deployment asks of a node that is to run it. It is pure.
package demand

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// A Demand is what a version asks for. Its zero value asks for nothing.
type Demand struct {
	// Volumes are the names of those that stay on the node, sorted.
	Volumes []string
	// Devices are the device nodes of the host that a container has for itself, sorted.
	Devices []string
}

// Of returns what a version asks for.
func Of(spec *protocol.DeploymentSpec) Demand {
	var d Demand
	for i := range spec.Components {
		for j := range spec.Components[i].Containers {
			c := &spec.Components[i].Containers[j]
			for _, m := range c.Mounts {
				if m.Kind == protocol.MountVolume {
					d.Volumes = append(d.Volumes, m.Source)
				}
			}
			for _, dev := range c.Devices {
				d.Devices = append(d.Devices, dev.Host)
			}
		}
	}
	d.Volumes, d.Devices = sorted(d.Volumes), sorted(d.Devices)
	return d
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
