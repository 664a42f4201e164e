package bridgenet

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
)

// reserved returns the owner of each address, by the files of the plugin.
func (w *network) reserved() map[string]string {
	w.t.Helper()
	list, err := w.n.reservations(w.n.Bridge(w.want.Network))
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range list {
		out[r.ip.String()] = string(r.content)
	}
	return out
}

func (w *network) sweep(known ...string) {
	w.t.Helper()
	ids := map[string]bool{}
	for _, k := range known {
		ids[k] = true
	}
	if err := w.n.Sweep(w.t.Context(), func() (map[string]bool, error) { return ids, nil }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *network) write(path, content string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// TestDamagedReservations damages files of the plugin host-local: an address that a container has
// is noted for it anew, one without a container is free again, and while it is not known which
// those are, none is given up.
func TestDamagedReservations(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.95.0.0/16")
	ip := w.attach()
	right := map[string]string{ip: w.key + lineBreak + "eth0"}
	dir := w.n.ipam(w.n.Bridge(w.want.Network))
	if diff := cmp.Diff(right, w.reserved()); diff != "" {
		t.Fatal(diff)
	}
	other := filepath.Join(dir, ip[:len(ip)-1]+"99")
	for name, content := range map[string]string{
		"empty": "", "of nobody": "nobody" + lineBreak + "eth0", "not a name": "\x00\xff", "another interface": w.key + lineBreak + "eth7",
	} {
		w.write(filepath.Join(dir, ip), content)
		w.write(other, content)
		w.sweep(w.key)
		if diff := cmp.Diff(right, w.reserved()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	// No regular file: the plugins, too, would wait for what they read of it.
	var reported []string
	w.n.damaged = func(d *statefile.Damage) { reported = append(reported, d.Name) }
	for _, path := range []string{filepath.Join(dir, ip), other} {
		if err := errors.Join(os.RemoveAll(path), syscall.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	w.sweep(w.key)
	if diff := cmp.Diff(right, w.reserved()); diff != "" || len(reported) != 2 {
		t.Errorf("FIFOs: reported are %q (-want +got):\n%s", reported, diff)
	}

	// The attachment is lost, too: which address the container has is not known.
	path := w.n.file(w.key).Path
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.write(path, "rotten")
	w.write(filepath.Join(dir, ip), "nobody"+lineBreak+"eth0")
	w.write(other, "")
	before := w.reserved()
	w.sweep(w.key)
	if diff := cmp.Diff(before, w.reserved()); diff != "" {
		t.Errorf("in doubt (-want +got):\n%s", diff)
	}
	w.write(path, string(whole))
	w.sweep(w.key)
	if diff := cmp.Diff(right, w.reserved()); diff != "" {
		t.Errorf("after the doubt (-want +got):\n%s", diff)
	}
	w.detach(t.Context())
}

// TestLostAttachmentAndCache loses the record of a container and what the plugins remember
// of it: it starts again, its removal leaves nothing, and the sweep finds it by its namespace.
func TestLostAttachmentAndCache(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.96.0.0/16")
	lose := func() {
		t.Helper()
		w.write(w.n.file(w.key).Path, "rotten")
		if err := os.RemoveAll(filepath.Join(w.n.dir, "cni", "cache")); err != nil {
			t.Fatal(err)
		}
	}
	w.attach()
	lose()
	w.attach()
	if got := slices.Collect(maps.Values(w.reserved())); len(got) != 1 {
		t.Errorf("reserved for %q, want one address", got)
	}
	lose()
	if held, err := w.n.Held(); err != nil || !slices.Contains(held, w.key) {
		t.Errorf("held are %q (%v), want %s among them", held, err, w.key)
	}
	w.detach(t.Context())
	if held, err := w.n.Held(); err != nil || len(held) != 0 {
		t.Errorf("held are %q (%v), want none", held, err)
	}
}

// TestLostSubnets loses the record of the subnets: a container that runs keeps its bridge and
// its addresses, its removal leaves nothing, and then the bridge goes.
func TestLostSubnets(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.97.0.0/16")
	lose := func() {
		t.Helper()
		w.write(w.n.subnetsFile().Path, "rotten")
	}
	// Another than a network of this name gets where all are free.
	if err := w.n.save(w.n.subnetsFile(), map[string]netip.Prefix{w.want.Network: netip.MustParsePrefix("10.97.7.0/24")}); err != nil {
		t.Fatal(err)
	}
	ip := w.attach()
	bridge := w.n.Bridge(w.want.Network)
	there := func(want bool) {
		t.Helper()
		if _, err := os.Stat(filepath.Join("/sys/class/net", bridge)); os.IsNotExist(err) == want {
			t.Errorf("the bridge is there: %t, want %t (%v)", !want, want, err)
		}
	}
	lose()
	w.sweep(w.key)
	there(true)
	if got := w.reserved()[ip]; got != w.key+lineBreak+"eth0" {
		t.Errorf("%s is reserved for %q", ip, got)
	}
	if names, err := w.n.Names(); err != nil || !slices.Contains(names, w.want.Network) {
		t.Errorf("networks %q (%v), want %s among them: a container is attached to it", names, err, w.want.Network)
	}
	half := w.want // as an agent that was killed before it had the answer leaves it
	if err := w.n.save(w.n.file(w.key), half); err != nil {
		t.Fatal(err)
	}
	w.detach(t.Context())
	there(true)
	before := subnetOnBridge(bridge)
	if p, err := w.n.subnet(w.want.Network, netip.Prefix{}); err != nil || p != before {
		t.Errorf("the network gets %s (%v), and its bridge has %s", p, err, before)
	}
	lose()
	w.sweep()
	there(false)
	if made, err := w.n.made(); err != nil || len(made) != 0 {
		t.Errorf("folders of addresses are left: %q (%v)", made, err)
	}
	if netns.Live(w.n.NetNS(w.key)) {
		t.Error("the namespace is left")
	}
}
