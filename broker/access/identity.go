package access

import (
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// deviceIdentity is a part more of the identity of a device.
const deviceIdentity = "device"

// Encode is an identity as a session stores it, for DecodeIdentity. No part has a zero byte.
func (id Identity) Encode() string {
	parts := []string{id.Name, string(id.Site), string(id.Node), id.Client}
	if id.Device {
		parts = append(parts, deviceIdentity)
	}
	return strings.Join(parts, "\x00")
}

// DecodeIdentity is the inverse of Encode: the zero Identity for what Encode does not return.
func DecodeIdentity(s string) (id Identity) {
	parts := strings.Split(s, "\x00")
	if device := len(parts) == 5 && parts[4] == deviceIdentity; device || len(parts) == 4 {
		id = Identity{Name: parts[0], Site: protocol.SiteID(parts[1]), Node: protocol.NodeID(parts[2]), Client: parts[3], Device: device}
	}
	return id
}
