package shims

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// A Folder is the path of the folder of a task in the state directory of containerd.
type Folder string

// folder is the folder that a start does not get past, in what containerd says of it.
var folder = regexp.MustCompile(`mkdir (/\S+/io\.containerd\.runtime\.v2\.task/([^/\s]+)/([^/\s]+)): file exists`)

// FolderOf returns the folder that keeps a container of a namespace from being started, by what
// containerd said of it; "": that is not the reason.
func FolderOf(why error, namespace, container string) Folder {
	m := folder.FindStringSubmatch(why.Error())
	if m == nil || m[2] != namespace || m[3] != container {
		return ""
	}
	return Folder(m[1])
}

// beingRemoved returns the path of the folder while containerd removes it: containerd first renames
// it to a name with a dot. If containerd is killed then, that folder stays, and each later removal
// of a task of this container fails, since the name exists.
func (f Folder) beingRemoved() string {
	return filepath.Join(filepath.Dir(string(f)), "."+filepath.Base(string(f)))
}

// Outlived reports whether the folder, or what keeps containerd from removing it, was there before
// the present daemon listened on its socket.
func (f Folder) Outlived(socket string) bool {
	daemon, err := os.Stat(socket)
	if err != nil {
		return false
	}
	for _, path := range []string{string(f), f.beingRemoved()} {
		if left, err := os.Stat(path); err == nil && left.ModTime().Before(daemon.ModTime()) {
			return true
		}
	}
	return false
}

// Remove removes the folder, in which nothing is mounted, and what belongs to it.
func (f Folder) Remove() error {
	work, err := os.Readlink(filepath.Join(string(f), "work"))
	if err == nil && filepath.Base(work) == filepath.Base(string(f)) && filepath.IsAbs(work) {
		err = os.RemoveAll(work)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err := errors.Join(err, os.RemoveAll(string(f)), os.RemoveAll(f.beingRemoved())); err != nil {
		return fmt.Errorf("remove what containerd left of a task: %w", err)
	}
	return nil
}
