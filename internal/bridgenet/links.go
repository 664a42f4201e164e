package bridgenet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// A Link is one interface of a container, on a separate bridge: containers that are not on the
// bridge reach no one there.
type Link struct {
	// Name tells the bridge from others of the network.
	Name string `json:"name"`
	// Internal says that the bridge does not lead out through the node.
	Internal bool `json:"internal,omitempty"`
	// Addressing is as in an Attachment.
	Addressing *protocol.Addressing `json:"addressing,omitempty"`

	// IP and Gateway are as in an Attachment.
	IP      string `json:"ip,omitempty"`
	Gateway string `json:"gateway,omitempty"`
}

// links returns the interfaces of an attachment: without Links, the one on the bridge that
// all of the network share.
func (a *Attachment) links() []Link {
	if len(a.Links) == 0 {
		return []Link{{IP: a.IP, Gateway: a.Gateway, Addressing: a.Addressing}}
	}
	return a.Links
}

// bridgeID names the bridge of a link among all.
func bridgeID(network string, l Link) string {
	if l.Name == "" {
		return network
	}
	return network + "/" + l.Name
}

// NetworkOf returns the network that a name of Names is a bridge of.
func NetworkOf(id string) string {
	network, _, _ := strings.Cut(id, "/")
	return network
}

// Attach makes the container's network namespace and joins it to the bridges. It
// leaves one that is attached as it is.
func (n *Networks) Attach(ctx context.Context, key string, want Attachment) error {
	have, err := n.Get(key)
	if err != nil {
		return err
	}
	if have != nil && have.IP != "" && netns.Live(n.NetNS(key)) {
		return nil
	}
	if err := n.Detach(ctx, key); err != nil {
		return fmt.Errorf("clear stale network: %w", err)
	}
	before := Attachment{}
	if have != nil {
		before = *have
	}
	lists, err := n.reserve(key, &want, before.Ports)
	if err != nil {
		return err
	}
	if err := netns.Make(n.NetNS(key)); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	links := want.links()
	for i, list := range lists {
		address := addressOf(before, links[i])
		if a := links[i].Addressing; a != nil && a.Address != "" {
			address = a.Address
		}
		if err := n.join(ctx, list, n.runtime(key, want, i), address, &links[i]); err != nil {
			return fmt.Errorf("attach %s to its network: %w", want.Name, err)
		}
	}
	want.IP, want.Gateway = links[0].IP, links[0].Gateway
	return n.save(n.file(key), want)
}

// yield removes a bridge whose subnet is not the desired one, and that no other container is on.
// The caller holds n.mu.
func (n *Networks) yield(key, id string, desired netip.Prefix) error {
	if !desired.IsValid() {
		return nil
	}
	have, err := n.stored(id)
	if err != nil || !have.IsValid() || have == desired {
		return err
	}
	attached, err := n.All()
	if err != nil {
		return err
	}
	for k, a := range attached {
		for _, l := range a.links() {
			if k != key && bridgeID(a.Network, l) == id {
				return nil
			}
		}
	}
	return n.removeBridge(context.Background(), n.Bridge(id))
}

