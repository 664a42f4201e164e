// Package demand says what one version of a deployment asks of a node that is to run it. It is pure.
package demand

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// A Demand is what a version asks for. Its zero value asks for nothing.
type Demand struct {
	// NanoCPUs and MemoryBytes are what all containers together reserve: 1e9 is one core, memory is in bytes.
	NanoCPUs    uint64
	MemoryBytes uint64
	// Ports are those that it publishes on the node under a number of its own.
	Ports []protocol.Port
	// Volumes are the names of those that stay on the node, sorted.
	Volumes []string
	// Devices are the device nodes of the host that its containers use, sorted.
	Devices []string
}

// Shares reports whether a version asks for something that others of the node may have taken.
func (d *Demand) Shares() bool { return d.NanoCPUs > 0 || d.MemoryBytes > 0 || len(d.Ports) > 0 }

// Of returns what a version asks for. Limits are no reservation, as in Compose: they bound what a container takes, and the sum
// of those on a node may be more than it has.
func Of(spec *protocol.DeploymentSpec) Demand {
	var d Demand
	for i := range spec.Components {
		for j := range spec.Components[i].Containers {
			c := &spec.Components[i].Containers[j]
			d.NanoCPUs += c.Reservations.NanoCPUs
			d.MemoryBytes += c.Reservations.MemoryBytes
			for _, p := range c.Ports {
				if p.Host != 0 {
					d.Ports = append(d.Ports, p)
				}
			}
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
