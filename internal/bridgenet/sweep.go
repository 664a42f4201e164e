package bridgenet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
)

// lineBreak is what the plugin host-local writes between the container and its interface.
const lineBreak = "\r\n"

// A reservation is a file of the plugin host-local: its name is an address, its content
// the container that has it, and the interface. It has no checksum. What is no regular file,
// such as a FIFO, has no content.
type reservation struct {
	bridge  string
	ip      netip.Addr
	path    string
	content []byte
}

// holder returns the container that the content names; "" where it cannot be one.
func (r reservation) holder() string {
	id, _, _ := strings.Cut(strings.TrimSpace(string(r.content)), lineBreak)
	if !containerID.MatchString(id) {
		return ""
	}
	return id
}

// containerID is what the plugins accept as the name of a container (CNI specification 1.0,
// "Parameters").
var containerID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

func (n *Networks) ipam(bridge string) string { return filepath.Join(n.dir, "cni", "ipam", bridge) }

// made returns the bridges that were made and not given up: the plugins keep a folder of
// addresses for each.
func (n *Networks) made() ([]string, error) {
	paths, err := filepath.Glob(n.ipam("cl-*"))
	for i, path := range paths {
		paths[i] = filepath.Base(path)
	}
	return paths, err
}

// reservations returns the addresses that are reserved on a bridge.
func (n *Networks) reservations(bridge string) ([]reservation, error) {
	entries, err := os.ReadDir(n.ipam(bridge))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []reservation
	for _, entry := range entries {
		ip, err := netip.ParseAddr(entry.Name())
		if err != nil {
			continue // the lock, and the address that was given last
		}
		r := reservation{bridge: bridge, ip: ip, path: filepath.Join(n.ipam(bridge), entry.Name())}
		if r.content, err = disk.ReadFile(disk.OS, r.path); errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		} else if err != nil && !disk.Unreadable(err) {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Held returns the containers of which something is here: an attachment, a namespace, or
// what the plugins remember of them.
func (n *Networks) Held() ([]string, error) {
	attached, err := n.All()
	if err != nil {
		return nil, err
	}
	var out []string
	for k := range attached {
		out = append(out, k)
	}
	spaces, err := os.ReadDir(filepath.Join(n.dir, "netns"))
	if err != nil {
		return nil, err
	}
	for _, entry := range spaces {
		out = append(out, entry.Name())
	}
	results, err := filepath.Glob(filepath.Join(n.dir, "cni", "cache", "results", "cl-*-eth[0-9]*"))
	if err != nil {
		return nil, err
	}
	for _, path := range results {
		name := filepath.Base(path)
		name = name[:strings.LastIndex(name, "-eth")]
		if parts := strings.SplitN(name, "-", 3); len(parts) == 3 { // cl, the hash of the bridge, the container
			out = append(out, parts[2])
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Sweep gives back the addresses that no container has, and removes the bridges that
// nothing is on and that no network names: damage of a file, here or of the plugins, would
// else keep them for ever. An address whose file is damaged and that a container has is
// noted anew. known returns the existing containers. Sweep calls it after reading the
// reservations, so that containers that are being attached are included. While a container has
// a namespace and no readable attachment, the free addresses are not known, and nothing is
// removed.
func (n *Networks) Sweep(ctx context.Context, known func() (map[string]bool, error)) error {
	bridges, err := n.made()
	if err != nil || len(bridges) == 0 {
		return err
	}
	var reserved []reservation
	for _, b := range bridges {
		list, err := n.reservations(b)
		if err != nil {
			return err
		}
		reserved = append(reserved, list...)
	}
	ids, err := known()
	if err != nil {
		return err
	}
	s := sweep{n: n, known: ids}
	if s.attached, err = n.All(); err != nil {
		return err
	}
	for k := range ids {
		s.uncertain = s.uncertain || s.attached[k] == nil && netns.Live(n.NetNS(k))
	}
	var errs []error
	for _, r := range reserved {
		errs = append(errs, s.settle(ctx, r))
	}
	for _, b := range bridges {
		if !s.uncertain {
			errs = append(errs, n.removeUnnamed(ctx, b))
		}
	}
	return errors.Join(errs...)
}

type sweep struct {
	n         *Networks
	known     map[string]bool
	attached  map[string]*Attachment
	uncertain bool
}

// settle frees the address of a reservation, or notes it for the container that has it.
func (s *sweep) settle(ctx context.Context, r reservation) error {
	for k, a := range s.attached {
		for i, l := range a.links() {
			if s.n.Bridge(bridgeID(a.Network, l)) != r.bridge {
				continue
			}
			switch {
			case l.IP == r.ip.String():
				want := k + lineBreak + fmt.Sprintf("eth%d", i)
				if strings.TrimSpace(string(r.content)) == want {
					return nil
				}
				return s.n.replace(r, []byte(want))
			case l.IP == "" && k == r.holder():
				return nil // it is being attached
			}
		}
	}
	holder := r.holder()
	if s.uncertain || s.known[holder] && s.attached[holder] == nil {
		return nil
	}
	if holder != "" && !s.known[holder] {
		// With the address go the rules that the plugins made for it.
		if err := s.n.releaseOn(ctx, holder, r.bridge, "eth0"); err != nil {
			return err
		}
	}
	return s.n.replace(r, nil)
}

// replace puts content in the place of that of a reservation, or removes it where content
// is nil. One that the plugins changed meanwhile stays. One that cannot be read, or is no
// regular file, is reported as damaged: the plugins, too, would wait for what they read of a FIFO.
func (n *Networks) replace(r reservation, content []byte) error {
	lock, err := filelock.Acquire(filepath.Join(n.ipam(r.bridge), "lock")) // the plugin's
	if err != nil {
		return err
	}
	defer lock.Close()
	now, err := disk.ReadFile(disk.OS, r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(now, r.content):
		return nil
	case disk.Unreadable(err):
		if err := os.Remove(r.path); err != nil {
			return err
		}
		n.report(&statefile.Damage{
			Identity: statefile.Identity{Role: "en/reservation", Name: r.ip.String()}, Path: r.path, Removed: true, Kept: true, Err: err,
		})
	case err != nil:
		return err
	case content == nil:
		return os.Remove(r.path)
	}
	if content == nil {
		return nil
	}
	return os.WriteFile(r.path, content, 0o600)
}

// removeUnnamed removes a bridge that no network names, as where the record of the networks
// was lost, and that nothing is on.
func (n *Networks) removeUnnamed(ctx context.Context, bridge string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	named, err := n.subnets()
	if err != nil {
		return err
	}
	for d := range named {
		if n.Bridge(d) == bridge {
			return nil
		}
	}
	attached, err := n.All()
	if err != nil {
		return err
	}
	for _, a := range attached {
		for _, l := range a.links() {
			if n.Bridge(bridgeID(a.Network, l)) == bridge {
				return nil
			}
		}
	}
	reserved, err := n.reservations(bridge)
	if err != nil || len(reserved) > 0 {
		return err
	}
	if ports, err := os.ReadDir(filepath.Join("/sys/class/net", bridge, "brif")); err == nil && len(ports) > 0 {
		return nil
	}
	return n.removeBridge(ctx, bridge)
}

// removeBridge removes a bridge with the rules that keep it apart, and the folder of its
// addresses.
func (n *Networks) removeBridge(ctx context.Context, bridge string) error {
	if err := netns.RemoveBridge(bridge); err != nil {
		return err
	}
	if err := sweepIsolation(ctx, bridge); err != nil {
		return err
	}
	return os.RemoveAll(n.ipam(bridge))
}

// subnetOnBridge returns the prefix that a bridge has on the machine, or the zero Prefix.
func subnetOnBridge(bridge string) netip.Prefix {
	link, err := net.InterfaceByName(bridge)
	if err != nil {
		return netip.Prefix{}
	}
	addrs, err := link.Addrs()
	if err != nil {
		return netip.Prefix{}
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Bits() == 24 {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}
