package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
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
