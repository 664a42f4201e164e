package privatecontainerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endOrphans stops the daemons of dir whose starters have ended. The caller holds the lock, so no
// other starter wants them.
func endOrphans(ctx context.Context, dir string) error {
	orphans, err := processes(func(pid int) bool { return serves(pid, dir) })
	for _, pid := range orphans {
		err = errors.Join(err, end(ctx, pid, func() bool { return serves(pid, dir) }, 5*time.Second))
	}
	return err
}

// serves reports whether a process is a daemon of dir: a containerd that works in it, which
// no shim and no other daemon does. That is known from the moment at which the program
// takes the place of the process that started it, when its arguments cannot be read yet.
func serves(pid int, dir string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil || cwd != dir {
		return false
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	return err == nil && strings.HasPrefix(filepath.Base(exe), "containerd")
}

// end asks a process to stop, kills it after grace, and waits until alive says
// that it has ended.
func end(ctx context.Context, pid int, alive func() bool, grace time.Duration) error {
	if !alive() {
		return nil
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	began, killed := time.Now(), false
	if grace > 0 {
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may end meanwhile
	}
	for alive() {
		if !killed && time.Since(began) >= grace {
			killed = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end process %d: %w", pid, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

// commandLine returns the arguments of a process, nil if there is none.
func commandLine(pid int) []string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// Purge ends the containers that a daemon of dir left running, and unmounts
// everything below dir. The daemon must not run. Files stay.
func Purge(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	shims, err := processes(func(pid int) bool {
		args := commandLine(pid)
		i := slices.Index(args, "-address")
		return i > 0 && i+1 < len(args) && args[i+1] == Socket(dir) && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim")
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, shim := range shims {
		children, err := processes(func(pid int) bool { return parent(pid) == shim })
		errs = append(errs, err)
		for _, pid := range append(children, shim) {
			// A killed child has ended as soon as it is a zombie: its command line
			// is empty then.
			errs = append(errs, end(ctx, pid, func() bool { return commandLine(pid) != nil }, 0))
		}
	}
	return errors.Join(append(errs, Unmount(dir))...)
}

func processes(match func(pid int) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && match(pid) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// parent returns the parent of a process, 0 if it has ended.
func parent(pid int) int {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// pid (name) state ppid …; a name may hold anything, so count from its end.
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 2 {
		return 0
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return 0
	}
	return ppid
}

// Unmount unmounts everything below dir, the innermost first.
func Unmount(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			point := unescape.Replace(f[4])
			if strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	slices.Reverse(points)
	var errs []error
	for _, p := range points {
		if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// unescape turns the octal escapes of mountinfo back.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
