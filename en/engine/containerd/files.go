package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	cfs "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/protocol"
)

func (e *Engine) volumeDir(d protocol.DeploymentName, name string) string {
	return filepath.Join(e.opts.StateDir, "volumes", string(d), name)
}

// writeFiles makes the directory of a container, and in it the files that its
// spec and its network mount. Files that are mounted already keep their inode.
func (e *Engine) writeFiles(key string, c engine.Container) error {
	if err := os.MkdirAll(e.dir(key, "files"), 0o711); err != nil {
		return err
	}
	id, err := json.Marshal(c.ID)
	if err != nil {
		return err
	}
	if err := rewrite(e.dir(key, "id.json"), id); err != nil {
		return err
	}
	if err := rewrite(e.dir(key, "hostname"), []byte(hostname(c)+"\n")); err != nil {
		return err
	}
	resolv, err := e.nameServers()
	if err != nil {
		return err
	}
	if err := rewrite(e.dir(key, "resolv.conf"), resolv); err != nil {
		return err
	}
	for i, m := range c.Spec.Mounts {
		if m.Kind != protocol.MountFile {
			continue
		}
		mode := fs.FileMode(m.Mode) & fs.ModePerm
		if m.Mode == 0 {
			mode = 0o444
		}
		path := e.dir(key, "files", strconv.Itoa(i))
		if err := rewrite(path, m.Content); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	if c.Spec.Network == protocol.NetworkBridge {
		return nil // writeHosts writes it when the address is known
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil || c.Spec.Network == protocol.NetworkNone {
		hosts = []byte(localHosts)
	}
	return rewrite(e.dir(key, "hosts"), append(hosts, extraHosts(c.Spec.ExtraHosts, "127.0.0.1")...))
}

func hostname(c engine.Container) string {
	if c.Spec.Hostname != "" {
		return c.Spec.Hostname
	}
	return c.ID.Name
}

const localHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// extraHosts turns "name=address" into lines. The address host-gateway means
// the node.
func extraHosts(lines []string, gateway string) []byte {
	var out []byte
	for _, line := range lines {
		name, address, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		if address == "host-gateway" {
			address = gateway
		}
		out = fmt.Appendf(out, "%s\t%s\n", address, name)
	}
	return out
}

// writeHosts rewrites /etc/hosts of all containers of a deployment that have an
// address. The files are mounted, so they are written in place.
func (e *Engine) writeHosts(ctx context.Context, d protocol.DeploymentName) error {
	unlock, err := e.locks.Lock(ctx, "hosts "+string(d))
	if err != nil {
		return err
	}
	defer unlock()
	all, err := e.net.All()
	if err != nil {
		return err
	}
	maps.DeleteFunc(all, func(_ string, a *bridgenet.Attachment) bool { return a.Network != string(d) || a.IP == "" })
	keys := slices.Sorted(maps.Keys(all))
	for _, k := range keys {
		if _, err := os.Stat(e.dir(k)); err != nil {
			continue // being removed
		}
		if err := rewrite(e.dir(k, "hosts"), hostsOf(k, keys, all)); err != nil {
			return fmt.Errorf("write hosts of %s: %w", all[k].Name, err)
		}
	}
	return nil
}

// hostsOf returns the hosts file of one container: itself, then the others of
// its component, then those of other components under the names still free.
func hostsOf(key string, keys []string, all map[string]*bridgenet.Attachment) []byte {
	me := all[key]
	out := []byte(localHosts)
	taken := map[string]bool{}
	add := func(a *bridgenet.Attachment, names ...string) {
		var free []string
		for _, name := range names {
			if name != "" && !taken[name] {
				taken[name] = true
				free = append(free, name)
			}
		}
		if len(free) > 0 {
			out = fmt.Appendf(out, "%s\t%s\n", a.IP, strings.Join(free, " "))
		}
	}
	add(me, append([]string{me.Hostname, me.Name}, me.Aliases...)...)
	for _, same := range []bool{true, false} {
		for _, k := range keys {
			a := all[k]
			if k != key && (a.Group == me.Group) == same {
				add(a, append([]string{a.Name, a.Name + "." + a.Group}, a.Aliases...)...)
			}
		}
	}
	return append(out, extraHosts(me.ExtraHosts, me.Gateway)...)
}

// rewrite gives a file this content and keeps its inode. It touches nothing if
// the content is there already.
func rewrite(path string, content []byte) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Close())
}

// nameServerFiles are those that are given, or else the system's.
func nameServerFiles(given []string) []string {
	if given != nil {
		return given
	}
	return []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}
}

// nameServers returns the node's name servers as a container can reach them: a
// resolver on the node's loopback is replaced by those that it asks itself.
func (e *Engine) nameServers() ([]byte, error) {
	for _, path := range e.resolvConf {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !strings.Contains(string(b), "nameserver 127.") {
			return b, nil
		}
	}
	return nil, nil
}

// followNameServers gives all containers the node's name servers as they are now:
// DHCP may bring them after the first start. While the node has none, they keep what
// they have.
func (e *Engine) followNameServers() error {
	now, err := e.nameServers()
	if err != nil || len(now) == 0 {
		return err
	}
	paths, err := filepath.Glob(e.dir("*", "resolv.conf"))
	errs := []error{err}
	for _, path := range paths {
		if err := rewrite(path, now); !errors.Is(err, fs.ErrNotExist) { // else removed meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// fillVolume makes a volume if there is none. As with Docker, a new one begins
// with what the image has at the target, owner and mode included.
func (e *Engine) fillVolume(ctx context.Context, img client.Image, key string, id engine.ID, m protocol.Mount) error {
	path := e.volumeDir(id.Deployment, m.Source)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	unlock, err := e.locks.Lock(ctx, "volume "+path)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	fresh := filepath.Join(filepath.Dir(path), ".new-"+m.Source) // no volume begins with a dot: see mounts
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	err = e.withRootFS(ctx, img, key+"-view", func(root string) error {
		from, err := cfs.RootPath(root, m.Target)
		if err != nil {
			return err
		}
		if info, err := os.Stat(from); err != nil || !info.IsDir() {
			return nil // the image has nothing there
		}
		return cfs.CopyDir(fresh, from)
	})
	if err != nil {
		return e.fault(err, protocol.CreateFailed, fmt.Sprintf("fill volume %s of %s", m.Source, id))
	}
	return os.Rename(fresh, path)
}

// withRootFS calls f with the image's files mounted read-only.
func (e *Engine) withRootFS(ctx context.Context, img client.Image, name string, f func(root string) error) error {
	snapshotter, err := e.snapshots(ctx)
	if err != nil {
		return err
	}
	layers, err := img.RootFS(ctx)
	if err != nil {
		return err
	}
	s := e.client.SnapshotService(snapshotter)
	if err := s.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	ctx, done, err := e.client.WithLease(ctx)
	if err != nil {
		return err
	}
	cleanup := context.WithoutCancel(ctx)
	defer func() { _ = done(cleanup) }() // a lease ends by itself after a day
	mounts, err := s.View(ctx, name, identity.ChainID(layers).String())
	if err != nil {
		return err
	}
	err = mount.WithReadonlyTempMount(ctx, mounts, f)
	return errors.Join(err, s.Remove(cleanup, name))
}
