// Package names lets the containers of a deployment find each other and the world by name, in the
// two ways in which programs look.
//
// The C library reads /etc/hosts first: each container's has the names of all the others of its
// deployment, and works whether the agent runs or not. A program that asks DNS itself, such as
// nslookup, nginx with resolver or c-ares, finds a name server of the agent at 127.0.0.11, as with
// Docker. Its sockets are in the network namespace of the container, so that no firewall and no
// published port of the node interferes. It answers for the names of the deployment, and asks the
// node's name servers about all others; when DHCP changes those, it uses the new ones. While the
// agent restarts it does not answer: the C library then asks the node's name servers, which
// resolv.conf lists after it if a container can reach them.
package names

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/inplace"
	"github.com/colonyfleet/colony/internal/keylock"
	"github.com/colonyfleet/colony/internal/nameserver"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// Options say where things are. All are required but ResolvConf.
type Options struct {
	// Dir has a directory for each container, by its key, which the owner makes and removes.
	Dir      string
	Networks *bridgenet.Networks
	// ResolvConf are the files of the node's name servers, in order of preference. Nil:
	// the system's.
	ResolvConf []string
	// Damaged is called with each file of settings that was damaged, and set aside.
	Damaged func(*statefile.Damage)
	Logger  *slog.Logger
}

// Names keeps the files hosts, hostname and resolv.conf of all containers, and serves
// DNS to those on a bridge. Its methods may be called concurrently, but those about one
// container only one after another.
type Names struct {
	o      Options
	server *nameserver.Server
	locks  keylock.Locks // by network: its hosts files are written by one at a time

	mu        sync.Mutex // protects what follows, and the files resolv.conf
	node      node
	unwritten bool                // a file resolv.conf could not be written
	settings  map[string]settings // by container key
	serving   map[string]uint64   // by container key, the id of the namespace that is served
	stale     map[string]bool     // networks of which a hosts file could not be written
	unknown   map[string]bool     // containers whose settings were damaged: their files stay as they are
}

// settings are what must be known of a container to write its resolv.conf anew. They
// are in the file names.json of its directory.
type settings struct {
	Network protocol.Network `json:"network,omitempty"`
	Servers []string         `json:"servers,omitempty"`
	Search  []string         `json:"search,omitempty"`
	Options []string         `json:"options,omitempty"`
}

// New returns the names of the containers that are there, and serves them. Close ends it.
func New(o Options) (*Names, error) {
	if o.ResolvConf == nil {
		o.ResolvConf = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
	}
	n := &Names{
		o: o, server: nameserver.New(nameserver.Options{Logger: o.Logger}),
		settings: map[string]settings{}, serving: map[string]uint64{}, stale: map[string]bool{}, unknown: map[string]bool{},
	}
	if err := n.resume(); err != nil {
		n.server.Close()
		return nil, err
	}
	return n, nil
}

// Close ends the name server. The files stay.
func (n *Names) Close() { n.server.Close() }

// resume takes up what an earlier agent left.
func (n *Names) resume() error {
	entries, err := os.ReadDir(n.o.Dir)
	if err != nil {
		return err
	}
	attached, err := n.o.Networks.All()
	if err != nil {
		return err
	}

	for _, entry := range entries {
		k := entry.Name()
		var s settings
		if err := n.load(k, &s); err != nil {
			if damage, ok := errors.AsType[*statefile.Damage](err); ok { // also what a power cut left half written
				n.o.Damaged(damage)
				n.unknown[k] = true
			} else { // the container is of an earlier agent
				n.o.Logger.Warn("name servers of a container not known until it is started again", "path", n.path(k, settingsFile), "err", err)
			}
			s = settings{}
			if attached[k] == nil {
				s.Network = protocol.NetworkHost
			}
		}
		n.settings[k] = s
	}
	if err := n.Follow(); err != nil {
		n.o.Logger.Warn("name servers of the node not read", "err", err)
	}
	for k, a := range attached {
		if _, ok := n.settings[k]; !ok || a.IP == "" || !netns.Live(n.o.Networks.NetNS(k)) {
			continue // its next start makes it anew
		}
		if err := n.serve(k, a, attached); err != nil {
			n.o.Logger.Warn("container has no name server until it is started again", "container", k, "err", err)
		}
	}
	return nil
}

// settingsFile is the file of the settings of a container, in its directory.
const settingsFile = "names.json"

// settingsOn is the file of the settings of a container at a path.
func settingsOn(key, path string) statefile.File {
	return statefile.File{Identity: statefile.Identity{Role: "en/names", Name: key}, Path: path}
}

