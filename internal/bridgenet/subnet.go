package bridgenet

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/netns"
)

func (n *Networks) subnetsFile() string { return filepath.Join(n.dir, "subnets.json") }

func (n *Networks) subnets() (map[string]netip.Prefix, error) {
	out := map[string]netip.Prefix{}
	b, err := os.ReadFile(n.subnetsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("read %s: %w", n.subnetsFile(), err)
	}
	return out, nil
}

// stored returns the subnet that a network has, or the zero Prefix.
func (n *Networks) stored(d string) (netip.Prefix, error) {
	all, err := n.subnets()
	return all[d], err
}

// subnet returns the network's subnet, taking one for it if it has none. The
// choice begins at a place that depends on the names only, so that a node set up
// anew, and two owners beside each other, rarely meet. The caller holds n.mu.
func (n *Networks) subnet(d string) (netip.Prefix, error) {
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
		// A bridge that is there keeps its addresses, whoever took them too.
		if _, err := net.InterfaceByName(n.Bridge(d)); err == nil || n.pool.Overlaps(have) && !overlaps(have) {
			return have, nil
		}
	}
	for other, p := range all {
		if other != d {
			used = append(used, p)
		}
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
			return p, writeJSON(n.subnetsFile(), all)
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
	if err := netns.RemoveBridge(n.Bridge(d)); err != nil {
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
	return writeJSON(n.subnetsFile(), all)
}

// Names returns the networks that have a subnet.
func (n *Networks) Names() ([]string, error) {
	all, err := n.subnets()
	return slices.Sorted(maps.Keys(all)), err
}

// Down removes the bridge of a network and keeps its subnet.
func (n *Networks) Down(d string) error { return netns.RemoveBridge(n.Bridge(d)) }

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

// writeJSON replaces a file in one step, durably.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}
