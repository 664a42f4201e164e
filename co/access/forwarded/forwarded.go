// Package forwarded finds the client of requests that come through proxies: limits, the audit and the log are about the
// client, and not about the proxy.
package forwarded

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// header is where each proxy appends from whom it has a request.
const header = "X-Forwarded-For"

// Proxies are the addresses of proxies whose word counts.
type Proxies []netip.Prefix

// Parse reads addresses and networks, as 10.0.0.7 and 10.1.0.0/16. The error names the entry.
func Parse(list []string) (Proxies, error) {
	var out Proxies
	for _, each := range list {
		p, err := netip.ParsePrefix(each)
		if ip, iperr := netip.ParseAddr(each); iperr == nil && ip.Zone() == "" {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q: want an address or a network, as 10.0.0.7 or 10.1.0.0/16", each)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func (p Proxies) has(ip netip.Addr) bool {
	return slices.ContainsFunc(p, func(n netip.Prefix) bool { return n.Contains(ip) })
}

// Handler returns a handler that gives next each request with the address of the client in RemoteAddr, with port 0 where a
// proxy has said it. What a client writes into the header itself does not count, as it is before what the proxies append.
func (p Proxies) Handler(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if client, ok := p.client(r); ok {
			r = r.WithContext(r.Context())
			r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
		}
		next.ServeHTTP(w, r)
	})
}

// client returns the client that the proxies name: the last address that is of none of them. It is false where they
// name none.
func (p Proxies) client(r *http.Request) (client netip.Addr, ok bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !p.has(peer.Addr().Unmap()) {
		return client, false
	}
	named := strings.Split(strings.Join(r.Header.Values(header), ","), ",")
	for _, each := range slices.Backward(named) {
		ip, err := address(strings.TrimSpace(each))
		if err != nil {
			break
		}
		client, ok = ip, true
		if !p.has(ip) {
			break
		}
	}
	return client, ok
}

// address reads an address, which some proxies give with a port.
func address(s string) (netip.Addr, error) {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	ip, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return ip.Unmap().WithZone(""), err
}
