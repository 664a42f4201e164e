package nameserver

import (
	"net/netip"
	"strings"
)

// port is that of DNS.
const port = 53

// A ResolvConf is what a file in the form of resolv.conf(5) says.
type ResolvConf struct {
	Servers []netip.Addr
	Search  []string
	Options []string
}

// ParseResolvConf reads a file in the form of resolv.conf(5). What it does not
// understand it leaves out, as the C library does.
func ParseResolvConf(b []byte) ResolvConf {
	var c ResolvConf
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.ContainsAny(fields[0][:1], "#;") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil {
				c.Servers = append(c.Servers, a)
			}
		case "search", "domain": // the last of them counts
			c.Search = fields[1:]
		case "options":
			c.Options = append(c.Options, fields[1:]...)
		}
	}
	return c
}

// Upstreams returns the servers with the port of DNS.
func Upstreams(servers []netip.Addr) []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range servers {
		all = append(all, netip.AddrPortFrom(a, port))
	}
	return all
}
