package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	cfs "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/seed"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/inplace"
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
	if err := inplace.Write(e.dir(key, "id.json"), id); err != nil {
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

// fillVolume makes a volume if there is none, and brings the files of this version. As
// with Docker, a new one begins with what the image has at the target, owner and mode
// included, unless it says otherwise; of one with files it has the owner and mode alone.
func (e *Engine) fillVolume(ctx context.Context, img client.Image, key string, id engine.ID, m protocol.Mount) error {
	path := e.volumeDir(id.Deployment, m.Source)
	unlock, err := e.locks.Lock(ctx, "volume "+path)
	if err != nil {
		return err
	}
	defer unlock()
	record := filepath.Join(filepath.Dir(path), ".files-"+m.Source) // no volume begins with a dot: see mounts
	if _, err := os.Stat(path); err != nil {
		// What was delivered to a volume that was removed says nothing of this one.
		err := removeEmpty(record)
		if err == nil {
			err = e.newVolume(ctx, img, key, path, m)
		}
		if err != nil {
			return e.fault(err, protocol.CreateFailed, fmt.Sprintf("fill volume %s of %s", m.Source, id))
		}
	}
	if len(m.Files) == 0 {
		return nil
	}
	if err := seed.Apply(path, record, m.Files); err != nil {
		return e.fault(err, protocol.CreateFailed, fmt.Sprintf("fill volume %s of %s", m.Source, id))
	}
	return nil
}

// newVolume makes a volume.
func (e *Engine) newVolume(ctx context.Context, img client.Image, key, path string, m protocol.Mount) error {
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
	fill := func(root string) error {
		from, err := cfs.RootPath(root, m.Target)
		if err != nil {
			return err
		}
		info, err := os.Stat(from)
		if err != nil || !info.IsDir() {
			return nil // the image has nothing there
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
		if err := e.withRootFS(ctx, img, key+"-view", fill); err != nil {
			return err
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
	mounts, err := s.View(ctx, name, identity.ChainID(layers).String())
	if err != nil {
		return err
	}
	err = mount.WithReadonlyTempMount(ctx, mounts, f)
	return errors.Join(err, s.Remove(cleanup, name))
}
