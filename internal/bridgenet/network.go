// Package bridgenet gives containers a network: one bridge for each named group
// of them, made by the CNI plugins bridge, host-local and portmap, and a network
// namespace for each container that outlives the process in it.
//
// What it has done is in files: subnets.json says which network has which /24,
// attachments/ holds one file for each attached container, written before the
// plugins run, so that what a killed process left can be undone.
package bridgenet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Options say where state is kept and what addresses may be used.
type Options struct {
	Dir        string   // holds the state
	PluginDirs []string // searched in order for CNI plugins
	// Pool is the IPv4 prefix, /24 or wider, that each bridge gets a /24 of. A /24
	// that the machine uses otherwise is left out.
	Pool string
	// Owner tells these networks from others on the same machine.
	Owner string
	// Damaged, unless nil, is called with each file of state that was found damaged: it
	// counts as not held, and is set aside.
	Damaged func(*statefile.Damage)
}

// Networks are the bridges of one owner. Methods may be called concurrently, but
// those that change one attachment only one after another.
type Networks struct {
	cni     *libcni.CNIConfig
	dir     string
	pool    netip.Prefix
	owner   string
	damaged func(*statefile.Damage)

	files sync.Mutex // held to read or write a file of state; acquired after mu

	mu sync.Mutex // serialises reservations: subnets and host ports are checked, then reserved
}

// An Attachment is one container on the bridge of a network.
type Attachment struct {
	Network    string          `json:"network"`
	Group      string          `json:"group"` // whose names Hosts prefers
	Name       string          `json:"name"`
	Hostname   string          `json:"hostname"`
	Aliases    []string        `json:"aliases,omitempty"`
	ExtraHosts []string        `json:"extraHosts,omitempty"` // name=address
	Ports      []protocol.Port `json:"ports,omitempty"`

	// IP and Gateway are the plugins' answer; empty until they have given it.
	IP      string `json:"ip,omitempty"`
	Gateway string `json:"gateway,omitempty"`
}

// New returns the networks whose state is in opts.Dir.
func New(opts Options) (*Networks, error) {
	pool, err := netip.ParsePrefix(opts.Pool)
	if err != nil {
		return nil, fmt.Errorf("address pool: %w", err)
	}
	// Given, because the library's own default is made at the first call, which is
	// a race between two of them.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}, PluginDecoder: version.PluginDecoder{}}
	n := &Networks{
		cni: libcni.NewCNIConfigWithCacheDir(opts.PluginDirs, filepath.Join(opts.Dir, "cni", "cache"), exec),
		dir: opts.Dir, pool: pool.Masked(), owner: opts.Owner, damaged: opts.Damaged,
	}
	for _, dir := range []string{"attachments", "netns"} {
		if err := os.MkdirAll(filepath.Join(opts.Dir, dir), 0o711); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *Networks) file(key string) statefile.File {
	return statefile.File{
		Identity: statefile.Identity{Role: "en/attachment", Name: key}, Path: filepath.Join(n.dir, "attachments", key+".json"),
	}
}

// load reads a file of state into v. A damaged one is reported, and counts as not found.
func (n *Networks) load(f statefile.File, v any) (found bool, err error) {
	n.files.Lock()
	defer n.files.Unlock()
	found, err = f.Load(func(b []byte) error { return json.Unmarshal(b, v) })
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		if n.damaged != nil {
			n.damaged(d)
		}
		return false, nil
	}
	return found, err
}

// NetNS returns the path of a container's network namespace.
func (n *Networks) NetNS(key string) string { return filepath.Join(n.dir, "netns", key) }

// Mark returns a few characters that tell this owner from others here.
func (n *Networks) Mark() string {
	sum := sha256.Sum256([]byte(n.owner))
	return hex.EncodeToString(sum[:4])
}

// Bridge returns the name of a network's bridge: at most 15 characters, the
// kernel's limit.
func (n *Networks) Bridge(d string) string {
	sum := sha256.Sum256([]byte(n.owner + "\x00" + d))
	return "cl-" + hex.EncodeToString(sum[:5])
}

// Get returns the attachment of a container, or nil; a damaged one is none.
func (n *Networks) Get(key string) (*Attachment, error) {
	a := new(Attachment)
	if found, err := n.load(n.file(key), a); err != nil || !found {
		return nil, err
	}
	return a, nil
}

// All returns every attachment by container key.
func (n *Networks) All() (map[string]*Attachment, error) {
	entries, err := os.ReadDir(filepath.Join(n.dir, "attachments"))
	if err != nil {
		return nil, err
	}
	out := map[string]*Attachment{}
	for _, entry := range entries {
		k, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			continue
		}
		a, err := n.Get(k)
		if err != nil {
			return nil, err
		}
		if a != nil {
			out[k] = a
		}
	}
	return out, nil
}

