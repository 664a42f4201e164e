package access

import (
	"crypto/tls"
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

// Account is the account that a client counts for where each account has a bounded share. It is the client's
// identity if that is proved, or if there is no network address; else it is the address, as a client can use any
// number of names. secure is the state of TLS, or nil.
func Account(id Identity, address string, secure *tls.ConnectionState) string {
	if address == "" || id.Proved(secure) {
		return id.Name
	}
	return address
}

// Proved reports whether the client's identity is proved: by its certificate, or by the password of a device.
// secure is the state of TLS, or nil.
func (id Identity) Proved(secure *tls.ConnectionState) bool {
	return id.Device || secure != nil && len(secure.PeerCertificates) > 0
}

// Machine reports whether the client is a part of Colony: a node or a site.
func (id Identity) Machine() bool { return id.Client == "" }

// CheckClientID returns why no client may have this id, or nil. most is how many bytes one may have, version that in
// CONNECT, clean its clean session.
func CheckClientID(id string, most int, version byte, clean bool) error {
	switch {
	case len(id) > most:
		return protocol.Errorf(protocol.Invalid, "client id of %d bytes: the limit is %d; see limits.clientIDBytes", len(id), most)
	case strings.HasPrefix(id, "$"):
		return protocol.Errorf(protocol.Invalid, "client id %q: want one that does not begin with $", id)
	case id != "" || version == 5:
		return nil
	case version == 3: // [MQTT 3.1, 3.1]
		return protocol.Errorf(protocol.Invalid, "no client id: MQTT 3.1 wants one")
	case !clean: // [MQTT-3.1.1, 3.1.3-8]
		return protocol.Errorf(protocol.Invalid, "no client id, and no clean session: want one of the two")
	}
	return nil
}
