package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/idfile"
	"github.com/colonyfleet/colony/en/engine/containerd/leftover"
	"github.com/colonyfleet/colony/en/engine/containerd/volumes"
	"github.com/colonyfleet/colony/internal/inplace"
	"github.com/colonyfleet/colony/protocol"
)

// writeFiles makes the directory of a container, and in it the files that its
// spec and its network mount. Files that are mounted already keep their inode.
func (e *Engine) writeFiles(key string, c engine.Container) error {
	if err := os.MkdirAll(e.dir(key, "files"), 0o711); err != nil {
		return err
	}
	if err := idfile.Save(e.dir(""), key, c.ID); err != nil {
		return err
	}
	if err := e.names.Write(key, c); err != nil {
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
		if err := inplace.Write(path, m.Content); err != nil {
			return err
		}
		if err := os.Chown(path, int(m.UID), int(m.GID)); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	return nil
}

// fillVolume makes the volume of a mount if there is none.
func (e *Engine) fillVolume(ctx context.Context, from volumes.Image, id engine.ID, m protocol.Mount) error {
	if err := e.volumes.Fill(ctx, id.Deployment, m, from); err != nil {
		return e.fault(err, protocol.CreateFailed, fmt.Sprintf("fill volume %s of %s", m.Source, id))
	}
	return nil
}

// Volumes returns the volumes on the node, sorted.
func (e *Engine) Volumes(context.Context) ([]engine.Volume, error) { return e.volumes.List() }

// VolumeBytes returns the size of a volume on disk, in bytes.
func (e *Engine) VolumeBytes(ctx context.Context, v engine.Volume) (uint64, error) {
	return e.volumes.Bytes(ctx, v)
}

// RemoveVolume removes a volume that no container mounts.
func (e *Engine) RemoveVolume(ctx context.Context, v engine.Volume) error {
	return e.volumes.Remove(ctx, v)
}

// Followed returns what Follow stored.
func (e *Engine) Followed(context.Context) (map[protocol.DeploymentName]protocol.Position, error) {
	return e.volumes.Followed.All()
}

// Follow stores a position that is later than the one that is stored.
func (e *Engine) Follow(_ context.Context, d protocol.DeploymentName, at protocol.Position) error {
	return e.volumes.Followed.Raise(d, at)
}

// Forget removes a position.
func (e *Engine) Forget(_ context.Context, d protocol.DeploymentName) error {
	return e.volumes.Followed.Remove(d)
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
	cleanup := context.WithoutCancel(ctx)
	ctx, done, err := e.lease(ctx)
	if err != nil {
		return err
	}
	defer done()
	var mounts []mount.Mount
	if err := leftover.Moved(func() (err error) {
		mounts, err = s.View(ctx, name, identity.ChainID(layers).String())
		return err
	}); err != nil {
		return err
	}
	err = mount.WithReadonlyTempMount(ctx, mounts, f)
	return errors.Join(err, s.Remove(cleanup, name))
}

// dir returns the directory of what we keep for a container.
func (e *Engine) dir(key string, parts ...string) string {
	return filepath.Join(append([]string{e.opts.StateDir, "containers", key}, parts...)...)
}