// Attach makes the container's network namespace and joins it to the bridge. It
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
	list, err := n.reserve(key, want)
	if err != nil {
		return err
	}
	if err := netns.Make(n.NetNS(key)); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	answer, err := n.add(ctx, list, n.runtime(key, want), have)
	if err != nil && strings.Contains(err.Error(), "failed to find plugin") {
		return fmt.Errorf("attach %s to its network: install the CNI plugins (containernetworking-plugins): %w", want.Name, err)
	}
	if err != nil {
		return fmt.Errorf("attach %s to its network: %w", want.Name, err)
	}
	result, err := types100.GetResult(answer)
	if err != nil {
		return fmt.Errorf("read the answer of the network plugins: %w", err)
	}
	if len(result.IPs) == 0 {
		return fmt.Errorf("attach %s to its network: the plugins gave it no address", want.Name)
	}
	want.IP, want.Gateway = result.IPs[0].Address.IP.String(), result.IPs[0].Gateway.String()
	return n.save(n.file(key), want)
}

// reserve reserves the subnet and the ports that an attachment needs, by writing
// it down: what is written is seen by the next reservation.
func (n *Networks) reserve(key string, want Attachment) (*libcni.NetworkConfigList, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkPorts(want); err != nil {
		return nil, err
	}
	subnet, err := n.subnet(want.Network)
	if err != nil {
		return nil, err
	}
	list, err := n.config(want.Network, subnet)
	if err != nil {
		return nil, err
	}
	return list, n.save(n.file(key), want)
}

// add runs the plugins. It asks for the address that the container had, which
// others may have remembered; the rules of a stale Attachment then fit again.
func (n *Networks) add(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf, before *Attachment) (types.Result, error) {
	ctx, cancel := whole(ctx)
	defer cancel()
	if before == nil || before.IP == "" {
		return n.cni.AddNetworkList(ctx, list, rt)
	}
	same := *rt
	same.Args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", before.IP}}
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
	if have != nil {
		subnet, err := n.stored(have.Network)
		if err != nil {
			return err
		}
		if subnet.IsValid() {
			list, err := n.config(have.Network, subnet)
			if err != nil {
				return err
			}
			rt := n.runtime(key, *have)
			if !netns.Live(rt.NetNS) {
				rt.NetNS = "" // removed by a reboot: the plugins release the rest
			}
			if err := n.del(ctx, list, rt); err != nil {
				return fmt.Errorf("detach from network: %w", err)
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

func (n *Networks) runtime(key string, a Attachment) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: key, NetNS: n.NetNS(key), IfName: "eth0"}
	if len(a.Ports) > 0 {
		var maps []map[string]any
		for _, p := range a.Ports {
			maps = append(maps, map[string]any{
				"hostPort": p.Host, "containerPort": p.Container, "protocol": portProtocol(p), "hostIP": p.HostIP,
			})
		}
		rt.CapabilityArgs = map[string]any{"portMappings": maps}
	}
	return rt
}

func portProtocol(p protocol.Port) string {
	if p.Protocol == "" {
		return "tcp"
	}
	return p.Protocol
}

// config returns the CNI configuration of a network.
func (n *Networks) config(d string, subnet netip.Prefix) (*libcni.NetworkConfigList, error) {
	b, err := json.Marshal(map[string]any{
		"cniVersion": "0.4.0", // spoken by all plugins still in use
		"name":       n.Bridge(d),
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": n.Bridge(d), "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": filepath.Join(n.dir, "cni", "ipam"),
					"ranges": []any{[]any{map[string]any{"subnet": subnet.String()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}},
		},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(b)
}

// checkPorts returns an error if a host port that a needs is in use, be it by a
// program or by another container.
func (n *Networks) checkPorts(a Attachment) error {
	if len(a.Ports) == 0 {
		return nil
	}
	others, err := n.All()
	if err != nil {
		return err
	}
	for _, p := range a.Ports {
		// The plugins would publish nothing, and report success.
		if ip, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && (err != nil || !ip.Is4()) {
			return fmt.Errorf("port %d/%s of %s: the networks of the node have IPv4 only: publish it on an IPv4 address in place of %q",
				p.Host, portProtocol(p), a.Name, p.HostIP)
		}
		for _, o := range others {
			for _, q := range o.Ports {
				if p.Host == q.Host && portProtocol(p) == portProtocol(q) && overlap(p.HostIP, q.HostIP) {
					return fmt.Errorf("port %d/%s of the node is in use by %s of %s: publish %s on another port",
						p.Host, portProtocol(p), o.Name, o.Network, a.Name)
				}
			}
		}
		if err := tryListen(p); err != nil {
			return fmt.Errorf("port %d/%s of the node cannot be published for %s, stop the program that has it or choose another port: %w",
				p.Host, portProtocol(p), a.Name, err)
		}
	}
	return nil
}

func overlap(a, b string) bool {
	everywhere := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return everywhere(a) || everywhere(b) || a == b
}

// tryListen returns an error if a port of the node is in use.
func tryListen(p protocol.Port) error {
	ip := p.HostIP
	if ip == "" {
		ip = "0.0.0.0"
	}
	address := net.JoinHostPort(ip, strconv.Itoa(int(p.Host)))
	if portProtocol(p) == "udp" {
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
