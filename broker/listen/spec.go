package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
)

// A Network is a transport that a listener serves MQTT on.
type Network string

// The networks.
const (
	TCP  Network = "tcp"  // plain MQTT over TCP
	TLS  Network = "tls"  // MQTT over TLS
	WS   Network = "ws"   // WebSocket; with a certificate it is wss
	Unix Network = "unix" // a Unix socket
)

// A Spec is an address that clients connect to, and which clients may. Its yaml keys are those of
// the configuration files of LO and CO.
type Spec struct {
	// Name is unique within the broker. It is in logs, and access control gets it.
	Name    string  `yaml:"name"`
	Network Network `yaml:"network"`
	// Address is host:port, or the path of a Unix socket.
	Address string `yaml:"address"`

	// Certificate and Key are PEM files: the chain of the server, and its private key.
	// They are read again when they change; connections that are there stay. Required for
	// tls, and make wss of ws.
	Certificate string `yaml:"certificate,omitempty"`
	Key         string `yaml:"key,omitempty"`
	// TLS takes the place of the files.
	TLS *tls.Config `yaml:"-"`

	// Origins are the web pages that may connect to ws, such as https://hmi.example, or *
	// for all. A page of the listener's own host always may, as may what is not a browser.
	Origins []string `yaml:"origins,omitempty"`
	// Mode is the permission of the Unix socket's file, in octal. Default 0600: processes
	// of the same user.
	Mode string `yaml:"mode,omitempty"`

	// Users are the user names that may connect here, as patterns of path.Match such as
	// *@plant1. Empty: all whom access control lets in.
	Users []string `yaml:"users,omitempty"`
	// From are the addresses that may connect here, such as 10.1.0.0/16. Empty: all.
	From []string `yaml:"from,omitempty"`
}

// Validate returns every fault of s, each with the name of the listener.
func (s *Spec) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("listener %s: %s", s.Name, fmt.Sprintf(format, args...)))
	}
	if s.Name == "" {
		errs = append(errs, fmt.Errorf("listener on %s: no name", s.Address))
	}
	switch s.Network {
	case TCP, TLS, WS:
		if _, _, err := net.SplitHostPort(s.Address); err != nil {
			bad("address %q: want host:port", s.Address)
		}
	case Unix:
		if !filepath.IsAbs(s.Address) {
			bad("address %q: want the absolute path of a socket", s.Address)
		}
	default:
		bad("network %q: want tcp, tls, ws or unix", s.Network)
	}
	files := s.Certificate != "" || s.Key != ""
	switch {
	case files && (s.Certificate == "" || s.Key == ""):
		bad("certificate and key go together: one is missing")
	case files && s.Network != TLS && s.Network != WS:
		bad("network %s with a certificate: want tls or ws", s.Network)
	case s.Network == TLS && !files && s.TLS == nil:
		bad("network tls without a certificate and key")
	}
	if _, err := s.mode(); err != nil || s.Mode != "" && s.Network != Unix {
		bad("mode %q: want octal digits such as 0660, and the network unix", s.Mode)
	}
	if len(s.Origins) > 0 && s.Network != WS {
		bad("origins are for the network ws")
	}
	for _, o := range s.Origins {
		if u, err := url.Parse(o); o != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "") {
			bad("origin %q: want one such as https://hmi.example, or *", o)
		}
	}
	for _, p := range s.Users {
		if _, err := path.Match(p, ""); err != nil {
			bad("users: pattern %q: want one such as *@plant1", p)
		}
	}
	if _, err := s.prefixes(); err != nil {
		bad("from: %v", err)
	} else if len(s.From) > 0 && s.Network == Unix {
		bad("from is for networks with addresses; use mode")
	}
	return errors.Join(errs...)
}

// ValidateAll returns every fault of a list of which each has a name of its own, other
// than taken.
func ValidateAll(list []Spec, taken ...string) error {
	var errs []error
	for i := range list {
		errs = append(errs, list[i].Validate())
		if slices.Contains(taken, list[i].Name) {
			errs = append(errs, fmt.Errorf("listener %s on %s: the name is taken: want one of its own", list[i].Name, list[i].Address))
		}
		taken = append(taken, list[i].Name)
	}
	return errors.Join(errs...)
}

// AllowsUser reports whether a user name may connect here.
func (s *Spec) AllowsUser(name string) bool {
	for _, p := range s.Users {
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return len(s.Users) == 0
}

func (s *Spec) mode() (fs.FileMode, error) {
	if s.Mode == "" {
		return 0o600, nil
	}
	m, err := strconv.ParseUint(s.Mode, 8, 9)
	return fs.FileMode(m), err
}

func (s *Spec) prefixes() (out []netip.Prefix, err error) {
	for _, f := range s.From {
		p, err := netip.ParsePrefix(f)
		if err != nil {
			addr, bad := netip.ParseAddr(f)
			if bad != nil {
				return nil, fmt.Errorf("%q: want an address, or a network such as 10.1.0.0/16", f)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// allowed reports whether a peer may connect.
func allowed(from []netip.Prefix, peer net.Addr) bool {
	if len(from) == 0 {
		return true
	}
	at, err := netip.ParseAddrPort(peer.String())
	if err != nil {
		return false
	}
	for _, p := range from {
		if p.Contains(at.Addr().Unmap().WithZone("")) {
			return true
		}
	}
	return false
}
