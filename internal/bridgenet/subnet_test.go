package bridgenet

import (
	"net/netip"
	"strings"
	"testing"
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
		p, err := n.subnet(d)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := taken[p]; ok || !netip.MustParsePrefix(opts.Pool).Overlaps(p) || p.Bits() != 24 {
			t.Errorf("%s has %s, %s has it too, or it is outside %s", d, p, other, opts.Pool)
		}
		taken[p] = d
		if again, err := n.subnet(d); err != nil || again != p {
			t.Errorf("%s has %s and then %s (%v)", d, p, again, err)
		}
	}
	if _, err := n.subnet("e"); err == nil || !strings.Contains(err.Error(), opts.Pool) {
		t.Errorf("a fifth network: %v, want an error that names the pool", err)
	}
	if err := n.Forget("b"); err != nil {
		t.Fatal(err)
	}
	if p, err := n.subnet("e"); err != nil || taken[p] != "b" {
		t.Errorf("e has %s (%v), want the one of b", p, err)
	}
}