// load reads the settings of a container; a damaged file is set aside. Agents before 0.3.0 wrote them without
// a header.
func (n *Names) load(key string, s *settings) error {
	f := settingsOn(key, n.path(key, settingsFile))
	found, err := f.Load(func(content []byte) error { return decode(content, s) })
	if err == nil && !found {
		err = fmt.Errorf("%s: %w", f.Path, fs.ErrNotExist)
	}
	return err
}

// decode reads settings. Those without a header nothing vouches for: another file in their place is no
// settings.
func decode(b []byte, s *settings) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the settings")
	}
	return nil
}

func (n *Names) path(key, file string) string { return filepath.Join(n.o.Dir, key, file) }

// Write makes the files of a container before it starts. Those that are mounted already
// keep their inode. It refuses a name or an address that would write more into a file than
// itself, with protocol.CreateFailed.
func (n *Names) Write(key string, c engine.Container) error {
	if err := check(c); err != nil {
		return err
	}
	s := settingsOf(c)
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f := settingsOn(key, n.path(key, settingsFile))
	if err := inplace.Write(f.Path, f.Seal(b)); err != nil {
		return err
	}
	if err := inplace.Write(n.path(key, "hostname"), []byte(Hostname(c)+"\n")); err != nil {
		return err
	}
	now, err := readNode(n.o.ResolvConf)
	if err != nil {
		return err
	}
	n.mu.Lock()
	if err := n.follow(now); err != nil {
		n.o.Logger.Warn("containers keep former name servers of the node", "err", err) // no reason not to start this one
	}
	n.settings[key] = s
	delete(n.unknown, key)
	err = inplace.Write(n.path(key, "resolv.conf"), n.resolvConf(s))
	n.mu.Unlock()
	if err != nil || c.Spec.Network == protocol.NetworkBridge {
		return err // Join writes hosts when the address is known
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil || c.Spec.Network == protocol.NetworkNone {
		hosts = []byte(localHosts)
	}
	return inplace.Write(n.path(key, "hosts"), append(hosts, extraHosts(c.Spec.ExtraHosts, "127.0.0.1")...))
}

// Unknown reports whether the settings of a container were damaged and Take has not been called
// since.
func (n *Names) Unknown(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unknown[key]
}

// Adopt records a container that runs and whose settings are Unknown. An error says that its files could not be
// written; those that it has stay, and they are written with the next change.
func (n *Names) Adopt(ctx context.Context, key string, c engine.Container) error {
	err := n.Write(key, c)
	n.mu.Lock()
	delete(n.unknown, key)
	n.settings[key] = settingsOf(c)
	n.mu.Unlock()
	if c.Spec.Network != protocol.NetworkBridge {
		return err
	}
	return errors.Join(err, n.Refresh(ctx, string(c.ID.Deployment)))
}

func settingsOf(c engine.Container) settings {
	return settings{Network: c.Spec.Network, Servers: c.Spec.DNS, Search: c.Spec.DNSSearch, Options: c.Spec.DNSOptions}
}

// Hostname returns the name that a container has for itself.
func Hostname(c engine.Container) string {
	return cmp.Or(c.Spec.Hostname, c.Spec.NetworkOf, c.ID.Name)
}

// Join makes a container that has been attached to a network known there, and serves
// it DNS. What another container keeps from being written is no error of this one.
func (n *Names) Join(ctx context.Context, key, network string) error {
	attached, err := n.o.Networks.All()
	if err != nil {
		return err
	}
	if a := attached[key]; a != nil {
		if err := n.serve(key, a, attached); err != nil {
			return fmt.Errorf("serve it DNS: %w", err)
		}
	}
	failed, err := n.refresh(ctx, network)
	if err != nil {
		return err
	}
	return failed[key]
}

// serve opens the sockets of a container, unless they are open already.
func (n *Names) serve(key string, a *bridgenet.Attachment, attached map[string]*bridgenet.Attachment) error {
	ns := n.o.Networks.NetNS(key)
	id := netns.ID(ns)
	n.mu.Lock()
	s, serving := n.settings[key], id != 0 && n.serving[key] == id
	n.mu.Unlock()
	if serving {
		return nil
	}
	n.server.Stop(key) // of a namespace that is no more
	sockets, err := open(ns)
	if err != nil {
		return err
	}
	n.server.Serve(key, sockets, zoneOf(view(key, members(a.Network, attached)), s))
	n.mu.Lock()
	n.serving[key] = id
	n.mu.Unlock()
	return nil
}

// Leave ends the DNS of a container, before it is detached from its network.
func (n *Names) Leave(key string) {
	n.server.Stop(key)
	n.mu.Lock()
	delete(n.serving, key)
	n.mu.Unlock()
}

// Forget leaves a container alone from now on, before its directory is removed.
func (n *Names) Forget(key string) {
	n.Leave(key)
	n.mu.Lock()
	delete(n.settings, key)
	delete(n.unknown, key)
	n.mu.Unlock()
}

// Refresh gives all containers of a network the names that hold now: in /etc/hosts,
// which is mounted and so written in place, and in DNS. A container can keep its file from
// being written, as by executing it: the others get theirs, and Retry writes it later.
func (n *Names) Refresh(ctx context.Context, network string) error {
	_, err := n.refresh(ctx, network)
	return err
}

// Retry writes the hosts files that could not be written before.
func (n *Names) Retry(ctx context.Context) error {
	n.mu.Lock()
	stale := slices.Sorted(maps.Keys(n.stale))
	n.mu.Unlock()
	var errs []error
	for _, network := range stale {
		errs = append(errs, n.Refresh(ctx, network))
	}
	return errors.Join(errs...)
}

// refresh is Refresh; it returns why files were not written, by container key.
func (n *Names) refresh(ctx context.Context, network string) (map[string]error, error) {
	unlock, err := n.locks.Lock(ctx, network)
	if err != nil {
		return nil, err
	}
	defer unlock()
	attached, err := n.o.Networks.All()
	if err != nil {
		return nil, err
	}
	list := members(network, attached)
	failed := map[string]error{}
	for _, m := range list {
		if _, err := os.Stat(n.path(m.key, "")); err != nil {
			continue // being removed
		}
		v := view(m.key, list)
		if err := inplace.Write(n.path(m.key, "hosts"), hostsOf(v, m.Attachment)); err != nil {
			failed[m.key] = fmt.Errorf("write hosts of %s: %w", m.Name, err)
		}
		n.mu.Lock()
		s := n.settings[m.key]
		n.mu.Unlock()
		n.server.SetZone(m.key, zoneOf(v, s))
	}
	n.note(network, failed)
	return failed, nil
}

// note remembers whether a network has files that must be written again. It logs the first failure
// only.
func (n *Names) note(network string, failed map[string]error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(failed) == 0 {
		delete(n.stale, network)
		return
	}
	if !n.stale[network] {
		err := errors.Join(slices.Collect(maps.Values(failed))...)
		n.o.Logger.Warn("a container keeps its hosts file from being written: it has former names until it can be", "network", network, "err", err)
	}
	n.stale[network] = true
}

// Follow gives all containers the node's name servers as they are now: DHCP may bring
// them after the first start. While the node has none, they have what they had.
// A file that it could not write is written by a later call.
func (n *Names) Follow() error {
	now, err := readNode(n.o.ResolvConf)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.follow(now)
}

// follow is Follow with what the node says. The caller holds the lock.
func (n *Names) follow(now node) error {
	if len(now.own.Servers) == 0 && len(n.node.own.Servers) > 0 {
		now = n.node
	}
	if now.equal(n.node) && !n.unwritten {
		return nil
	}
	n.node = now
	n.server.SetUpstreams(nameserver.Upstreams(now.own.Servers))
	var errs []error
	for k, s := range n.settings {
		if n.unknown[k] {
			continue
		}
		if err := inplace.Write(n.path(k, "resolv.conf"), n.resolvConf(s)); !errors.Is(err, fs.ErrNotExist) { // else being removed
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	n.unwritten = err != nil
	return err
}

// A node is what the node says of its name servers.
type node struct {
	raw     []byte                // the file that programs of the node read
	own     nameserver.ResolvConf // what it says
	reached []netip.Addr          // those that a container reaches: a resolver on the loopback is replaced by those that it asks
}

func (a node) equal(b node) bool {
	return string(a.raw) == string(b.raw) && slices.Equal(a.reached, b.reached)
}

func readNode(files []string) (node, error) {
	var all node
	for _, path := range files {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return node{}, err
		}
		c := nameserver.ParseResolvConf(b)
		if all.raw == nil {
			all.raw, all.own = b, c
		}
		all.reached = slices.DeleteFunc(slices.Clone(c.Servers), func(a netip.Addr) bool { return a.IsLoopback() })
		if len(all.reached) > 0 {
			break
		}
	}
	return all, nil
}
