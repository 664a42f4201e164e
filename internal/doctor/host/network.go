package host

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/doctor"
)

// patience is how long another machine may take to answer.
const patience = 5 * time.Second

// An Address is one that a tier listens on, and its key in the configuration.
type Address struct{ Key, Address string }

// Ports checks that a tier can listen on its addresses; those that are empty are left
// out. running reports whether the tier runs now, and so has them itself.
func Ports(running func(context.Context) bool, addresses ...Address) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		var out []doctor.Finding
		for _, a := range addresses {
			if a.Address != "" {
				out = append(out, port(ctx, running, a))
			}
		}
		return out
	}
}

func port(ctx context.Context, running func(context.Context) bool, a Address) doctor.Finding {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.Address)
	switch {
	case err == nil:
		if err := l.Close(); err != nil {
			return doctor.Warnf("try again", "%s %s: %v", a.Key, a.Address, err)
		}
		return doctor.Okf("%s %s is free", a.Key, a.Address)
	case errors.Is(err, syscall.EADDRINUSE) && running(ctx):
		return doctor.Okf("%s %s is in use by the tier itself, which runs", a.Key, a.Address)
	case errors.Is(err, syscall.EADDRINUSE):
		return doctor.Failf("find out who has it (ss -ltnp) and end that, or set another address", "%s %s is in use by another program", a.Key, a.Address)
	case errors.Is(err, syscall.EACCES):
		return doctor.Failf("use a port from 1024 on, or give the program CAP_NET_BIND_SERVICE", "%s %s may not be listened on: %v", a.Key, a.Address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return doctor.Failf("use an address of this machine (ip address), or 0.0.0.0 for all of them", "%s %s is no address of this machine", a.Key, a.Address)
	}
	return doctor.Failf("correct the address", "%s %s: %v", a.Key, a.Address, err)
}

// Broker checks that the brokers of the tier above can be connected to: one is enough.
func Broker(what, key string, urls []string) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		var failed []string
		for _, raw := range urls {
			err := dial(ctx, raw)
			if err == nil {
				return []doctor.Finding{doctor.Okf("%s: %s accepts connections", what, redact(raw))}
			}
			failed = append(failed, fmt.Sprintf("%s: %v", redact(raw), err))
		}
		if len(failed) == 0 {
			return nil
		}
		return []doctor.Finding{doctor.Failf("check that it runs, "+key+" in the configuration, the name server, the route and the firewall between",
			"%s cannot be reached: %s", what, strings.Join(failed, "; "))}
	}
}

// defaultPorts are those of the schemes of a broker's URL.
var defaultPorts = map[string]string{"tcp": "1883", "mqtt": "1883", "tls": "8883", "mqtts": "8883", "ssl": "8883", "ws": "80", "wss": "443"}

func dial(ctx context.Context, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("not a URL")
	}
	network, address := "tcp", u.Host
	switch {
	case u.Scheme == "unix":
		network, address = "unix", u.Path
	case u.Port() == "":
		address = net.JoinHostPort(u.Hostname(), defaultPorts[u.Scheme])
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	return c.Close()
}

// redact hides a password in a URL.
func redact(raw string) string {
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "unreadable URL"
}

// HTTP checks that a URL answers with a status of success, or asks for credentials; an empty one is left out.
func HTTP(what, key, target string) func(context.Context) []doctor.Finding {
	return HTTPBy(http.DefaultClient, what, key, target)
}

// HTTPBy is HTTP with a client of one's own.
func HTTPBy(client *http.Client, what, key, target string) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		if target == "" {
			return nil
		}
		defer client.CloseIdleConnections()
		if _, err := get(ctx, client, target); err != nil && !errors.Is(err, ErrUnauthorized) {
			return []doctor.Finding{doctor.Failf("check that it runs, "+key+" in the configuration, the name server, the route, the firewall and a proxy between", "%s does not answer: %v", what, err)}
		}
		return []doctor.Finding{doctor.Okf("%s answers at %s", what, redact(target))}
	}
}

// ErrUnauthorized is the error of Get where the server wants a certificate or token.
var ErrUnauthorized = errors.New("it wants a certificate or a token")

// Get fetches a small document. It fails where the status is not one of success; the body
// is returned then, too.
func Get(ctx context.Context, target string) ([]byte, error) {
	return get(ctx, http.DefaultClient, target)
}

// Pinned returns a client that accepts only the certificate in a PEM file, with any name in it: it is for a listener of
// this machine.
func Pinned(certificate string) (*http.Client, error) {
	b, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s: want a certificate in PEM", certificate)
	}
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: true, // in favour of what follows
			VerifyConnection: func(s tls.ConnectionState) error {
				if !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
					return fmt.Errorf("it shows another certificate than that of %s", certificate)
				}
				return nil
			},
		},
	}}, nil
}

// GetBy is Get with a client.
func GetBy(ctx context.Context, client *http.Client, target string) ([]byte, error) {
	return get(ctx, client, target)
}

func get(ctx context.Context, client *http.Client, target string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return b, fmt.Errorf("%s answers %s: %w", redact(target), resp.Status, ErrUnauthorized)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return b, fmt.Errorf("%s answers %s", redact(target), resp.Status)
	}
	return b, nil
}

// URL returns the address of a path on a listener of this machine, given as host:port;
// "" for none.
func URL(listener, path string) string {
	host, port, err := net.SplitHostPort(listener)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port) + path
}
