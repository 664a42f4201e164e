// Package bridgenet gives containers a network: one bridge for each named group
// of them, made by the CNI plugins bridge, host-local and portmap, and a network
// namespace for each container that outlives the process in it.
//
// What it has done is in files: subnets.json says which network has which /24,
// attachments/ holds one file for each attached container, written before the
// plugins run, so that what a killed process left can be undone.
package bridgenet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

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
	Network    string          `json:"network"` // name of the network
	Group      string          `json:"group"`   // whose names Hosts prefers
	Name       string          `json:"name"`
	Hostname   string          `json:"hostname"`             // of the container
	Aliases    []string        `json:"aliases,omitempty"`    // further names of the container
	ExtraHosts []string        `json:"extraHosts,omitempty"` // name=address
	Ports      []protocol.Port `json:"ports,omitempty"`      // that are published; a chosen one has its number

	// Links are the bridges that it is on in the place of the one that all of the network
	// share. By the first it reaches what is outside, and its ports are published there.
	Links []Link `json:"links,omitempty"`

	// Addressing, on the bridge that all of the network share, is what is wanted of its
	// addresses; after Attach, what it got.
	Addressing *protocol.Addressing `json:"addressing,omitempty"`

	// IP and Gateway are the plugins' answer, for the first of Links; empty until they have
	// given it.
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
		n.report(d)
		return false, nil
	}
	return found, err
}

func (n *Networks) report(d *statefile.Damage) {
	if n.damaged != nil {
		n.damaged(d)
	}
}

// NetNS returns the path of a container's network namespace.
func (n *Networks) NetNS(key string) string { return filepath.Join(n.dir, "netns", key) }

// Mark returns a few characters that tell this owner from others here.
func (n *Networks) Mark() string {
	sum := sha256.Sum256([]byte(n.owner))
	return hex.EncodeToString(sum[:4])
}

const bridgePrefix = "cl-"

// Bridge returns the name of a network's bridge: at most 15 characters, the
// kernel's limit.
func (n *Networks) Bridge(d string) string {
	sum := sha256.Sum256([]byte(n.owner + "\x00" + d))
	return bridgePrefix + hex.EncodeToString(sum[:5])
}

// IsBridge reports whether a link of the node has a name such as those that Bridge gives.
func IsBridge(link string) bool { return strings.HasPrefix(link, bridgePrefix) }

// Get returns the attachment of a container, or nil; a damaged one is none.
func (n *Networks) Get(key string) (*Attachment, error) {
	a := new(Attachment)
	if found, err := n.load(n.file(key), a); err != nil || !found {
		return nil, err
	}
	return a, nil
}

// Has reports whether a container has an attachment, damaged or not.
func (n *Networks) Has(key string) bool {
	_, err := os.Stat(n.file(key).Path)
	return err == nil
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
