package bridgenet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// Recover makes the attachment of a container anew where its file was damaged or lost while
// the container runs: from want, as it was given to Attach, and from what is there. The
// addresses are those in its network namespace, the gateways those of the bridges, and the
// ports that were chosen those that the packet filter leads to it. Nothing of the container
// changes. One that is held stays as it is.
func (n *Networks) Recover(ctx context.Context, key string, want Attachment) (*Attachment, error) {
	have, err := n.Get(key)
	if err != nil || have != nil && have.IP != "" {
		return have, err
	}
	if !netns.Live(n.NetNS(key)) {
		return nil, fmt.Errorf("recover the network of %s: it has no network namespace: it gets one when it is started again", want.Name)
	}
	want.Links = slices.Clone(want.Links)
	links := want.links()
	found := make([]netip.Addr, len(links))
	err = netns.Do(n.NetNS(key), func() error {
		for i := range found {
			if found[i], err = addressOn(device(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("recover the network of %s: %w", want.Name, err)
	}
	for i, l := range links {
		bridge := n.Bridge(bridgeID(want.Network, l))
		gateway, err := addressOn(bridge)
		if err != nil {
			return nil, fmt.Errorf("recover the network of %s: %w", want.Name, err)
		}
		subnet := netip.PrefixFrom(gateway, 24).Masked()
		if !subnet.Contains(found[i]) {
			return nil, fmt.Errorf("recover the network of %s: its address %s is not of its bridge %s, which has %s", want.Name, found[i], bridge, subnet)
		}
		if subnet != desiredSubnet(l) {
			links[i].Addressing = nil
		}
		links[i].IP, links[i].Gateway = found[i].String(), gateway.String()
	}
	if len(want.Links) == 0 {
		want.Addressing = links[0].Addressing
	}
	want.IP, want.Gateway = links[0].IP, links[0].Gateway
	return &want, n.record(ctx, key, &want)
}

// record writes down an attachment that was found, with the ports that were chosen for it.
func (n *Networks) record(ctx context.Context, key string, a *Attachment) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	led, err := portsLedTo(ctx, a.IP)
	if err != nil {
		return err
	}
	all, err := n.All()
	if err != nil {
		return err
	}
	a.Ports = slices.Clone(a.Ports)
	others := append(slices.Collect(maps.Values(all)), a)
	for i, p := range a.Ports {
		if p.Host != 0 {
			continue
		}
		at := slices.IndexFunc(led, func(l protocol.Port) bool {
			q := p
			q.Host = l.Host
			return l.Container == p.Container && l.Protocol == portProtocol(p) && l.HostIP == p.HostIP && portUser(q, others) == nil
		})
		if at >= 0 {
			a.Ports[i].Host = led[at].Host
			continue
		}
		// No rule is left of it, as of a port on IPv6 addresses alone.
		if a.Ports[i].Host, err = choosePort(p, 0, others); err != nil {
			return fmt.Errorf("port %d/%s of %s: no free port of the node was found: %w", p.Container, portProtocol(p), a.Name, err)
		}
	}
	return n.save(n.file(key), *a)
}

// addressOn returns the IPv4 address that an interface has in the present namespace.
func addressOn(name string) (netip.Addr, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface %s: %w", name, err)
	}
	addrs, err := link.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface %s: %w", name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("interface %s has no IPv4 address", name)
}

// led is a rule of the plugin portmap that leads from a port of the node to a container, as
// iptables -S shows it.
var led = regexp.MustCompile(`^-A CNI-DN-\S+ (?:-d ([0-9.]+)/32 )?-p (tcp|udp) .*--dport (\d+) -j DNAT --to-destination ([0-9.]+):(\d+)$`)

// portsLedTo returns the ports of the node that the packet filter leads to an address, each
// with the port that it leads to. Without iptables there are none.
func portsLedTo(ctx context.Context, ip string) (ports []protocol.Port, err error) {
	ctx, cancel := whole(ctx)
	defer cancel()
	rules, err := iptables(ctx, "nat", "-S")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list packet filter rules: %w", err)
	}
	for line := range strings.Lines(rules) {
		m := led.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[4] != ip {
			continue
		}
		host, _ := strconv.ParseUint(m[3], 10, 16) // the pattern has digits only; what is no port is the largest
		container, _ := strconv.ParseUint(m[5], 10, 16)
		ports = append(ports, protocol.Port{Host: uint16(host), Container: uint16(container), Protocol: m[2], HostIP: m[1]})
	}
	return ports, nil
}
