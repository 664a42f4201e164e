// Package leftlocks removes the lock files that a killed git has left in a repository of this machine: until they are
// removed no other git changes what they are for. A lock that a living process may hold stays.
package leftlocks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// writersFile is what all COs lock that write into a repository, shared, while they do.
	writersFile = "colony-writers"
	// settled is how old a lock is that a git has left: a living one holds it for milliseconds.
	settled = 2 * time.Second
	// unseen is the same where processes of other containers are not seen.
	unseen = 2 * time.Minute
)

// local are the file systems that no other machine writes to.
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, zfs}

const zfs = 0x2fc12fc1

// Join says that this process writes into the repository at dir, until the file is closed in this process and in all
// that have inherited it. It is nil where dir is "" or cannot be written to.
func Join(dir string) *os.File {
	if dir == "" {
		return nil
	}
	f, err := lock(dir, syscall.LOCK_SH)
	if err != nil {
		return nil
	}
	return f
}

func lock(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, writersFile), os.O_CREATE|os.O_RDWR|syscall.O_NONBLOCK, 0o660)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Clear removes the locks that are left in the bare repository at dir, logs their paths, and reports whether there were some. The
// error names one that may be left as well, and says why that is not sure. Where dir is "" there is none.
func Clear(dir string, log *slog.Logger) (cleared bool, err error) {
	if dir == "" {
		return false, nil
	}
	removed, err := clearAll(dir)
	if len(removed) > 0 {
		log.Warn("a git that was killed had left locks in a repository: they are removed", "locks", removed)
	}
	return len(removed) > 0, err
}

func clearAll(dir string) (removed []string, err error) {
	if dir, err = filepath.EvalSymlinks(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	all, err := locks(dir)
	all = slices.DeleteFunc(all, func(l found) bool { return time.Since(l.ModTime()) < settled })
	if err != nil || len(all) == 0 {
		return nil, err
	}
	alone, err := lock(dir, syscall.LOCK_EX) // no other CO writes, or does what follows
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, stays(all[0], "a CO writes into the repository")
	}
	if err != nil {
		return nil, stays(all[0], err.Error())
	}
	defer func() { _ = alone.Close() }() // it gives the lock back
	if why := inUse(dir, all); why != "" {
		return nil, stays(all[0], why)
	}
	for _, l := range all {
		if why := l.unsure(); why != "" {
			return removed, stays(l, why)
		}
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		removed = append(removed, l.path)
	}
	return removed, nil
}

func stays(l found, why string) error {
	return fmt.Errorf("the lock %s is there for %s, and it is not sure that the git that made it has ended (%s): where none works there, remove it", l.path, time.Since(l.ModTime()).Round(time.Second), why)
}

// found is a lock file.
type found struct {
	path string
	fs.FileInfo
}

// locks returns the lock files of a repository, but for those among its objects that belong to no reference.
func locks(dir string) (all []found, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && filepath.Dir(path) == filepath.Join(dir, "objects") && d.Name() != "info" && d.Name() != "pack":
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(d.Name(), ".lock"):
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // its git has ended
			return nil
		}
		if err == nil {
			all = append(all, found{path, info})
		}
		return err
	})
	return all, err
}

// unsure is why a lock may be another one by now, or that of another user; "" if it is not.
func (l found) unsure() string {
	now, err := os.Lstat(l.path)
	switch {
	case err != nil:
		return err.Error()
	case !os.SameFile(now, l.FileInfo) || !now.ModTime().Equal(l.ModTime()):
		return "another one has taken its place"
	}
	if st, ok := now.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return "another user has made it"
	}
	if !everybody() && time.Since(l.ModTime()) < unseen {
		return fmt.Sprintf("other containers are not seen from here: it is removed after %s", unseen)
	}
	return ""
}

// everybody reports whether this process sees those of the whole machine.
func everybody() bool {
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO of the kernel
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == initial
}

// inUse is why a process may work in the repository at dir; "" if none does.
func inUse(dir string, all []found) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err.Error()
	}
	if !slices.Contains(local, int64(st.Type)) { //nolint:unconvert // its size depends on the machine
		return "other machines may write to its file system"
	}
	repo, err := os.Stat(dir)
	if err != nil {
		return err.Error()
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if e.Name()[0] < '1' || e.Name()[0] > '9' || e.Name() == fmt.Sprint(os.Getpid()) {
			continue
		}
		if process("/proc/"+e.Name()).worksIn(repo, dir, all) {
			return "process " + e.Name() + " may work there"
		}
	}
	return ""
}

// A process is one of this machine, by its folder in /proc. It may have another view of the file systems, so that its paths
// are followed from there, and files are compared by what they are.
type process string

// worksIn reports whether a process may work in the repository: it is there, has a file of it open, or is a git to which it is
// named. What cannot be read of a process belongs to another user: its locks belong to that user, too.
func (p process) worksIn(repo fs.FileInfo, dir string, all []found) bool {
	cwd := string(p) + "/cwd"
	if within(cwd, repo) {
		return true
	}
	open, _ := os.ReadDir(string(p) + "/fd") // of another user, or it has ended
	for _, f := range open {
		at := string(p) + "/fd/" + f.Name()
		if path, err := os.Readlink(at); err == nil && strings.HasPrefix(path, dir+"/") {
			return true
		}
		st, err := os.Stat(at)
		if err == nil && (os.SameFile(st, repo) || slices.ContainsFunc(all, func(l found) bool { return os.SameFile(st, l.FileInfo) })) {
			return true
		}
	}
	command, err := os.ReadFile(string(p) + "/comm")
	if err != nil || !strings.HasPrefix(string(command), "git") {
		return false
	}
	for at := cwd; ; at += "/.." { // as git looks for its repository
		if p.names(at+"/.git", repo) {
			return true
		}
		here, err := os.Stat(at)
		above, failed := os.Stat(at + "/..")
		if err != nil || failed != nil || os.SameFile(here, above) {
			break
		}
	}
	args, _ := os.ReadFile(string(p) + "/cmdline")      // of another user, or it has ended
	variables, _ := os.ReadFile(string(p) + "/environ") // likewise
	for text := range strings.SplitSeq(string(args)+"\x00"+string(variables), "\x00") {
		_, value, ok := strings.Cut(text, "=")
		if p.names(p.path(text), repo) || ok && p.names(p.path(value), repo) {
			return true
		}
	}
	return false
}

// path is where a path of the process is.
func (p process) path(name string) string {
	if filepath.IsAbs(name) {
		return string(p) + "/root" + name
	}
	return string(p) + "/cwd/" + name
}

// names reports whether a path is within the repository, or is a file that points into it.
func (p process) names(path string, repo fs.FileInfo) bool {
	const pointer, most = "gitdir: ", 4 << 10
	st, err := os.Stat(path)
	if err == nil && st.Mode().IsRegular() && st.Size() < most {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), pointer) {
			path = p.path(strings.TrimSpace(strings.TrimPrefix(string(b), pointer)))
		}
	}
	return within(path, repo)
}

// within reports whether a path is that of a directory, or below it.
func within(path string, dir fs.FileInfo) bool {
	for at := path; ; at += "/.." {
		here, err := os.Stat(at)
		if err != nil {
			return false
		}
		if os.SameFile(here, dir) {
			return true
		}
		if above, err := os.Stat(at + "/.."); err != nil || os.SameFile(here, above) {
			return false
		}
	}
}
