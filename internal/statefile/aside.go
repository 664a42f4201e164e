package statefile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/internal/disk"
)

// asideMark stands between the name of a file that was set aside and its number.
const asideMark = ".damaged-"

// IsAside reports whether a file name is one under which a damaged file was set aside.
func IsAside(name string) bool { return strings.Contains(name, asideMark) }

// keepAside is how many files that were set aside a directory keeps. The oldest go.
const keepAside = 16

// AsideName returns the name under which the file name is to be set aside in a
// directory that holds names, and those of names that must go so that there are no
// more than keep.
func AsideName(names []string, name string, keep int) (aside string, drop []string) {
	type numbered struct {
		name string
		n    uint64
	}
	var old []numbered
	next := uint64(1)
	for _, have := range names {
		at := strings.LastIndex(have, asideMark)
		if at < 0 {
			continue
		}
		if n, err := strconv.ParseUint(have[at+len(asideMark):], 10, 63); err == nil {
			old = append(old, numbered{have, n})
			next = max(next, n+1)
		}
	}
	slices.SortFunc(old, func(a, b numbered) int { return cmp.Compare(a.n, b.n) })
	for ; len(old) >= keep; old = old[1:] {
		drop = append(drop, old[0].name)
	}
	return name + asideMark + strconv.FormatUint(next, 10), drop
}

// SetAside renames a file and returns its new path: for files that are kept by other
// rules than a File, such as keys in a form that other tools read.
func SetAside(d disk.FS, path string) (aside string, err error) { return asideBy(d, d.Rename, path) }

// LinkAside gives a file a second name, under which it stays when it is replaced,
// and returns the path. What is no file is renamed: a directory has one name, and is not replaced by a file.
func LinkAside(d disk.FS, path string) (aside string, err error) {
	if aside, is, err := SetAsideIrregular(d, path); is {
		return aside, err
	}
	return asideBy(d, d.Link, path)
}

// SetAsideIrregular is SetAside for what is no file and stands in the place of one; is says that there is such a thing.
func SetAsideIrregular(d disk.FS, path string) (aside string, is bool, err error) {
	if st, err := d.Stat(path); err != nil || st.Mode().IsRegular() {
		return "", false, nil
	}
	aside, err = SetAside(d, path)
	return aside, true, err
}

// Open is Open of a disk.FS for a file that can be made anew: what is at its path and cannot be read, or is no file, is set
// aside.
func Open(d disk.FS, path string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := d.Open(path, flag, perm)
	if !disk.Unreadable(err) {
		return f, err
	}
	if _, failed := SetAside(d, path); failed != nil {
		return nil, errors.Join(err, failed)
	}
	return d.Open(path, flag, perm)
}

// Lock is Lock of a disk.FS. What is no file, and stands in the place of one, is set aside.
func Lock(d disk.FS, path string) (io.Closer, error) {
	if _, _, err := SetAsideIrregular(d, path); err != nil {
		return nil, err
	}
	return d.Lock(path)
}

// asideBy has do put the file of path under another name.
func asideBy(d disk.FS, do func(from, to string) error, path string) (aside string, err error) {
	dir, name := filepath.Split(path)
	entries, err := d.List(filepath.Clean(dir))
	if err != nil {
		return "", fmt.Errorf("set aside %s: %w", path, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	to, drop := AsideName(names, name, keepAside)
	for _, old := range drop {
		// Failing to remove an old copy must not keep the damaged file under its name.
		_ = d.Remove(filepath.Join(dir, old))
	}
	to = filepath.Join(dir, to)
	if err := do(path, to); err != nil {
		return "", fmt.Errorf("set aside %s: %w", path, err)
	}
	return to, nil
}
