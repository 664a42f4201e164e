package privatepg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/colonyfleet/colony/internal/filelock"
)

// findUser picks the user that runs the server: PostgreSQL refuses to be root.
func (c *Cluster) findUser(context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	names := []string{"postgres", "nobody"}
	if c.opts.User != "" {
		names = []string{c.opts.User}
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
		c.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return nil
	}
	return fmt.Errorf("PostgreSQL does not run as root, and there is no user %s: create one, or do not run as root",
		strings.Join(names, " or "))
}

// prepareDirs creates the directories, gives them to the server's user and removes
// the lock.
func (c *Cluster) prepareDirs(context.Context) error {
	c.socket = c.socketDir()
	for _, dir := range []string{c.opts.Dir, c.socket} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create directory: %w", err)
		}
		if err := c.own(dir); err != nil {
			return err
		}
	}
	if err := c.checkWay(); err != nil {
		return err
	}
	lock, err := filelock.Acquire(filepath.Join(c.opts.Dir, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return errors.New("another program runs this cluster: stop it, or choose another directory")
	}
	c.lock = lock
	return err
}

// own gives a directory to the server's user alone. A directory of another user, under a name that
// could be foreseen, is refused.
func (c *Cluster) own(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at directory: %w", err)
	}
	uid := uint32(os.Geteuid())
	if c.owner != nil {
		uid = c.owner.Uid
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || (st.Uid != uid && st.Uid != uint32(os.Geteuid())) {
		return fmt.Errorf("%s is not a directory of this user's: remove it", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("restrict directory: %w", err)
	}
	if c.owner != nil {
		if err := os.Chown(dir, int(c.owner.Uid), int(c.owner.Gid)); err != nil {
			return fmt.Errorf("hand over directory: %w", err)
		}
	}
	return nil
}

// checkWay makes sure that the server's user can reach Dir, because the server's
// own message about it misleads.
func (c *Cluster) checkWay() error {
	if c.owner == nil {
		return nil
	}
	for dir := filepath.Dir(c.opts.Dir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("look at directory: %w", err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		mine := ok && st.Uid == c.owner.Uid
		if !mine && info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the server's user (uid %d) may not enter %s: choose a directory elsewhere, or run: chmod o+x %s",
				c.owner.Uid, dir, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// findPrograms finds initdb and postgres of the version that made the data.
func (c *Cluster) findPrograms(context.Context) error {
	if c.opts.BinDir != "" {
		c.bin = c.opts.BinDir
		return c.checkPrograms()
	}
	pattern := "*"
	version, err := os.ReadFile(filepath.Join(c.data, "PG_VERSION"))
	if err == nil {
		pattern = strings.TrimSpace(string(version))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read version of the data: %w", err)
	}
	c.bin, err = BinDir(pattern)
	if err != nil {
		return err
	}
	return c.checkPrograms()
}

func (c *Cluster) checkPrograms() error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(c.bin, name)); err != nil {
			return fmt.Errorf("no %s in %s: run scripts/setup to install PostgreSQL", name, c.bin)
		}
	}
	return nil
}

// BinDir returns the directory of the server programs of a major version, or of
// the newest for "*". Where there are none it says how to install them.
func BinDir(version string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/" + version + "/bin/postgres")
	if err != nil {
		return "", fmt.Errorf("find PostgreSQL: %w", err)
	}
	major := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // not a number: last
		return n
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) })), nil
	}
	if path, err := exec.LookPath("postgres"); err == nil && version == "*" {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	if version != "*" {
		return "", fmt.Errorf("the data was made by PostgreSQL %s, which is not installed: install postgresql-%s", version, version)
	}
	return "", errors.New("no PostgreSQL server programs in /usr/lib/postgresql/*/bin nor in PATH: run scripts/setup to install them")
}

// initialise makes the data directory, where there is none, under another name
// and renames it when it is complete.
func (c *Cluster) initialise(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.data, "PG_VERSION")); err == nil {
		return nil
	}
	fresh := c.data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove unfinished data: %w", err)
	}
	args := []string{
		"--pgdata=" + fresh, "--username=" + superuser, "--auth=trust", "--encoding=UTF8",
		"--no-locale", "--data-checksums", "--no-instructions",
	}
	if c.opts.NoFsync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "initdb"), args...)
	cmd.Dir = c.opts.Dir
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner, Setpgid: true}
	c.log.Info("creating postgres cluster", "dir", c.opts.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := os.RemoveAll(c.data); err != nil { // empty, or without PG_VERSION: never in use
		return fmt.Errorf("remove unusable data: %w", err)
	}
	if err := os.Rename(fresh, c.data); err != nil {
		return fmt.Errorf("put data in place: %w", err)
	}
	return syncDir(c.opts.Dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// environment is what the server's programs get: no PG* variable of the caller's.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}
