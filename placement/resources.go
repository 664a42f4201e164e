package placement

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

// A usage is what deployments have taken of a node, those that run on it and those that were newly placed there.
type usage struct {
	nanoCPUs, memory uint64
	ports            []takenPort
}

// A takenPort is a port of the node, and which deployment publishes it.
type takenPort struct {
	protocol.Port
	by protocol.DeploymentName
}

// take adds what a deployment asks for.
func (u *usage) take(name protocol.DeploymentName, d *demand.Demand) {
	u.nanoCPUs += d.NanoCPUs
	u.memory += d.MemoryBytes
	for _, p := range d.Ports {
		u.ports = append(u.ports, takenPort{p, name})
	}
}

// lacks returns why a node has no room for what a deployment asks for, beside what is taken; "": it has. What its inventory does not say
// counts as enough.
func (u *usage) lacks(d *demand.Demand, inv *protocol.Inventory) string {
	if !d.Shares() {
		return ""
	}
	if inv != nil {
		if all := uint64(inv.Cores) * 1e9; all > 0 && d.NanoCPUs > all-min(u.nanoCPUs, all) {
			return fmt.Sprintf("it reserves %s of a processor core, and of the %s cores of the node %s are free", cores(d.NanoCPUs), cores(all), cores(all-min(u.nanoCPUs, all)))
		}
		if all := inv.MemoryBytes; all > 0 && d.MemoryBytes > all-min(u.memory, all) {
			return fmt.Sprintf("it reserves %s of memory, and of the %s of the node %s are free", mebibytes(d.MemoryBytes), mebibytes(all), mebibytes(all-min(u.memory, all)))
		}
	}
	for _, p := range d.Ports {
		for _, taken := range u.ports {
			if p.Meets(taken.Port) {
				return fmt.Sprintf("it publishes port %d/%s, which deployment %s has on this node", p.Host, cmp.Or(p.Protocol, "tcp"), taken.by)
			}
		}
	}
	return ""
}

// cores writes processor time for people.
func cores(nano uint64) string { return strconv.FormatFloat(float64(nano)/1e9, 'f', -1, 64) }

// mebibytes writes a size for people.
func mebibytes(bytes uint64) string {
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
}
