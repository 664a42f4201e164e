package runspec

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/client"
	cfs "github.com/containerd/continuity/fs"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// find looks a part of a volume up. A symbolic link that leads out of the volume is an error.
func find(volume, subpath string) (fs.FileInfo, error) {
	root, err := os.OpenRoot(volume)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Stat(subpath)
}

// checkSubpath refuses a mount of a part of a volume that is not there. As with Docker, only the
// containers that mount the volume create directories in it.
func checkSubpath(c engine.Container, m protocol.Mount, around Surroundings) error {
	if m.Subpath == "" {
		return nil
	}
	if _, err := find(around.Volume(m.Source), m.Subpath); err != nil {
		return engine.Errorf(protocol.CreateFailed, "container %s: the subpath %q of volume %s cannot be mounted at %s: "+
			"let a service that completes before this one starts make it: %w", c.ID, m.Subpath, m.Source, m.Target, err)
	}
	return nil
}

// CheckSubpaths looks at the mounts of a task that was made and not started. It refuses the task if
// a mount of a part of a volume leads elsewhere: between the check and the mount, a container that
// can write to the volume may have put a symbolic link there that leads to files of the node.
func CheckSubpaths(c engine.Container, t client.Task, volume func(name string) string) error {
	root := filepath.Join("/proc", strconv.FormatUint(uint64(t.Pid()), 10), "root")
	for _, m := range c.Spec.Mounts {
		if m.Kind != protocol.MountVolume || m.Subpath == "" {
			continue
		}
		if err := checkMounted(root, volume(m.Source), m); err != nil {
			return engine.Errorf(protocol.CreateFailed, "container %s: the subpath %q of volume %s at %s: %w", c.ID, m.Subpath, m.Source, m.Target, err)
		}
	}
	return nil
}

// checkMounted wants the mount of a part of a volume, below the root directory of a container,
// to be of that part.
func checkMounted(root, volume string, m protocol.Mount) error {
	want, err := find(volume, m.Subpath)
	if err != nil {
		return err
	}
	target, err := cfs.RootPath(root, m.Target)
	if err != nil {
		return err
	}
	mounted, err := os.Lstat(target)
	if err != nil {
		return err
	}
	if !os.SameFile(want, mounted) {
		return fmt.Errorf("something else was mounted: it was changed meanwhile")
	}
	return nil
}
