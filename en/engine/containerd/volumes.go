package containerd

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
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// withImageVolumes returns the mounts of c and, after them, a volume for each path
// that its image declares as one and that c mounts nothing at. As with Docker, what
// a program writes there is data: it is kept over updates, and writable under a
// read-only root file system.
func withImageVolumes(c engine.Container, config ocispec.ImageConfig) ([]protocol.Mount, error) {
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

// imageVolume names the volume of an image's path. Containers of one image have
// volumes of their own. No volume of a Compose file has an @ in its name.
func imageVolume(id engine.ID, target string) string {
	sum := sha256.Sum256([]byte(id.Component + "\x00" + id.Name + "\x00" + target))
	front := strings.Trim(unfit.ReplaceAllString(id.Name+target, "-"), "-")
	return strings.Trim(front[:min(len(front), 48)], "-") + "@" + hex.EncodeToString(sum[:6])
}

// Volumes returns the volumes on the node, sorted.
func (e *Engine) Volumes(context.Context) ([]engine.Volume, error) {
	root := filepath.Join(e.opts.StateDir, "volumes")
	deployments, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var out []engine.Volume
	for _, d := range deployments {
		names, err := os.ReadDir(filepath.Join(root, d.Name()))
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

// VolumeBytes returns the size of a volume on disk, in bytes.
func (e *Engine) VolumeBytes(ctx context.Context, v engine.Volume) (uint64, error) {
	path, err := e.volumePath(v)
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

// RemoveVolume removes a volume that no container mounts.
func (e *Engine) RemoveVolume(ctx context.Context, v engine.Volume) error {
	path, err := e.volumePath(v)
	if err != nil {
		return err
	}
	unlock, err := e.locks.Lock(ctx, "volume "+path)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove volume %s: %w", v, err)
	}
	_ = os.Remove(filepath.Dir(path)) // it fails while there are others
	return nil
}

// volumePath is the directory of a volume whose name came from outside.
func (e *Engine) volumePath(v engine.Volume) (string, error) {
	if _, err := protocol.ParseDeploymentName(string(v.Deployment)); err != nil {
		return "", err
	}
	if v.Name == "" || strings.HasPrefix(v.Name, ".") || strings.ContainsAny(v.Name, "/\x00") {
		return "", protocol.Errorf(protocol.Invalid, "volume name %q: want one without / that does not begin with a dot", v.Name)
	}
	return e.volumeDir(v.Deployment, v.Name), nil
}
