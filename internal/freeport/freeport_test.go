package freeport

import (
	"net"
	"net/netip"
	"strconv"
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

// TestFind has ports that differ, that are given once, and that lie below those that the kernel gives by itself.
func TestFind(t *testing.T) {
	t.Parallel()
	given := map[int]bool{}
	for range 20 {
		for _, port := range Ports(t, 5) {
			if given[port] {
				t.Errorf("port %d is given twice", port)
			}
			given[port] = true
			if port < lowest || port >= ephemeral() {
				t.Errorf("port %d, want %d to %d", port, lowest, ephemeral()-1)
			}
			if ok, err := reserve(port); ok || err != nil {
				t.Errorf("port %d can be reserved once more: %v", port, err)
			}
		}
	}
	if ports, err := Find("127.0.0.1", 1<<20); err == nil {
		t.Errorf("more ports than there are: %d", len(ports))
	}
	// One with a listener is not given.
	port := Ports(t, 1)[0]
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if free("127.0.0.1", port) {
		t.Errorf("port %d is free, though somebody listens there", port)
	}
}
