// Package devicespec reads the forms in which Compose asks for devices of a node: paths,
// names of the Container Device Interface (CDI), and graphics processors. It is pure.
package devicespec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/colonyfleet/colony/protocol"
)

// Say notes that the value of a service's key is wrong.
type Say func(key, format string, args ...any)

// Of returns the devices of a service.
func Of(s types.ServiceConfig, say Say) []protocol.Device {
	var all []protocol.Device
	for _, d := range s.Devices {
		if !strings.HasPrefix(d.Source, "/") {
			all = append(all, named(d, say))
			continue
		}
		if strings.Trim(d.Permissions, "rwm") != "" {
			say("devices", "permissions %q of %s: want letters of rwm", d.Permissions, d.Source)
		}
		device := protocol.Device{Host: d.Source, Container: d.Target, Permissions: d.Permissions}
		if device.Container == "" {
			device.Container = d.Source
		}
		if !strings.HasPrefix(device.Container, "/") {
			say("devices", "target %q of %s: want an absolute path, such as /dev/ttyUSB0", device.Container, d.Source)
		}
		if len(device.Permissions) == 3 {
			device.Permissions = "" // rwm, the default
		}
		all = append(all, device)
	}
	var requested []protocol.Device
	requested = append(requested, requests("gpus", s.Gpus, say)...)
	if s.Deploy != nil && s.Deploy.Resources.Reservations != nil {
		requested = append(requested, requests("deploy.resources.reservations.devices", s.Deploy.Resources.Reservations.Devices, say)...)
	}
	for _, d := range requested {
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// named reads the name of a CDI device. The loader takes a name with a colon for a path on
// the node and one in the container.
func named(d types.DeviceMapping, say Say) protocol.Device {
	name := d.Source
	if d.Target != "" && d.Target != d.Source {
		name += ":" + d.Target
	}
	if _, _, _, err := parser.ParseQualifiedName(name); err != nil || d.Permissions != "" && d.Permissions != "rwm" {
		say("devices", "%q: want a path such as /dev/ttyUSB0, or the name of a CDI device such as nvidia.com/gpu=0, with nothing behind it", name)
	}
	return protocol.Device{Host: name}
}

// kinds are the CDI kinds under which the tools of vendors list their processors.
var kinds = map[string]string{"": "nvidia.com/gpu", "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}

// maxCount bounds how many processors a request counts.
const maxCount = 64

// requests reads gpus, or the devices of reservations: each becomes CDI devices.
func requests(key string, list []types.DeviceRequest, say Say) (all []protocol.Device) {
	for i, r := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		kind, known := kinds[r.Driver]
		switch {
		case !known && r.Driver != "cdi":
			say(at+".driver", "%q: want nvidia, amd, or cdi with the names of CDI devices as device_ids", r.Driver)
			continue
		case r.Driver == "cdi" && len(r.IDs) == 0:
			say(at, "the driver is cdi: want the names of CDI devices as device_ids")
			continue
		case known && len(r.Capabilities) > 0 && !slices.Contains(r.Capabilities, "gpu"):
			say(at+".capabilities", "%q: want gpu among them; for another sort of device, name it under devices", r.Capabilities)
			continue
		case len(r.IDs) == 0 && (r.Count < -1 || r.Count == 0 || r.Count > maxCount):
			say(at+".count", "%d: want all, or 1 to %d", r.Count, maxCount)
			continue
		}
		for _, id := range ids(r) {
			if known {
				id = kind + "=" + id
			}
			if _, _, _, err := parser.ParseQualifiedName(id); err != nil {
				say(at+".device_ids", "%q is no name of a CDI device: %v", id, err)
			}
			all = append(all, protocol.Device{Host: id})
		}
	}
	return all
}

// ids returns the processors of a request, as CDI names them.
func ids(r types.DeviceRequest) []string {
	switch {
	case len(r.IDs) > 0:
		return r.IDs
	case r.Count < 0:
		return []string{"all"}
	}
	var all []string
	for i := range int(r.Count) {
		all = append(all, strconv.Itoa(i))
	}
	return all
}
