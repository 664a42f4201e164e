// Package freeport finds TCP ports and subnets for programs that tests and benchmarks start
// and that get theirs before they use them.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// Find returns n different ports that nobody listens on at an address of this
// machine, such as 127.0.0.1 or 0.0.0.0. Another program may take one before it
// is used: where a program can be given a listener or port 0, that is better.
func Find(host string, n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer l.Close() // held until all are there, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Ports is Find for the loopback address in a test, which it ends on an error.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	ports, err := Find("127.0.0.1", n)
	if err != nil {
		t.Fatal(err)
	}
	return ports
}

// Addr returns a loopback address with a port as of Ports, in the form host:port.
func Addr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", Ports(t, 1)[0])
}

// Everywhere returns a port as of Find that is free at each IPv4 address.
func Everywhere(t testing.TB) int {
	t.Helper()
	ports, err := Find("0.0.0.0", 1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// Subnet returns a /24 of private addresses (RFC 1918) in 172.16.0.0/12 that no interface of the
// machine has an address in. It is one of 4,096 by chance, so that tests that run beside each other
// hardly get the same.
func Subnet(t testing.TB) netip.Prefix {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		n := rand.N(1 << 12)
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + n>>8), byte(n), 0}), 24)
		free := true
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			free = free && (err != nil || !p.Overlaps(subnet))
		}
		if free {
			return subnet
		}
	}
	t.Fatal("no /24 of 172.16.0.0/12 is free on this machine")
	return netip.Prefix{}
}
