package bridgenet

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// TestDamagedAttachment flips each bit of one attachment: the other one is found, and
// the damage is reported.
func TestDamagedAttachment(t *testing.T) {
	t.Parallel()
	var reported []*statefile.Damage
	n, err := New(Options{Dir: t.TempDir(), Pool: "10.90.0.0/16", Owner: "test", Damaged: func(d *statefile.Damage) { reported = append(reported, d) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if err := n.save(n.file(key), Attachment{Network: "web", Name: key, IP: "10.90.1.2"}); err != nil {
			t.Fatal(err)
		}
	}
	path := n.file("a").Path
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		reported = nil
		all, err := n.All()
		if err != nil || len(all) != 1 || all["b"] == nil || len(reported) != 1 || reported[0].Name != "a" {
			t.Fatal(fmt.Sprintf("bit %d:", bit), all, reported, err)
		}
	}
}

// TestDamagedAttachmentLeavesNothing loses the record of a container that publishes a port:
// neither its next start nor its removal leaves rules or addresses of the lost one behind.
func TestDamagedAttachmentLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, "10.93.0.0/16")
	w.want.Ports = []protocol.Port{{Host: 39471, Container: 8080}}
	lose := func() {
		t.Helper()
		if err := os.WriteFile(w.n.file(w.key).Path, []byte("rotten"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	published := func(address string) {
		t.Helper()
		for line := range strings.Lines(w.run("iptables", "--wait", "-t", "nat", "-S")) {
			if strings.Contains(line, "DNAT") && strings.Contains(line, "--dport 39471 ") && (address == "" || !strings.Contains(line, address+":8080")) {
				t.Errorf("port 39471 is led elsewhere than to %q: %s", address, line)
			}
		}
	}
	w.attach()
	lose()
	published(w.attach())
	lose()
	if err := netns.Remove(w.n.NetNS(w.key)); err != nil { // as after a reboot
		t.Fatal(err)
	}
	published(w.attach())
	lose()
	w.detach(t.Context())
	published("")
}
