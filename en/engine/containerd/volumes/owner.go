package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	cfs "github.com/containerd/continuity/fs"
	"github.com/moby/sys/user"

	"github.com/colonyfleet/colony/protocol"
)

// own gives a directory, and all in it, an owner. No container has it yet; links are not followed.
func own(dir string, uid, gid int) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}

// unsettled is a file beside a volume that has no owner yet, as all containers so far only read it.
func unsettled(path string) string {
	return filepath.Join(filepath.Dir(path), ".unsettled-"+filepath.Base(path)) // no volume begins with a dot
}

// settle gives a volume that only readers mounted so far to the first container that can write to it:
// its owner becomes the owner of that path in the image, else the user of the container.
func settle(ctx context.Context, path string, m protocol.Mount, image Image) error {
	open := unsettled(path)
	if _, err := os.Lstat(open); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	uid, gid := int(m.UID), int(m.GID)
	if uid == 0 && gid == 0 && !m.NoCopy {
		if err := image.Files(ctx, func(root string) error {
			uid, gid = ownerAt(root, m.Target, image.User)
			return nil
		}); err != nil {
			return err
		}
	}
	if err := own(path, uid, gid); err != nil {
		return fmt.Errorf("give the volume its owner: %w", err)
	}
	return os.Remove(open)
}

// ownerAt returns whom a directory of the image belongs to, and where it has none there the user
// with a name.
func ownerAt(root, target, name string) (uid, gid int) {
	if at, err := cfs.RootPath(root, target); err == nil {
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				return int(st.Uid), int(st.Gid)
			}
		}
	}
	return userOf(root, name)
}

// userOf returns the numbers of a user, and of the group, by the names of the image whose files
// are at root. One that the image does not know is root's here: no container of it starts.
func userOf(root, name string) (uid, gid int) {
	found, err := user.GetExecUserPath(name, nil, regular(root, "/etc/passwd"), regular(root, "/etc/group"))
	if err != nil {
		return 0, 0
	}
	return found.Uid, found.Gid
}

// regular returns where a file of the image is, and "" where it is none: opening a pipe would wait
// for its writer.
func regular(root, file string) string {
	path, err := cfs.RootPath(root, file)
	if err != nil {
		return ""
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}
