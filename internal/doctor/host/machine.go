package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/hostclock"
	"github.com/colonyfleet/colony/internal/hostkernel"
)

// Clock checks the machine's clock: against the newest file of a directory of state and
// against the program, which are not of the future, and whether something sets it.
func Clock(dir string) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		floor, of := newest(dir)
		if program, err := os.Executable(); err == nil {
			if st, err := os.Stat(program); err == nil && st.ModTime().After(floor) {
				floor, of = st.ModTime(), program
			}
		}
		return judgeClock(time.Now(), floor, of, hostclock.Synchronised)
	}
}

// newest returns the time of the youngest file of a directory.
func newest(dir string) (at time.Time, path string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return at, ""
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.ModTime().After(at) {
			at, path = st.ModTime(), filepath.Join(dir, e.Name())
		}
	}
	return at, path
}

const setClock = "set the clock, and let NTP keep it: systemctl enable --now systemd-timesyncd (or chrony), with a time server that the site reaches"

func judgeClock(now, floor time.Time, of string, synchronised func() (bool, error)) []doctor.Finding {
	if late := floor.Sub(now); late > time.Minute {
		return []doctor.Finding{doctor.Failf(setClock, "the clock says %s, and %s is %s younger", now.UTC().Format(time.RFC3339), of, late.Round(time.Minute))}
	}
	ok, err := synchronised()
	switch {
	case err != nil:
		return []doctor.Finding{doctor.Warnf(setClock, "the kernel does not say whether the clock is synchronised: %v", err)}
	case !ok:
		return []doctor.Finding{doctor.Warnf(setClock, "the clock is not synchronised; it says %s", now.UTC().Format(time.RFC3339))}
	}
	return []doctor.Finding{doctor.Okf("the clock is synchronised")}
}

// Permissions checks that a directory of state belongs to the user that runs Colony, that no other
// user can write there, and that no other user can read the secrets; "" is none.
func Permissions(dir string, secrets ...string) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		out := []doctor.Finding{permissions(dir)}
		for _, path := range secrets {
			if path != "" {
				out = append(out, secret(path))
			}
		}
		return out
	}
}

func permissions(dir string) doctor.Finding {
	st, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return doctor.Okf("%s does not exist yet", dir)
	}
	if err != nil {
		return doctor.Failf("run it as the user that Colony runs as, or as root", "%s: %v", dir, err)
	}
	var sys unix.Stat_t
	if err := unix.Stat(dir, &sys); err == nil && int(sys.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return doctor.Failf(fmt.Sprintf("run it as that user, or chown -R the directory to user %d", os.Geteuid()), "%s belongs to user %d, this program runs as user %d", dir, sys.Uid, os.Geteuid())
	}
	if st.Mode().Perm()&0o022 != 0 {
		return doctor.Failf("chmod go-w "+dir, "%s can be written by others (mode %04o): who writes there decides what runs", dir, st.Mode().Perm())
	}
	return doctor.Okf("%s has mode %04o", dir, st.Mode().Perm())
}

func secret(path string) doctor.Finding {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return doctor.Failf("make the file, or correct its path in the configuration", "%s: %v", path, err)
	case st.Mode().Perm()&0o077 != 0:
		return doctor.Warnf("chmod 600 "+path, "%s holds a secret and can be read by others (mode %04o)", path, st.Mode().Perm())
	}
	return doctor.Okf("%s can be read by its owner alone", path)
}

// Kernel checks the release of the kernel; with containers also what containers need.
func Kernel(containers bool) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return []doctor.Finding{doctor.Failf("use Linux", "the kernel's release cannot be asked for: %v", err)}
		}
		out := []doctor.Finding{judgeKernel(unix.ByteSliceToString(u.Release[:]))}
		if !containers {
			return out
		}
		controllers, err := hostkernel.Controllers()
		return append(out, judgeGroups(hostkernel.CgroupV2(), controllers, err), mounts(hostkernel.RecursiveReadOnly()))
	}
}

func judgeKernel(release string) doctor.Finding {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return doctor.Warnf("use Linux 5.10 or later", "kernel %s: the release is not understood", release)
	}
	if major < 5 || major == 5 && minor < 10 {
		return doctor.Warnf("use Linux 5.10 or later: earlier ones are not tested", "kernel %s", release)
	}
	return doctor.Okf("kernel %s", release)
}

func judgeGroups(v2 bool, controllers []string, err error) doctor.Finding {
	if err != nil {
		return doctor.Failf("mount control groups: boot with systemd.unified_cgroup_hierarchy=1", "the controllers of control groups cannot be asked for: %v", err)
	}
	var missing []string
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !strings.Contains(" "+strings.Join(controllers, " ")+" ", " "+want+" ") {
			missing = append(missing, want)
		}
	}
	switch {
	case len(missing) > 0:
		return doctor.Failf("enable them on the kernel's command line, such as cgroup_enable=memory cgroup_memory=1, and restart", "control groups lack %s: limits of containers do not hold", strings.Join(missing, ", "))
	case !v2:
		return doctor.Warnf("boot with systemd.unified_cgroup_hierarchy=1", "control groups are of version 1: an application that runs out of memory is seen as a mere exit")
	}
	return doctor.Okf("control groups version 2 with cpu, memory and pids")
}

func mounts(recursive bool) doctor.Finding {
	if !recursive {
		return doctor.Warnf("use Linux 5.12 or later", "the kernel cannot make a mount and all below it read-only: such mounts are refused or read-only at the top only")
	}
	return doctor.Okf("mounts can be made read-only with all below them")
}
