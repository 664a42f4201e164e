// Package volumes keeps the volumes of deployments: directories on the node that outlive
// containers and versions. A new one begins with what the image has at its target; files that
// a version delivers are brought by package seed.
package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	cfs "github.com/containerd/continuity/fs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/followed"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes/seed"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/keylock"
	"github.com/colonyfleet/colony/protocol"
)

// A Store has the volumes of a node. Its methods may be called concurrently.
type Store struct {
	// Followed has up to where the deployments were followed.
	Followed *followed.Store

	root  string
	locks keylock.Locks // by the directory of a volume
}

// New returns the store of the volumes below a directory, which exists.
func New(root string, positions *followed.Store) *Store {
	return &Store{root: root, Followed: positions}
}

// Dir returns the directory of a volume.
func (s *Store) Dir(d protocol.DeploymentName, name string) string {
	return filepath.Join(s.root, string(d), name)
}

// List returns the volumes on the node, sorted.
func (s *Store) List() ([]engine.Volume, error) {
	deployments, err := os.ReadDir(s.root)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var out []engine.Volume
	for _, d := range deployments {
		names, err := os.ReadDir(filepath.Join(s.root, d.Name()))
		if err != nil {
			return nil, fmt.Errorf("list volumes of %s: %w", d.Name(), err)
		}
		for _, n := range names {
			if !strings.HasPrefix(n.Name(), ".") { // one that is being filled
				out = append(out, engine.Volume{Deployment: protocol.DeploymentName(d.Name()), Name: n.Name()})
			}
		}
	}
	slices.SortFunc(out, engine.Volume.Compare)
	return out, nil
}

// Bytes returns the size of a volume on disk, in bytes.
func (s *Store) Bytes(ctx context.Context, v engine.Volume) (uint64, error) {
	path, err := s.path(v)
	if err != nil {
		return 0, err
	}
	var sum uint64
	err = filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			sum += uint64(info.Size())
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure volume %s: %w", v, err)
	}
	return sum, nil
}

// Remove removes a volume that no container mounts.
func (s *Store) Remove(ctx context.Context, v engine.Volume) error {
	path, err := s.path(v)
	if err != nil {
		return err
	}
	unlock, err := s.locks.Lock(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove volume %s: %w", v, err)
	}
	_ = os.Remove(unsettled(path))
	_ = os.Remove(filepath.Dir(path)) // it fails while there are others
	return nil
}

// path is the directory of a volume whose name came from outside.
func (s *Store) path(v engine.Volume) (string, error) {
	if _, err := protocol.ParseDeploymentName(string(v.Deployment)); err != nil {
		return "", err
	}
	if v.Name == "" || strings.HasPrefix(v.Name, ".") || strings.ContainsAny(v.Name, "/\x00") {
		return "", protocol.Errorf(protocol.Invalid, "volume name %q: want one without / that does not begin with a dot", v.Name)
	}
	return s.Dir(v.Deployment, v.Name), nil
}

// An Image is what a new volume begins with.
type Image struct {
	// Files calls f with the files of the image mounted read-only at root.
	Files func(ctx context.Context, f func(root string) error) error
	// User is as whom the container runs that makes the volume, by the names of the image.
	User string
}

// Fill makes the volume of a mount if there is none, and delivers the files of this version. As
// with Docker, a new volume begins with the content of the image at the target, owner and mode
// included, unless the mount says otherwise; a volume with files of the version gets the owner and
// mode alone. Where the image has nothing, the volume belongs to the user of the container, as with
// Podman: a user other than root could not get it otherwise. A volume that only readers mount so
// far is given to the first container that mounts it writable. An owner in the mount takes
// precedence, and applies to all initial content of the volume.
func (s *Store) Fill(ctx context.Context, d protocol.DeploymentName, m protocol.Mount, image Image) error {
	path := s.Dir(d, m.Source)
	unlock, err := s.locks.Lock(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	record := filepath.Join(filepath.Dir(path), ".files-"+m.Source) // no volume begins with a dot: see path
	if _, err := os.Stat(path); err != nil {
		// What was delivered to a volume that was removed says nothing of this one.
		if err := os.Remove(record); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.make(ctx, path, m, image); err != nil {
			return err
		}
	} else if !m.ReadOnly {
		if err := settle(ctx, path, m, image); err != nil {
			return err
		}
	}
	if len(m.Files) == 0 {
		return nil
	}
	return seed.Apply(path, record, m.Files)
}

// make makes a volume.
func (s *Store) make(ctx context.Context, path string, m protocol.Mount, image Image) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	fresh := filepath.Join(filepath.Dir(path), ".new-"+m.Source)
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	open := unsettled(path)
	if err := os.Remove(open); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fill := func(root string) error {
		from, err := cfs.RootPath(root, m.Target)
		if err != nil {
			return err
		}
		info, err := os.Stat(from)
		if err != nil || !info.IsDir() { // the image has nothing there
			if m.ReadOnly && m.UID == 0 && m.GID == 0 {
				return os.WriteFile(open, nil, 0o600)
			}
			uid, gid := userOf(root, image.User)
			return os.Chown(fresh, uid, gid)
		}
		if len(m.Files) == 0 {
			return cfs.CopyDir(fresh, from)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("the owner of %s in the image is not known", m.Target)
		}
		return errors.Join(os.Chown(fresh, int(st.Uid), int(st.Gid)), os.Chmod(fresh, info.Mode()))
	}
	if !m.NoCopy {
		if err := image.Files(ctx, fill); err != nil {
			return err
		}
	}
	if m.UID != 0 || m.GID != 0 {
		if err := own(fresh, int(m.UID), int(m.GID)); err != nil {
			return fmt.Errorf("give the new volume its owner: %w", err)
		}
	}
	// A volume that has its name is never filled again: its files are durable before.
	if err := atomicfile.SyncFileSystem(fresh); err != nil {
		return fmt.Errorf("make the files of the new volume durable: %w", err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return disk.OS.SyncDir(filepath.Dir(path))
}

// WithImageVolumes returns the mounts of c and, after them, a volume for each path
// that its image declares as one and that c mounts nothing at. As with Docker, what
// a program writes there is data: it is kept over updates, and writable under a
// read-only root file system.
func WithImageVolumes(c engine.Container, config ocispec.ImageConfig) ([]protocol.Mount, error) {
	all := slices.Clone(c.Spec.Mounts)
	for _, target := range slices.Sorted(maps.Keys(config.Volumes)) {
		clean := filepath.Clean(target)
		if !filepath.IsAbs(clean) || clean == "/" {
			return nil, engine.Errorf(protocol.CreateFailed, "container %s: its image declares a volume at %q: want an absolute path below /; build the image anew", c.ID, target)
		}
		taken := slices.ContainsFunc(all, func(m protocol.Mount) bool { return filepath.Clean(m.Target) == clean })
		if !taken {
			all = append(all, protocol.Mount{Kind: protocol.MountVolume, Source: imageVolume(c.ID, clean), Target: clean})
		}
	}
	return all, nil
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// imageVolume names the volume of an image's path. Containers of one image have
// volumes of their own. No volume of a Compose file has an @ in its name.
func imageVolume(id engine.ID, target string) string {
	sum := sha256.Sum256([]byte(id.Component + "\x00" + id.Name + "\x00" + target))
	front := strings.Trim(unfit.ReplaceAllString(id.Name+target, "-"), "-")
	return strings.Trim(front[:min(len(front), 48)], "-") + "@" + hex.EncodeToString(sum[:6])
}
