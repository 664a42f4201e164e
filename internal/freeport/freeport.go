// Package freeport finds TCP ports and subnets for programs that tests and benchmarks start
// and that get theirs before they use them.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	// lowest is the first port that is given out: below are those of well-known services. The last one is
	// below those that the kernel gives to programs that ask for none.
	lowest = 20_000
	// fewest is how many ports there must be to choose from.
	fewest = 1_000
)

// Find returns n different free ports at an address of this machine, such as 127.0.0.1 or 0.0.0.0, and that
// are given to no other test program before this one has ended. The kernel gives them to no program by
// itself, as for a connection that goes out; only one that names such a port takes it.
func Find(host string, n int) (ports []int, err error) {
	first, count := lowest, ephemeral()-lowest
	if count < max(fewest, n) {
		return nil, fmt.Errorf("free port: want %d ports from %d on that the kernel gives to no program by itself: see net.ipv4.ip_local_port_range", max(fewest, n), lowest)
	}
	at := rand.N(count)
	for i := 0; i < count && len(ports) < n; i++ {
		port := first + (at+i)%count
		ok, err := reserve(port)
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		if ok && free(host, port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("free port: of ports %d to %d at %s fewer than %d are free", first, first+count-1, host, n)
	}
	return ports, nil
}

// ephemeral is the first port that the kernel gives to programs that ask for none.
func ephemeral() int {
	low := 32768 // as Linux has it
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &low) // what cannot be read stays as Linux has it
	}
	return low
}

// reserve reports whether a port is this program's from now on until it ends, which frees it however that happens.
func reserve(port int) (bool, error) {
	dir := filepath.Join(os.TempDir(), "colony-test-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	fd, err := syscall.Open(filepath.Join(dir, strconv.Itoa(port)), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return false, fmt.Errorf("reserve port %d: %w", port, err)
	}
	// The descriptor stays open: with it the reservation ends.
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return false, syscall.Close(fd)
	}
	return true, nil
}

// dialTimeout is how long a connection of this machine with itself may take.
const dialTimeout = time.Second

// free reports whether a program can listen on a port, and gets what is sent there. What a container publishes has no listener and goes to
// the container, and so do rules that the network of a killed container left behind.
func free(host string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	defer l.Close()
	at := host
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		at = "127.0.0.1"
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(at, strconv.Itoa(port)), dialTimeout)
	if err != nil {
		return false
	}
	defer c.Close()
	// It ends by a reset, so that it leaves nothing that would keep the port.
	if c.(*net.TCPConn).SetLinger(0) != nil || l.(*net.TCPListener).SetDeadline(time.Now().Add(dialTimeout)) != nil {
		return false
	}
	got, err := l.Accept()
	if err != nil {
		return false
	}
	defer got.Close()
	return got.RemoteAddr().String() == c.LocalAddr().String()
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
	addr, err := Loopback()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Loopback returns a loopback address with a port as of Find, in the form host:port.
func Loopback() (string, error) {
	ports, err := Find("127.0.0.1", 1)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0]), nil
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
