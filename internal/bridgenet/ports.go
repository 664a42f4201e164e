package bridgenet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/colonyfleet/colony/internal/portforward"
	"github.com/colonyfleet/colony/protocol"
)

func portProtocol(p protocol.Port) string {
	if p.Protocol == "" {
		return "tcp"
	}
	return p.Protocol
}

// checkPorts returns an error if a host port that a needs is in use, be it by a program or by
// another container. It chooses the ports that the spec does not name, those before if they are
// free.
func (n *Networks) checkPorts(a *Attachment, before []protocol.Port) error {
	if len(a.Ports) == 0 {
		return nil
	}
	others, err := n.All()
	if err != nil {
		return err
	}
	a.Ports = slices.Clone(a.Ports)
	for i, p := range a.Ports {
		if p.Host == 0 {
			last := uint16(0)
			if i < len(before) && before[i].Container == p.Container {
				last = before[i].Host
			}
			if a.Ports[i].Host, err = choosePort(p, last, append(slices.Collect(maps.Values(others)), a)); err != nil {
				return fmt.Errorf("port %d/%s of %s: no free port of the node was found: %w", p.Container, portProtocol(p), a.Name, err)
			}
			continue
		}
		if o := portUser(p, slices.Collect(maps.Values(others))); o != nil {
			return fmt.Errorf("port %d/%s of the node is in use by %s of %s: publish %s on another port",
				p.Host, portProtocol(p), o.Name, o.Network, a.Name)
		}
		if err := listen(p); err != nil {
			return fmt.Errorf("port %d/%s of the node cannot be published for %s, stop the program that has it or choose another port: %w",
				p.Host, portProtocol(p), a.Name, err)
		}
	}
	return nil
}

// Vacant returns an error if a port of the node that a container of a network is to publish is in use,
// be it by a program or by a container of another network. The ports of the network itself, and those
// that the spec does not name, count as free.
func (n *Networks) Vacant(network string, ports []protocol.Port) error {
	all, err := n.All()
	if err != nil {
		return err
	}
	var own, others []*Attachment
	for _, a := range all {
		if a.Network == network {
			own = append(own, a)
		} else {
			others = append(others, a)
		}
	}
	for _, p := range ports {
		if p.Host == 0 || portUser(p, own) != nil {
			continue
		}
		if o := portUser(p, others); o != nil {
			return fmt.Errorf("port %d/%s of the node is in use by %s of %s: publish another port", p.Host, portProtocol(p), o.Name, o.Network)
		}
		if err := listen(p); err != nil {
			return fmt.Errorf("port %d/%s of the node cannot be published, stop the program that has it or choose another port: %w", p.Host, portProtocol(p), err)
		}
	}
	return nil
}

// portUser returns the attachment of others that publishes a port, or nil.
func portUser(p protocol.Port, others []*Attachment) *Attachment {
	for _, o := range others {
		for _, q := range o.Ports {
			if p.Meets(q) {
				return o
			}
		}
	}
	return nil
}

// choosePort returns a port of the node that is free: preferred, or one of those from first to
// last that the kernel gives to no program. Nothing holds a port that is published, so that a
// program that asks for any port could otherwise get it, and its traffic would go to the
// container.
func choosePort(p protocol.Port, preferred uint16, others []*Attachment) (uint16, error) {
	free := func(port uint16) bool {
		p.Host = port
		return port != 0 && portUser(p, others) == nil && listen(p) == nil
	}
	if free(preferred) {
		return preferred, nil
	}
	first, last := ownPorts()
	n := int(last) - int(first) + 1
	for i, begin := 0, rand.IntN(n); i < n; i++ {
		if port := first + uint16((begin+i)%n); free(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("all from %d to %d are in use", first, last)
}

// enoughPorts is how many ports a range must have from which they are chosen.
const enoughPorts = 1000

// ownPorts returns the range from which ports are chosen: above or below the range from
// which the kernel gives ports to programs (net.ipv4.ip_local_port_range), or that range
// where it leaves too few.
func ownPorts() (first, last uint16) {
	low, high := uint16(32768), uint16(60999) // as Linux has it
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &low, &high) // what cannot be read stays as Linux has it
	}
	return outside(low, high)
}

func outside(low, high uint16) (first, last uint16) {
	const lowest, highest = 20_000, 65_535 // below are the ports of well-known services
	switch {
	case highest-int(high) >= enoughPorts:
		return high + 1, highest
	case int(low)-lowest >= enoughPorts:
		return lowest, low - 1
	default:
		return low, high
	}
}

// listen returns an error where no program could listen on a port of the node.
func listen(p protocol.Port) error {
	if !onIPv4(p) {
		return portforward.Check(p)
	}
	address := net.JoinHostPort(cmp.Or(p.HostIP, "0.0.0.0"), strconv.Itoa(int(p.Host)))
	var closer io.Closer
	var err error
	if portProtocol(p) == "udp" {
		closer, err = net.ListenPacket("udp4", address)
	} else {
		closer, err = net.Listen("tcp4", address)
	}
	if err != nil {
		return err
	}
	return errors.Join(portforward.Check(p), closer.Close())
}

// onIPv4 reports whether a port is published on IPv4 addresses, which the plugins do.
func onIPv4(p protocol.Port) bool {
	ip, err := netip.ParseAddr(p.HostIP)
	return err != nil || ip.Is4()
}