// desiredSubnet returns the subnet that is wanted for the bridge of a link; the zero Prefix where
// none is, or where it is no /24 of private addresses, which others could miss.
func desiredSubnet(l Link) netip.Prefix {
	if l.Addressing == nil {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(l.Addressing.Subnet)
	if err != nil || p != p.Masked() || p.Bits() != 24 || !p.Addr().Is4() || !p.Addr().IsPrivate() {
		return netip.Prefix{}
	}
	return p
}

// addressOf returns the address that a container had on the bridge of a link.
func addressOf(before Attachment, on Link) string {
	for _, l := range before.links() {
		if l.Name == on.Name {
			return l.IP
		}
	}
	return ""
}

// racers is how many others may be in the way of the plugins.
const racers = 3

// join makes one interface, and notes its address.
func (n *Networks) join(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf, before string, l *Link) error {
	answer, err := n.add(ctx, list, rt, before)
	for tries := 0; err != nil && tries < racers && strings.Contains(err.Error(), "File exists"); tries++ {
		// Another one made the chain that all ports of the node share, after the plugin had looked for it.
		if err = n.del(ctx, list, rt); err == nil {
			answer, err = n.add(ctx, list, rt, before)
		}
	}
	if err != nil && strings.Contains(err.Error(), "failed to find plugin") {
		return fmt.Errorf("install the CNI plugins (containernetworking-plugins): %w", err)
	}
	if err != nil {
		return err
	}
	result, err := types100.GetResult(answer)
	if err != nil {
		return fmt.Errorf("read the answer of the network plugins: %w", err)
	}
	if len(result.IPs) == 0 {
		return errors.New("the plugins gave it no address")
	}
	l.IP, l.Gateway = result.IPs[0].Address.IP.String(), result.IPs[0].Gateway.String()
	return nil
}

// reserve reserves the subnets and the ports that an attachment needs, by writing
// it down: what is written is seen by the next reservation.
func (n *Networks) reserve(key string, want *Attachment, before []protocol.Port) ([]*libcni.NetworkConfigList, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkPorts(want, before); err != nil {
		return nil, err
	}
	var lists []*libcni.NetworkConfigList
	for i, l := range want.links() {
		desired := desiredSubnet(l)
		if err := n.yield(key, bridgeID(want.Network, l), desired); err != nil {
			return nil, err
		}
		subnet, err := n.subnet(bridgeID(want.Network, l), desired)
		if err != nil {
			return nil, err
		}
		if subnet != desired {
			l.Addressing = nil // it is for other addresses
		}
		if len(want.Links) > 0 {
			want.Links[i] = l
		} else {
			want.Addressing = l.Addressing
		}
		list, err := n.config(want.Network, l, subnet, i == 0)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	return lists, n.save(n.file(key), *want)
}

// add runs the plugins. It asks for the address that the container had, which
// others may have remembered; the rules of a stale Attachment then fit again.
func (n *Networks) add(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf, before string) (types.Result, error) {
	ctx, cancel := whole(ctx)
	defer cancel()
	if before == "" {
		return n.cni.AddNetworkList(ctx, list, rt)
	}
	same := *rt
	same.Args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", before}}
	if answer, err := n.cni.AddNetworkList(ctx, list, &same); err == nil {
		return answer, nil
	}
	if err := n.del(ctx, list, rt); err != nil {
		return nil, err
	}
	return n.cni.AddNetworkList(ctx, list, rt)
}

// Detach undoes all that Attach did, or had begun to do.
func (n *Networks) Detach(ctx context.Context, key string) error {
	have, err := n.Get(key)
	if err != nil {
		return err
	}
	if have == nil {
		if err := n.release(ctx, key); err != nil {
			return err
		}
	} else {
		for i, l := range have.links() {
			if err := n.leave(ctx, key, *have, l, i); err != nil {
				return err
			}
		}
	}
	if err := netns.Remove(n.NetNS(key)); err != nil {
		return err
	}
	if err := os.Remove(n.file(key).Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leave undoes join.
func (n *Networks) leave(ctx context.Context, key string, a Attachment, l Link, i int) error {
	subnet, err := n.stored(bridgeID(a.Network, l))
	if err != nil {
		return err
	}
	if !subnet.IsValid() { // its record was lost, and to undo, the plugins need any
		subnet = netip.PrefixFrom(n.pool.Addr(), 24)
	}
	list, err := n.config(a.Network, l, subnet, i == 0)
	if err != nil {
		return err
	}
	rt := n.runtime(key, a, i)
	if !netns.Live(rt.NetNS) {
		rt.NetNS = "" // removed by a reboot: the plugins release the rest
	}
	if err := n.del(ctx, list, rt); err != nil {
		return fmt.Errorf("detach from network: %w", err)
	}
	return nil
}

// device is the name of the i-th interface in a container.
func device(i int) string { return "eth" + strconv.Itoa(i) }

// runtime returns what the plugins must know of the i-th interface of a container. Ports
// are published on the first.
func (n *Networks) runtime(key string, a Attachment, i int) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: key, NetNS: n.NetNS(key), IfName: device(i)}
	if len(a.Ports) > 0 && i == 0 {
		var maps []map[string]any
		for _, p := range a.Ports {
			if !onIPv4(p) {
				continue
			}
			maps = append(maps, map[string]any{
				"hostPort": p.Host, "containerPort": p.Container, "protocol": portProtocol(p), "hostIP": p.HostIP,
			})
		}
		if maps != nil {
			rt.CapabilityArgs = map[string]any{"portMappings": maps}
		}
	}
	return rt
}

// config returns the CNI configuration of the bridge of a link; the first interface of a
// container has the route that leads out.
func (n *Networks) config(network string, l Link, subnet netip.Prefix, first bool) (*libcni.NetworkConfigList, error) {
	return n.configOf(n.Bridge(bridgeID(network, l)), l, subnet, first)
}

// configOf returns the CNI configuration of a bridge.
func (n *Networks) configOf(bridge string, l Link, subnet netip.Prefix, first bool) (*libcni.NetworkConfigList, error) {
	addresses := map[string]any{"subnet": subnet.String()}
	if a := l.Addressing; a != nil && a.Address == "" {
		addresses["rangeStart"], addresses["rangeEnd"] = a.From, a.To
	}
	ipam := map[string]any{
		"type": "host-local", "dataDir": filepath.Join(n.dir, "cni", "ipam"), "ranges": []any{[]any{addresses}},
	}
	if first && !l.Internal {
		ipam["routes"] = []any{map[string]any{"dst": "0.0.0.0/0"}}
	}
	plugins := []any{map[string]any{
		// The node has an address on each: it probes the health of containers.
		"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": !l.Internal, "hairpinMode": true, "ipam": ipam,
	}}
	if l.Name != "" {
		// The node routes between its bridges: from one that is apart to another it must not.
		plugins = append(plugins, map[string]any{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"})
	}
	plugins = append(plugins, map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}})
	b, err := json.Marshal(map[string]any{
		"cniVersion": "0.4.0", // spoken by all plugins still in use
		"name":       bridge, "plugins": plugins,
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(b)
}
