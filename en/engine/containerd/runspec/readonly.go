package runspec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	cfs "github.com/containerd/continuity/fs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/internal/hostkernel"
	"github.com/colonyfleet/colony/protocol"
)

// ReadOnlyOption returns the mount option that makes a bind and all that is mounted
// below it read-only, or the one for the bind alone where the kernel has no such.
func ReadOnlyOption() string {
	if hostkernel.RecursiveReadOnly() {
		return "rro"
	}
	return "ro"
}

// CheckReadOnly looks at the mounts of a task that was made and not started. It refuses a read-only
// bind mount below which something is writable: a kernel or runtime without recursive read-only
// mounts makes only the top one read-only, without an error.
func CheckReadOnly(ctx context.Context, c client.Container, t client.Task, id engine.ID) error {
	spec, err := c.Spec(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(spec.Mounts, readOnlyBind) {
		return nil
	}
	pid := strconv.FormatUint(uint64(t.Pid()), 10)
	f, err := os.Open(filepath.Join("/proc", pid, "mountinfo"))
	if err != nil {
		return fmt.Errorf("check that its read-only mounts are: %w", err)
	}
	defer f.Close()
	mounted, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return fmt.Errorf("check that its read-only mounts are: %w", err)
	}
	of := map[string]specs.Mount{} // by the path in the container, symbolic links followed
	root := filepath.Join("/proc", pid, "root")
	for _, m := range spec.Mounts {
		target, err := cfs.RootPath(root, m.Destination)
		if err != nil {
			return fmt.Errorf("check that its mount at %s is read-only: %w", m.Destination, err)
		}
		of[filepath.Join("/", strings.TrimPrefix(target, root))] = m
	}
	for _, m := range mounted {
		if owner, ok := owner(of, m.Mountpoint); ok && readOnlyBind(owner) && !slices.Contains(strings.Split(m.Options, ","), "ro") {
			return engine.Errorf(protocol.Incompatible, "container %s: %s is to be read-only at %s, but %s would be writable: "+
				"this node's kernel (Linux before 5.12) or its runc (before 1.1) makes no recursive read-only mounts; "+
				"upgrade it, or mount only the directories that are needed", id, owner.Source, owner.Destination, m.Mountpoint)
		}
	}
	return nil
}

func readOnlyBind(m specs.Mount) bool {
	return m.Type == "bind" && (slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro"))
}

// owner returns the innermost of the mounts, by path, that path lies in.
func owner(mounts map[string]specs.Mount, path string) (specs.Mount, bool) {
	for {
		if m, ok := mounts[path]; ok {
			return m, true
		}
		if path == "/" {
			return specs.Mount{}, false
		}
		path = filepath.Dir(path)
	}
}
