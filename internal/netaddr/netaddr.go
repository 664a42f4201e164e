// Package netaddr names what the bounds for one network address count together.
package netaddr

import (
	"net"
	"net/netip"
)

// slash64 is how much of an IPv6 address names a network: a client in it can have any of its addresses.
const slash64 = 64

// Network names what one machine can have of the addresses of a network: of a remote address, with a port or
// without one, the IPv4 address, or the /64 of an IPv6 address. What is no address is its own name.
func Network(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if a = a.Unmap(); a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a.WithZone(""), slash64).Masked().String()
}
