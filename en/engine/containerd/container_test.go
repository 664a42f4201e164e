package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/hostkernel"
	"github.com/colonyfleet/colony/protocol"
)

// limit reads a container's cgroup file, of version 1 or 2.
func limit(t *testing.T, r *rig, k, v1, v2 string) string {
	t.Helper()
	controller, _, _ := strings.Cut(v1, ".")
	for _, path := range []string{
		filepath.Join("/sys/fs/cgroup", controller, r.cgroup(), k, v1), filepath.Join("/sys/fs/cgroup", r.cgroup(), k, v2),
	} {
		if b, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	t.Fatalf("neither %s nor %s of %s is there", v1, v2, k)
	return ""
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.Limits = protocol.Limits{NanoCPUs: 250_000_000, MemoryBytes: 64 << 20, Pids: 40}
	r.run(t, c)
	k := marks.Key(c.ID)
	if got := limit(t, r, k, "memory.limit_in_bytes", "memory.max"); got != "67108864" {
		t.Errorf("memory limit %s", got)
	}
	if got := limit(t, r, k, "pids.max", "pids.max"); got != "40" {
		t.Errorf("process limit %s", got)
	}
	if got := limit(t, r, k, "cpu.cfs_quota_us", "cpu.max"); got != "25000" && got != "25000 100000" {
		t.Errorf("processor quota %s", got)
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	r := setup(t)
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "note"), []byte("from the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := r.container("wait")
	c.Spec.ReadOnly = true
	c.Spec.Mounts = []protocol.Mount{
		{Kind: protocol.MountVolume, Source: "db", Target: "/data"},
		{Kind: protocol.MountBind, Source: shared, Target: "/shared", ReadOnly: true},
		{Kind: protocol.MountTmpfs, Target: "/scratch", Size: 1 << 20},
		{Kind: protocol.MountFile, Target: "/etc/app/config.ini", Content: []byte("answer=42\n"), Mode: 0o400},
	}
	r.run(t, c)
	if got := r.output(t, c, "cat", "/data/seed", "/shared/note", "/etc/app/config.ini"); got != "seed\nfrom the nodeanswer=42\n" {
		t.Errorf("mounted files hold %q", got)
	}
	info, err := os.Stat(filepath.Join(r.dir(marks.Key(c.ID)), "files", "3"))
	if err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("mode of the file: %v %v", info, err)
	}
	r.output(t, c, "write", "/data/kept", "over updates")
	r.output(t, c, "write", "/scratch/x", "x")
	for _, path := range []string{"/root-is-read-only", "/shared/note", "/etc/app/config.ini"} {
		if res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "write", path, "x"}); err != nil || res.ExitCode == 0 {
			t.Errorf("%s could be written (%v)", path, err)
		}
	}
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	c.Digest, c.Spec.ReadOnly = "sha256:2", false
	r.run(t, c)
	if got := r.output(t, c, "cat", "/data/kept"); got != "over updates" {
		t.Errorf("the volume holds %q after an update", got)
	}
	if err := r.Sweep(t.Context(), engine.SweepOptions{Removed: []protocol.DeploymentName{"shop"}}); err != nil {
		t.Fatal(err)
	}
	v := engine.Volume{Deployment: "shop", Name: "db"}
	if n, err := r.VolumeBytes(t.Context(), v); n < uint64(len("over updates")) || err != nil {
		t.Errorf("the volume has %d bytes (%v) after the removal of its deployment, want what was written", n, err)
	}
	if err := r.RemoveVolume(t.Context(), v); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.volumes.Dir("shop", "db")); !os.IsNotExist(err) {
		t.Errorf("the volume is there after it was removed: %v", err)
	}
	for _, bad := range []engine.Volume{{Deployment: "..", Name: "db"}, {Deployment: "shop", Name: ".."}, {Deployment: "shop"}, {Deployment: "shop", Name: "a/b"}} {
		if err := r.RemoveVolume(t.Context(), bad); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("remove volume %q: %v, want it refused", bad, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.User, c.Spec.WorkingDir, c.Spec.Env = "1000:1001", "/data", []string{"COLOUR=green"}
	r.run(t, c)
	if got := r.output(t, c, "id"); got != "1000 1001 wait /data green small\n" {
		t.Errorf("identity %q", got)
	}
	// As in Compose, an entrypoint drops the image's command with its entrypoint.
	img := r.registry.Add(t, "app", containerdtest.Image{Program: program(t), Cmd: []string{"exit", "7", "default"}})
	for want, spec := range map[int32]protocol.Container{
		7: {Image: img},
		8: {Image: img, Command: []string{"exit", "8", "command"}},
		9: {Image: img, Entrypoint: []string{"/toolbox", "exit", "9", "entrypoint"}},
	} {
		c := r.container("app")
		c.Spec = spec
		r.run(t, c)
		st := awaitExit(t, r, c.ID)
		if st.ExitCode != want {
			t.Errorf("exit code %d (%s), want %d", st.ExitCode, st.Message, want)
		}
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func awaitExit(t *testing.T, r *rig, id engine.ID) engine.Status {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := r.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range all {
			if st.ID == id && st.State == engine.Exited {
				return st
			}
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s does not exit: %+v", id, all)
		}
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	r := setup(t)
	status := func(change func(*protocol.Container)) string {
		c := r.container("wait")
		change(&c.Spec)
		r.run(t, c)
		defer func() {
			if err := r.Remove(t.Context(), c.ID); err != nil {
				t.Fatal(err)
			}
		}()
		return r.output(t, c, "cat", "/proc/1/status")
	}
	field := func(status, name string) string {
		_, rest, _ := strings.Cut(status, name+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	plain := status(func(*protocol.Container) {})
	none := status(func(c *protocol.Container) { c.CapDrop = []string{"ALL"} })
	one := status(func(c *protocol.Container) { c.CapDrop, c.CapAdd = []string{"all"}, []string{"NET_ADMIN"} })
	full := status(func(c *protocol.Container) {
		c.Privileged = true
		c.Devices = []protocol.Device{{Host: "/dev/null", Container: "/dev/nothing"}}
	})
	if field(none, "CapEff") != "0000000000000000" || field(one, "CapEff") != "0000000000001000" {
		t.Errorf("capabilities %s and %s, want none and NET_ADMIN", field(none, "CapEff"), field(one, "CapEff"))
	}
	if field(plain, "CapEff") == field(full, "CapEff") || field(plain, "Seccomp") != "2" || field(full, "Seccomp") != "0" {
		t.Errorf("plain has %s and seccomp %s, privileged %s and %s", field(plain, "CapEff"), field(plain, "Seccomp"), field(full, "CapEff"), field(full, "Seccomp"))
	}
}

// Faults of the spec say which container, what is wrong and what to do.
func TestBadSpecs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if err := r.Pull(t.Context(), r.image, nil); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		change func(*protocol.Container)
		code   protocol.Code
		hint   string
	}{
		{func(c *protocol.Container) { c.Entrypoint = []string{"/no-such-program"} }, protocol.StartFailed, "no-such-program"},
		{func(c *protocol.Container) { c.User = "nobody-here" }, protocol.CreateFailed, "nobody-here"},
		{func(c *protocol.Container) { c.Devices = []protocol.Device{{Host: "/dev/none"}} }, protocol.CreateFailed, "/dev/none"},
		{func(c *protocol.Container) {
			c.Mounts = []protocol.Mount{{Kind: protocol.MountBind, Source: "/nowhere", Target: "/x"}}
		}, protocol.CreateFailed, "/nowhere"},
		{func(c *protocol.Container) {
			c.Mounts = []protocol.Mount{{Kind: protocol.MountVolume, Source: "../../etc", Target: "/x"}}
		}, protocol.CreateFailed, "../../etc"},
		{func(c *protocol.Container) {
			c.Mounts = []protocol.Mount{{Kind: "hologram", Target: "/x"}}
		}, protocol.Incompatible, "hologram"},
	} {
		c := r.container("wait")
		test.change(&c.Spec)
		err := r.Start(t.Context(), c)
		if engine.CodeOf(err) != test.code || err == nil || !strings.Contains(err.Error(), test.hint) || !strings.Contains(err.Error(), "shop/main/wait") {
			t.Errorf("error %v (%s), want %s that names %s", err, engine.CodeOf(err), test.code, test.hint)
		}
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Errorf("remove after %s: %v", test.hint, err)
		}
	}
}

// A kill between any two steps of a creation is repaired by the next Start, and
// cleaned by a Remove.
func TestHalfDone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	k := marks.Key(c.ID)
	r.run(t, c)
	ctx := r.in(t.Context())
	for name, cut := range map[string]func() error{
		"snapshot without a record": func() error {
			if err := r.Remove(t.Context(), c.ID); err != nil {
				return err
			}
			img, err := r.client.GetImage(ctx, r.image)
			if err != nil {
				return err
			}
			ctr, err := r.client.NewContainer(ctx, k, client.WithSnapshotter("overlayfs"), client.WithNewSnapshot(k, img), client.WithNewSpec())
			if err != nil {
				return err
			}
			return ctr.Delete(ctx)
		},
		"record without a task": func() error {
			return r.Stop(t.Context(), c.ID, time.Second)
		},
		"task that was never started": func() error {
			if err := r.Stop(t.Context(), c.ID, time.Second); err != nil {
				return err
			}
			ctr, err := r.client.LoadContainer(ctx, k)
			if err != nil {
				return err
			}
			_, err = ctr.NewTask(ctx, cio.LogFile(r.dir(k, "log")))
			return err
		},
		"no files": func() error {
			if err := r.Stop(t.Context(), c.ID, time.Second); err != nil {
				return err
			}
			return os.RemoveAll(r.dir(k))
		},
	} {
		if err := cut(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Start(t.Context(), c); err != nil {
			t.Errorf("%s: start: %v", name, err)
		}
		if got := r.output(t, c, "cat", "/etc/hosts"); !strings.Contains(got, "wait") {
			t.Errorf("%s: hosts are %q", name, got)
		}
		if err := cut(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Errorf("%s: remove: %v", name, err)
		}
		if _, err := r.client.SnapshotService("overlayfs").Stat(ctx, k); err == nil {
			t.Errorf("%s: a snapshot is left", name)
		}
		if err := r.Start(t.Context(), c); err != nil {
			t.Fatalf("%s: start anew: %v", name, err)
		}
	}
}

// Halt takes everything off the machine but what is on disk; Start brings it
// back under the same address.
func TestHalt(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	before, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", r.net.Bridge("shop"))); !os.IsNotExist(err) {
		t.Errorf("the bridge is left: %v", err)
	}
	if _, err := os.Stat(r.runcRoot()); !os.IsNotExist(err) {
		t.Errorf("runc's directory is left: %v", err)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != engine.Exited {
		t.Fatalf("listed %+v %v, want one that has exited", all, err)
	}
	r.run(t, c)
	after, err := r.List(t.Context())
	if err != nil || len(after) != 1 || after[0].State != engine.Running || after[0].Restarts != 1 {
		t.Errorf("listed %+v %v, want it running again, as %+v", after, err, before)
	}
}

// Halt asks all containers to stop before the first one has, kills those that take longer than
// half of the time that it has, and leaves no network of any behind.
func TestHaltOfSlowContainers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var all []engine.Container
	for i := range 6 {
		c := r.container("linger", "3600")
		c.ID.Name, c.Spec.Name = fmt.Sprintf("slow%d", i), fmt.Sprintf("slow%d", i)
		c.Spec.StopTimeoutMillis = 3_600_000
		c.Spec.Ports = []protocol.Port{{Container: 80, Host: uint16(freeport.Everywhere(t))}}
		r.run(t, c)
		r.awaitReady(t, c.ID)
		all = append(all, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	halted := make(chan error, 1)
	go func() { halted <- r.Halt(ctx) }()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for _, c := range all {
		for tick := time.NewTicker(20 * time.Millisecond); r.reason(marks.Key(c.ID)) != "asked to stop"; {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatalf("%s is not asked to stop while others have not ended", c.ID)
			}
		}
	}
	cancel()
	if err := <-halted; err != nil {
		t.Errorf("halt: %v", err)
	}
	listed, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range listed {
		if c.State != engine.Exited {
			t.Errorf("%s is %s", c.ID, c.State)
		}
	}
	for _, pattern := range []string{"attachments/*", "netns/*", "cni/cache/results/*"} {
		left, err := filepath.Glob(filepath.Join(r.opts.StateDir, pattern))
		if err != nil || len(left) > 0 {
			t.Errorf("left: %q %v", left, err)
		}
	}
	rules, err := exec.Command("iptables", "--wait", "-t", "nat", "-S").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bridge := r.net.Bridge("shop"); strings.Contains(string(rules), bridge) { // a killed run leaves such of its own bridge
		t.Errorf("iptables has rules of the bridge %s:\n%s", bridge, rules)
	}
}

// The record of the networks rots, and what the plugins noted of an address: the sweep
// leaves a container that runs its network, Halt takes the bridge off the machine, and
// after the removal nothing is left.
func TestRottenNetworks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	bridge := r.net.Bridge("shop")
	folder := filepath.Join(r.opts.StateDir, "cni", "ipam", bridge)
	rot := func() {
		t.Helper()
		addresses, err := filepath.Glob(filepath.Join(folder, "[0-9]*"))
		if err != nil || len(addresses) != 1 {
			t.Fatalf("addresses %q (%v), want one", addresses, err)
		}
		for _, path := range append(addresses, filepath.Join(r.opts.StateDir, "subnets.json")) {
			if err := os.WriteFile(path, []byte("rotten"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	rot()
	if err := r.Sweep(t.Context(), engine.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != engine.Running || all[0].IP == "" {
		t.Fatalf("listed %+v %v, want it running with an address", all, err)
	}
	if b, err := os.ReadFile(filepath.Join(folder, all[0].IP)); err != nil || !strings.HasPrefix(string(b), marks.Key(c.ID)) {
		t.Errorf("the address is noted for %q (%v), want %s", b, err, marks.Key(c.ID))
	}
	rot()
	if err := r.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", bridge)); !os.IsNotExist(err) {
		t.Errorf("the bridge is left after Halt: %v", err)
	}
	r.run(t, c)
	if err := r.Sweep(t.Context(), engine.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	rot()
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Sweep(t.Context(), engine.SweepOptions{Removed: []protocol.DeploymentName{"shop"}}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join("/sys/class/net", bridge), folder} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// A shim that is killed takes its container with it; the next start repairs it.
func TestShimKilled(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	r.run(t, c)
	ctx := r.in(t.Context())
	ctr, err := r.client.LoadContainer(ctx, marks.Key(c.ID))
	if err != nil {
		t.Fatal(err)
	}
	task, err := ctr.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", task.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "PPid:\t")
	line, _, _ := strings.Cut(rest, "\n")
	shim, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	events, err := r.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case ev := <-events:
		if ev.ID != c.ID {
			t.Errorf("event %+v", ev)
		}
	case <-time.After(time.Minute):
		t.Fatal("no event")
	}
	if err := r.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	r.awaitReady(t, c.ID)
	if got := r.output(t, c, "id"); got == "" {
		t.Error("the new process answers nothing")
	}
}

// Runtimes such as Java, Go and Node.js size themselves by the limits that they see.
func TestLimitsAreVisibleInside(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	c.Spec.Limits = protocol.Limits{MemoryBytes: 64 << 20}
	r.run(t, c)
	file, swap := "/sys/fs/cgroup/memory.max", strconv.Itoa(64<<20)
	if !hostkernel.CgroupV2() {
		file, swap = "/sys/fs/cgroup/memory/memory.limit_in_bytes", strconv.Itoa(128<<20) // version 1 counts both
	}
	if got := r.output(t, c, "cat", file); got != "67108864\n" {
		t.Errorf("the container sees the memory limit %q", got)
	}
	if hostkernel.BoundsSwap() {
		if got := limit(t, r, marks.Key(c.ID), "memory.memsw.limit_in_bytes", "memory.swap.max"); got != swap {
			t.Errorf("swap limit %s, want %s", got, swap)
		}
	}
	if res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "write", file, "1"}); err != nil || res.ExitCode == 0 {
		t.Errorf("the container could change its limit (%v)", err)
	}
}

func TestHostnameInTheEnvironment(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for want, change := range map[string]func(*engine.Container){
		"env":   func(*engine.Container) {},
		"front": func(c *engine.Container) { c.Spec.Hostname = "front" },
		"own":   func(c *engine.Container) { c.Spec.Env = []string{"HOSTNAME=own"} },
		"":      func(c *engine.Container) { c.Spec.Network = protocol.NetworkHost },
	} {
		c := r.container("env", "HOSTNAME")
		change(&c)
		r.run(t, c)
		if st := awaitExit(t, r, c.ID); st.Message != "HOSTNAME="+want {
			t.Errorf("the container says %q, want %q", st.Message, want)
		}
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// The names that outlive a plug and unplug are symbolic links.
func TestDeviceBySymbolicLink(t *testing.T) {
	t.Parallel()
	r := setup(t)
	link := filepath.Join(t.TempDir(), "usb-Zigbee-if00")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	c := r.container("wait")
	c.Spec.Devices = []protocol.Device{{Host: link, Container: "/dev/serial/by-id/usb-Zigbee-if00"}, {Host: link, Container: "/dev/ttyACM0"}}
	r.run(t, c)
	for _, path := range []string{"/dev/serial/by-id/usb-Zigbee-if00", "/dev/ttyACM0"} {
		r.output(t, c, "cat", path)
	}
	// It comes back with another number.
	if err := r.Stop(t.Context(), c.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", link); err != nil {
		t.Fatal(err)
	}
	r.run(t, c)
	if res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "write", "/dev/ttyACM0", "x"}); err != nil || !strings.Contains(string(res.Output), "no space left") {
		t.Errorf("after a new start the device is still the old one: %s %v", res.Output, err)
	}
	lost := r.container("wait")
	lost.ID.Name = "lost"
	lost.Spec.Devices = []protocol.Device{{Host: link + "-2"}}
	if err := r.Start(t.Context(), lost); err == nil || !strings.Contains(err.Error(), "the node has no device "+link+"-2: plug it in") {
		t.Errorf("start with a missing device: %v", err)
	}
}
