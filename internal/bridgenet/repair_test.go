package bridgenet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

const pluginDir = "/usr/lib/cni"

// network is one network of real plugins, and a container that joins it.
type network struct {
	t    *testing.T
	n    *Networks
	key  string
	want Attachment
}

// newNetwork needs root, the CNI plugins and iptables. Everything is removed
// at the end, by the rules' names where Detach failed.
func newNetwork(t *testing.T, pool string) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes networks: run it as root")
	}
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		if _, err := os.Stat(filepath.Join(pluginDir, plugin)); err != nil {
			t.Fatalf("install the CNI plugins (containernetworking-plugins): %v", err)
		}
	}
	for _, program := range []string{"iptables", "ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("install iptables, iproute2 and util-linux: %v", err)
		}
	}
	dir := t.TempDir()
	n, err := New(Options{Dir: dir, PluginDirs: []string{pluginDir}, Pool: pool, Owner: dir})
	if err != nil {
		t.Fatal(err)
	}
	w := &network{t: t, n: n, key: fmt.Sprintf("repair-%s-%d", n.Mark(), os.Getpid()), want: Attachment{Network: "shop", Name: "web", Hostname: "web"}}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := n.Detach(ctx, w.key); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if _, err := sweepRules(ctx, n.Bridge(w.want.Network), w.key); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := netns.Remove(n.NetNS(w.key)); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := n.Forget(w.want.Network); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return w
}

