package freeport

import (
	"net/netip"
	"testing"
)

func TestSubnet(t *testing.T) {
	t.Parallel()
	private := netip.MustParsePrefix("172.16.0.0/12")
	different := map[netip.Prefix]bool{}
	for range 50 {
		p := Subnet(t)
		if p.Bits() != 24 || p != p.Masked() || !private.Contains(p.Addr()) {
			t.Fatalf("%s is no /24 of %s", p, private)
		}
		different[p] = true
	}
	if len(different) < 2 {
		t.Errorf("each call gave %v", different)
	}
}
