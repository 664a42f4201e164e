package placement

import (
	"strconv"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// interfaceTypes are the Margo names of an inventory's interface types.
var interfaceTypes = map[string]string{"ethernet": "ethernet", "wifi": "wifi", "cellular": "cellular", "can": "canbus"}

// capabilities returns a node's inventory as a Margo capabilities manifest, which the
// device constraints refer to.
func capabilities(n Node) v1rc3.Capabilities {
	inv := n.Inventory
	p := v1rc3.DeviceProperties{
		ID: string(n.ID), Vendor: inv.Vendor, ModelNumber: inv.Model, SerialNumber: inv.Serial,
		CPUs:            []v1rc3.CPU{{Cores: float64(inv.Cores), Architecture: inv.Architecture}},
		Memory:          kibibytes(inv.MemoryBytes),
		Storage:         kibibytes(inv.StorageBytes),
		Peripherals:     []v1rc3.Peripheral{},
		Interfaces:      []v1rc3.Interface{},
		Runtimes:        []string{"oci"},
		DeploymentTypes: []string{"compose"},
	}
	for _, d := range inv.Peripherals {
		p.Peripherals = append(p.Peripherals, v1rc3.Peripheral{Type: d.Type, Manufacturer: d.Manufacturer, Model: d.Model})
		if d.Type == "serial" {
			p.Interfaces = append(p.Interfaces, v1rc3.Interface{Type: "rs232"})
		}
	}
	for _, i := range inv.Interfaces {
		if t, ok := interfaceTypes[i.Type]; ok {
			p.Interfaces = append(p.Interfaces, v1rc3.Interface{Type: t})
		}
	}
	c := v1rc3.Capabilities{Properties: p, Labels: map[string]any{}}
	for k, v := range inv.Labels {
		c.Labels[k] = v
	}
	return c
}

// kibibytes returns a size as Margo writes it; "" if it is not known.
func kibibytes(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return strconv.FormatUint(bytes>>10, 10) + "Ki"
}
