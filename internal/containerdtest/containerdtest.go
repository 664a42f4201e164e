// Package containerdtest gives tests a containerd of their own, and images to
// run in it, built on the spot.
package containerdtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/privatecontainerd"
)

// pluginDirs are where distributions put the CNI plugins.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}

// A Daemon is a private containerd for one test, or for one package's tests.
type Daemon struct {
	Dir    string // short, below /tmp; removed at the end
	Socket string

	opts    privatecontainerd.Options
	running *privatecontainerd.Daemon
}

// Start starts a daemon and has it stopped, with all its containers, when the
// test ends. It fails the test where a program is missing.
func Start(t testing.TB) *Daemon {
	t.Helper()
	Require(t)
	dir, err := os.MkdirTemp("/tmp", "ctd")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Dir: dir, opts: privatecontainerd.Options{Dir: filepath.Join(dir, "c"), DieWithParent: true}}
	d.Socket = privatecontainerd.Socket(d.opts.Dir)
	t.Cleanup(func() { d.clean(t) })
	d.start(t)
	return d
}

// Require fails the test unless the machine can run containers.
func Require(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("running containers needs root")
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "runc", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: install it (apt-get install containerd runc iptables)", err)
		}
	}
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		if !found(plugin) {
			t.Fatalf("no CNI plugin %s in %q: install it (apt-get install containernetworking-plugins)", plugin, pluginDirs)
		}
	}
}

func found(plugin string) bool {
	for _, dir := range pluginDirs {
		if _, err := os.Stat(filepath.Join(dir, plugin)); err == nil {
			return true
		}
	}
	return false
}

func (d *Daemon) start(t testing.TB) {
	t.Helper()
	running, err := privatecontainerd.Start(t.Context(), d.opts)
	if err != nil {
		t.Fatal(err)
	}
	d.running = running
}

// Kill kills the daemon as kill -9 does. Containers go on.
func (d *Daemon) Kill(t testing.TB) {
	t.Helper()
	if err := d.running.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Crash ends the daemon and all its containers as a power cut does, and removes
// what was mounted below Dir.
func (d *Daemon) Crash(t testing.TB) {
	t.Helper()
	d.Kill(t)
	if err := privatecontainerd.Purge(t.Context(), d.opts.Dir); err != nil {
		t.Fatal(err)
	}
	if err := privatecontainerd.Unmount(d.Dir); err != nil {
		t.Fatal(err)
	}
}

// Restart starts a killed daemon again on the same state.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	d.start(t)
}

// complaints returns what the daemon logged as a warning or an error.
func (d *Daemon) complaints() string {
	b, err := os.ReadFile(d.running.LogPath())
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "level=info") && !strings.Contains(line, "level=debug") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func (d *Daemon) clean(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if d.running != nil {
		if t.Failed() {
			t.Logf("containerd's complaints:\n%s", d.complaints())
		}
		if err := d.running.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := privatecontainerd.Purge(ctx, d.opts.Dir); err != nil {
		t.Error(err)
	}
	if err := privatecontainerd.Unmount(d.Dir); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(d.Dir); err != nil {
		t.Error(err)
	}
}
