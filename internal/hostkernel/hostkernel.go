// Package hostkernel reports what this machine's kernel can do for containers.
package hostkernel

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RecursiveReadOnly reports whether a mount can be made read-only with all that is
// mounted below it, by mount_setattr(2): since Linux 5.12.
func RecursiveReadOnly() bool {
	// It changes nothing: the descriptor is none.
	return !errors.Is(unix.MountSetattr(-1, "", 0, &unix.MountAttr{}), unix.ENOSYS)
}

// CgroupV2 reports whether version 2 of control groups is mounted in the usual place.
func CgroupV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// BoundsSwap reports whether the swap of a control group can be bounded.
func BoundsSwap() bool {
	for _, pattern := range []string{"/sys/fs/cgroup/*/memory.swap.max", "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// Controllers returns the names of the controllers of control groups that are
// enabled.
func Controllers() ([]string, error) {
	b, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		// Newest kernels have cgroup v2 only, and not this file.
		b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return strings.Fields(string(b)), err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		// subsys_name hierarchy num_cgroups enabled
		if f := strings.Fields(line); len(f) == 4 && f[3] == "1" {
			out = append(out, f[0])
		}
	}
	return out, nil
}

// MemoryBytes returns how much memory the machine has.
func MemoryBytes() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, err
	}
	return uint64(info.Totalram) * uint64(info.Unit), nil
}

// OOMKills returns how many processes of a control group the kernel killed because memory
// was used up, and whether it knows: not so of a group that is not there. Group is its
// path, which begins with a slash.
func OOMKills(group string) (kills uint64, known bool) {
	for _, path := range []string{"/sys/fs/cgroup" + group + "/memory.events", "/sys/fs/cgroup/memory" + group + "/memory.oom_control"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
				kills, err = strconv.ParseUint(strings.TrimSpace(n), 10, 64)
				return kills, err == nil
			}
		}
	}
	return 0, false
}
