package bridgenet

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
)

func (n *Networks) subnetsFile() statefile.File {
	return statefile.File{Identity: statefile.Identity{Role: "en/subnets"}, Path: filepath.Join(n.dir, "subnets.json")}
}

func (n *Networks) subnets() (map[string]netip.Prefix, error) {
	out := map[string]netip.Prefix{}
	found, err := n.load(n.subnetsFile(), &out)
	if err != nil {
		return nil, err
	}
	if !found { // what is attached says
		return n.subnetsOfAttached()
	}
	return out, nil
}

// subnetsOfAttached returns the subnets of the networks that containers are attached to.
func (n *Networks) subnetsOfAttached() (map[string]netip.Prefix, error) {
	attached, err := n.All()
	if err != nil {
		return nil, err
	}
	out := map[string]netip.Prefix{}
	for _, a := range attached {
		for _, l := range a.links() {
			if p, err := netip.ParsePrefix(l.Gateway + "/24"); err == nil {
				out[bridgeID(a.Network, l)] = p.Masked()
			}
		}
	}
	return out, nil
}

// stored returns the subnet that a network has, or the zero Prefix.
func (n *Networks) stored(d string) (netip.Prefix, error) {
	all, err := n.subnets()
	return all[d], err
}

// subnet returns the network's subnet, taking one for it if it has none: the desired one where
// that is valid and free, else one of the pool. The choice begins at a subnet that depends on the names only, so that a node set up
// anew, and two owners beside each other, rarely meet. The caller holds n.mu.
func (n *Networks) subnet(d string, desired netip.Prefix) (netip.Prefix, error) {
	all, err := n.subnets()
	if err != nil {
		return netip.Prefix{}, err
	}
	used, err := hostPrefixes(n.Bridge(d))
	if err != nil {
		return netip.Prefix{}, err
	}
	overlaps := func(p netip.Prefix) bool { return slices.ContainsFunc(used, p.Overlaps) }
	if have, ok := all[d]; ok {
		// A bridge that is there keeps its addresses, even where another bridge has them too.
		_, err := net.InterfaceByName(n.Bridge(d))
		unchanged := !desired.IsValid() || have == desired || overlaps(desired)
		if err == nil || unchanged && (n.pool.Overlaps(have) || have == desired) && !overlaps(have) {
			return have, nil
		}
	}
	if p := subnetOnBridge(n.Bridge(d)); p.IsValid() && (n.pool.Overlaps(p) || p == desired) && !overlaps(p) {
		all[d] = p // its record was lost, and the bridge is there
		return p, n.save(n.subnetsFile(), all)
	}
	for other, p := range all {
		if other != d {
			used = append(used, p)
		}
	}
	if desired.IsValid() && !overlaps(desired) {
		all[d] = desired
		return desired, n.save(n.subnetsFile(), all)
	}
	count := 1 << (24 - n.pool.Bits())
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.Bridge(d))) // a hash never fails
	first := binary.BigEndian.Uint32(n.pool.Addr().AsSlice())
	for i := range count {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], first+uint32((int(h.Sum32()%uint32(count))+i)%count)<<8)
		p := netip.PrefixFrom(netip.AddrFrom4(a), 24)
		if !overlaps(p) {
			all[d] = p
			return p, n.save(n.subnetsFile(), all)
		}
	}
	return netip.Prefix{}, fmt.Errorf(
		"no address range is left for network %s: all %d networks of %s are in use, give a wider pool", d, count, n.pool)
}

// Forget removes the bridge of a network and frees its subnet. Nothing may be
// attached to it any more.
func (n *Networks) Forget(d string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.removeBridge(context.Background(), n.Bridge(d)); err != nil {
		return err
	}
	all, err := n.subnets()
	if err != nil {
		return err
	}
	if _, ok := all[d]; !ok {
		return nil
	}
	delete(all, d)
	return n.save(n.subnetsFile(), all)
}

// Names returns the networks that have a subnet.
func (n *Networks) Names() ([]string, error) {
	all, err := n.subnets()
	return slices.Sorted(maps.Keys(all)), err
}

// Down removes all bridges and keeps the subnets.
func (n *Networks) Down() error {
	bridges, err := n.made() // also those that are named nowhere any more
	if err != nil {
		return err
	}
	names, err := n.Names()
	for _, name := range names {
		bridges = append(bridges, n.Bridge(name))
	}
	errs := []error{err}
	for _, b := range bridges {
		errs = append(errs, netns.RemoveBridge(b))
	}
	return errors.Join(errs...)
}

// hostPrefixes returns the IPv4 prefixes of the node's interfaces but one.
func hostPrefixes(except string) ([]netip.Prefix, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var out []netip.Prefix
	for _, link := range links {
		if link.Name == except {
			continue
		}
		addrs, err := link.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				out = append(out, p.Masked())
			}
		}
	}
	return out, nil
}

// save replaces a file of state in one step, durably.
func (n *Networks) save(f statefile.File, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	n.files.Lock()
	defer n.files.Unlock()
	return f.Save(b)
}
