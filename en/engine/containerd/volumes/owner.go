package volumes

import (
	"io/fs"
	"os"
	"path/filepath"

	cfs "github.com/containerd/continuity/fs"
	"github.com/moby/sys/user"
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

// userOf returns the numbers of a user, and of the group, by the names of the image whose files
// are at root. One that the image does not know is root's here: no container of it starts.
func userOf(root, name string) (uid, gid int) {
	found, err := user.GetExecUserPath(name, nil, regular(root, "/etc/passwd"), regular(root, "/etc/group"))
	if err != nil {
		return 0, 0
	}
	return found.Uid, found.Gid
}

// regular returns where a file of the image is, and "" where it is none: a pipe waits for who
// writes.
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
