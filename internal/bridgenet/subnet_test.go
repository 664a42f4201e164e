package bridgenet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestSubnets(t *testing.T) {
	t.Parallel()
	opts := Options{Dir: t.TempDir(), Pool: "10.222.4.0/22"}
	n, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	taken := map[netip.Prefix]string{}
	for _, d := range []string{"a", "b", "c", "d"} {
		p, err := n.subnet(d, netip.Prefix{})
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := taken[p]; ok || !netip.MustParsePrefix(opts.Pool).Overlaps(p) || p.Bits() != 24 {
			t.Errorf("%s has %s, %s has it too, or it is outside %s", d, p, other, opts.Pool)
		}
		taken[p] = d
		if again, err := n.subnet(d, netip.Prefix{}); err != nil || again != p {
			t.Errorf("%s has %s and then %s (%v)", d, p, again, err)
		}
	}
	if _, err := n.subnet("e", netip.Prefix{}); err == nil || !strings.Contains(err.Error(), opts.Pool) {
		t.Errorf("a fifth network: %v, want an error that names the pool", err)
	}
	if err := n.Forget("b"); err != nil {
		t.Fatal(err)
	}
	if p, err := n.subnet("e", netip.Prefix{}); err != nil || taken[p] != "b" {
		t.Errorf("e has %s (%v), want the one of b", p, err)
	}
}

// A network has the subnet that is wanted for it where that is free, and keeps what it has.
func TestDesiredSubnets(t *testing.T) {
	t.Parallel()
	n, err := New(Options{Dir: t.TempDir(), Pool: "10.222.4.0/22"})
	if err != nil {
		t.Fatal(err)
	}
	desired := netip.MustParsePrefix("10.223.9.0/24")
	for range 2 {
		if p, err := n.subnet("a", desired); err != nil || p != desired {
			t.Errorf("a has %s (%v), want %s", p, err, desired)
		}
	}
	if p, err := n.subnet("b", desired); err != nil || !n.pool.Overlaps(p) {
		t.Errorf("b has %s (%v), want one of the pool: a has what it wants", p, err)
	}
	if p, err := n.subnet("c", netip.MustParsePrefix("127.0.0.0/24")); err != nil || !n.pool.Overlaps(p) {
		t.Errorf("c has %s (%v), want one of the pool: the machine uses what it wants", p, err)
	}
	for subnet, want := range map[string]bool{"10.223.9.0/24": true, "10.223.9.1/24": false, "10.0.0.0/8": false, "8.8.8.0/24": false, "fd00::/24": false, "x": false, "": false} {
		if got := desiredSubnet(Link{Addressing: &protocol.Addressing{Subnet: subnet}}); got.IsValid() != want {
			t.Errorf("%q is taken as %s", subnet, got)
		}
	}
}
