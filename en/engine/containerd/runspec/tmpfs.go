package runspec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	cfs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// tmpfsOptions returns the options of the mount of a tmpfs. Without a mode in the spec it has, as
// in Docker, the mode of the directory in the image, or 1777 if the image has none. But a read-only
// one may be written by no user: programs such as sudo read no files in a directory whose mode says
// otherwise.
func tmpfsOptions(m protocol.Mount) []string {
	options := []string{"nosuid", "nodev"}
	mode := m.Mode
	if mode == 0 && m.ReadOnly {
		mode = 0o755
	}
	if mode != 0 {
		options = append(options, "mode="+strconv.FormatUint(uint64(mode), 8))
	}
	if m.NoExec {
		options = append(options, "noexec")
	}
	if m.UID != 0 || m.GID != 0 {
		options = append(options, fmt.Sprintf("uid=%d", m.UID), fmt.Sprintf("gid=%d", m.GID))
	}
	if m.Size > 0 {
		options = append(options, "size="+strconv.FormatUint(m.Size, 10))
	}
	if m.ReadOnly {
		options = append(options, "ro")
	}
	return options
}

// SetModes gives each tmpfs of a task that was made and not started the mode that its container
// says: runc, before release 1.2, gives it the mode of the directory that the image has there.
func SetModes(c engine.Container, t client.Task) error {
	root := filepath.Join("/proc", strconv.FormatUint(uint64(t.Pid()), 10), "root")
	for _, m := range c.Spec.Mounts {
		if m.Kind != protocol.MountTmpfs || m.Mode == 0 || m.ReadOnly { // nothing comes into one that is read-only
			continue
		}
		if err := setMode(root, m); err != nil {
			return engine.Errorf(protocol.CreateFailed, "container %s: set the mode %o of the tmpfs at %s: %w", c.ID, m.Mode, m.Target, err)
		}
	}
	return nil
}

func setMode(root string, m protocol.Mount) error {
	fd, err := openIn(root, m.Target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if int64(fs.Type) != unix.TMPFS_MAGIC {
		return errors.New("something else was mounted: it was changed meanwhile")
	}
	return unix.Fchmod(fd, m.Mode)
}

// openIn opens a directory below a root. No symbolic link leads out of the root, even if other
// processes change links meanwhile. Kernels before 5.6 cannot do that: there the path is resolved
// first.
func openIn(root, target string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the root directory: %w", err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, strings.TrimPrefix(target, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if !errors.Is(err, unix.ENOSYS) {
		return fd, os.NewSyscallError("openat2", err)
	}
	found, err := cfs.RootPath(root, target)
	if err != nil {
		return -1, err
	}
	fd, err = unix.Open(found, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return fd, os.NewSyscallError("open", err)
}
