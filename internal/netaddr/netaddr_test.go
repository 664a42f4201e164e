package netaddr_test

import (
	"testing"

	"github.com/colonyfleet/colony/internal/netaddr"
)

func TestNetwork(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"10.0.0.1:5":                 "10.0.0.1",
		"10.0.0.1":                   "10.0.0.1",
		"[::ffff:10.0.0.1]:5":        "10.0.0.1",
		"[2001:db8:1:2::1]:5":        "2001:db8:1:2::/64",
		"[2001:db8:1:2:3:4:5:6]:700": "2001:db8:1:2::/64",
		"2001:db8:1:2:3:4:5:6":       "2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:5":        "2001:db8:1:3::/64",
		"[fe80::1%eth0]:5":           "fe80::/64",
		"gate:5":                     "gate",
		"[2001:db8:0:1::1]:1":        "2001:db8:0:1::/64",
		"@":                          "@", // of a Unix socket
		"":                           "",
	} {
		if got := netaddr.Network(remote); got != want {
			t.Errorf("network of %q: %q, want %q", remote, got, want)
		}
	}
}
