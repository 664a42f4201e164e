// Package encrypted keeps requests with credentials from going over a network in the clear.
package encrypted

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
)

// Transport refuses plain HTTP but to the loopback and to hosts that are meant to be
// spoken to so. The library for registries takes plain HTTP of its own accord for private
// addresses and some names, and sends the credentials along. It may be used concurrently.
type Transport struct {
	Next http.RoundTripper
	// Plain are the hosts, host or host:port as in a URL, that are spoken to without TLS.
	Plain map[string]bool
}

// RoundTrip sends a request.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" || t.Plain[r.URL.Host] || loopback(r.URL) {
		return t.Next.RoundTrip(r)
	}
	err := fmt.Errorf("plain HTTP to %s is refused: let it speak TLS, or list it as a registry that is used without", r.URL.Host)
	if r.Body != nil {
		err = errors.Join(err, r.Body.Close())
	}
	return nil, err
}

func loopback(u *url.URL) bool {
	if u.Hostname() == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.Unmap().IsLoopback()
}