func (w *network) run(program string, args ...string) string {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), program, args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// left returns what the packet filter holds of the container.
func (w *network) left() (lines []string) {
	w.t.Helper()
	chain := masqueradeChain(w.n.Bridge(w.want.Network), w.key)
	for line := range strings.Lines(w.run("iptables", "--wait", "-t", "nat", "-S")) {
		if strings.Contains(line, w.key+`\"`) || strings.Contains(line, chain) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// jumps returns how many masquerading rules lead to the chain of the container.
func (w *network) jumps() (n int) {
	w.t.Helper()
	for _, line := range w.left() {
		if strings.HasPrefix(line, "-A POSTROUTING") && strings.HasSuffix(line, " -j "+masqueradeChain(w.n.Bridge(w.want.Network), w.key)) {
			n++
		}
	}
	return n
}

func (w *network) attach() (address string) {
	w.t.Helper()
	if err := w.n.Attach(w.t.Context(), w.key, w.want); err != nil {
		w.t.Fatal(err)
	}
	return w.address()
}

func (w *network) address() string {
	w.t.Helper()
	a, err := w.n.Get(w.key)
	if err != nil || a == nil || a.IP == "" {
		w.t.Fatalf("attachment %+v (%v), want one with an address", a, err)
	}
	return a.IP
}

// detach removes the container from the network and checks that nothing is left.
func (w *network) detach(ctx context.Context) {
	w.t.Helper()
	if err := w.n.Detach(ctx, w.key); err != nil {
		w.t.Errorf("detach: %v", err)
	}
	if left := w.left(); len(left) > 0 {
		w.t.Errorf("the packet filter still holds:\n%s", strings.Join(left, "\n"))
	}
	if a, err := w.n.Get(w.key); a != nil || err != nil {
		w.t.Errorf("attachment %+v (%v), want none", a, err)
	}
	if addresses, err := filepath.Glob(filepath.Join(w.n.dir, "cni", "ipam", "*", "[0-9]*")); err != nil || len(addresses) > 0 {
		w.t.Errorf("addresses %v (%v) are still in use", addresses, err)
	}
}

// interrupt leaves the container as a DEL that was killed does: without its
// interface, with its rules.
func (w *network) interrupt() {
	w.t.Helper()
	w.run("nsenter", "--net="+w.n.NetNS(w.key), "ip", "link", "delete", "eth0")
	if err := os.RemoveAll(filepath.Join(w.n.dir, "cni", "cache")); err != nil {
		w.t.Fatal(err)
	}
	if w.jumps() != 1 {
		w.t.Fatalf("the packet filter holds %q, want one masquerading rule", w.left())
	}
}

// again leaves the container with two rules to one chain: that of an address that is on no record
// keeps the chain in use.
func (w *network) again() {
	w.t.Helper()
	first := w.attach()
	w.interrupt()
	// The killed run got as far as to release the address.
	for _, path := range []string{w.n.file(w.key).Path, filepath.Join(w.n.dir, "cni", "ipam", w.n.Bridge(w.want.Network), first)} {
		if err := os.Remove(path); err != nil {
			w.t.Fatal(err)
		}
	}
	if second := w.attach(); second == first {
		w.t.Fatalf("it has the address %s again; the test needs another", second)
	}
	if w.jumps() != 2 {
		w.t.Fatalf("the packet filter holds %q, want two masquerading rules", w.left())
	}
}

func TestDetachAfterInterruptedDelete(t *testing.T) {
	t.Parallel()
	t.Run("another address", func(t *testing.T) {
		t.Parallel()
		w := newNetwork(t, "10.222.8.0/24")
		w.want.Ports = []protocol.Port{{Container: 8080, Host: 39417}}
		w.again()
		w.detach(t.Context())
		w.detach(t.Context())
	})
	t.Run("another address, and the delete failed before", func(t *testing.T) {
		t.Parallel()
		w := newNetwork(t, "10.222.9.0/24")
		w.again()
		subnet, err := w.n.stored(w.want.Network)
		if err != nil {
			t.Fatal(err)
		}
		list, err := w.n.config(w.want.Network, Link{}, subnet, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.n.delOnce(t.Context(), list, w.n.runtime(w.key, w.want, 0)); err == nil {
			t.Fatal("the plugins alone remove it: there is nothing to repair")
		}
		w.detach(t.Context())
	})
	t.Run("no interface", func(t *testing.T) {
		t.Parallel()
		w := newNetwork(t, "10.222.10.0/24")
		w.attach()
		w.interrupt()
		w.detach(t.Context())
	})
	t.Run("no namespace", func(t *testing.T) {
		t.Parallel()
		w := newNetwork(t, "10.222.11.0/24")
		w.attach()
		if err := netns.Remove(w.n.NetNS(w.key)); err != nil {
			t.Fatal(err)
		}
		w.detach(t.Context())
	})
	t.Run("no namespace, attached again", func(t *testing.T) {
		t.Parallel()
		w := newNetwork(t, "10.222.12.0/24")
		w.attach()
		if err := netns.Remove(w.n.NetNS(w.key)); err != nil {
			t.Fatal(err)
		}
		w.attach()
		if w.jumps() != 1 {
			t.Errorf("the packet filter holds %q, want one masquerading rule", w.left())
		}
		w.detach(t.Context())
	})
}

// TestRepairLeavesOthers: the rules of a container whose name begins alike stay.
func TestRepairLeavesOthers(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.222.13.0/24")
	w.attach()
	other := *w
	other.key += "-2"
	t.Cleanup(func() {
		if err := w.n.Detach(context.Background(), other.key); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	other.attach()
	w.interrupt()
	if err := w.n.Detach(t.Context(), w.key); err != nil {
		t.Fatal(err)
	}
	if w.jumps() != 0 || other.jumps() != 1 {
		t.Errorf("the packet filter holds %q and %q, want one masquerading rule, of %s", w.left(), other.left(), other.key)
	}
	other.detach(t.Context())
}

// TestEndedCaller: a caller that goes away, before or amid a run, leaves nothing
// half done.
func TestEndedCaller(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.222.14.0/24")
	for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		if err := w.n.Attach(ctx, w.key, w.want); err != nil {
			t.Errorf("attach, caller ended after %s: %v", after, err)
		}
		cancel()
		w.address()
		if w.jumps() != 1 {
			t.Errorf("the packet filter holds %q, want one masquerading rule", w.left())
		}
		ctx, cancel = context.WithTimeout(t.Context(), after)
		w.detach(ctx)
		cancel()
	}
}
