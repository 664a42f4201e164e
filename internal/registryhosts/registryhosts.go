// Package registryhosts says where the images of a registry are fetched, and with
// which HTTP client.
package registryhosts

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// Options say which hosts are asked and how.
type Options struct {
	// Mirror is the base URL of the registry that is asked first for every image,
	// with the image's own host as the parameter ns. Empty: none. MirrorOnly asks no
	// other.
	Mirror     string
	MirrorOnly bool
	// MirrorTLS identifies this client to the mirror; nil: it has no certificate.
	MirrorTLS *tls.Config
	// PlainHTTP lists registries (host or host:port) spoken to without TLS. Those on
	// a loopback address always are.
	PlainHTTP []string
	// Credentials returns user and password of a registry host, empty for none. Nil:
	// anonymous.
	Credentials func(host string) (user, password string, err error)
	// Stall is how long a host may send nothing in the middle of an answer.
	Stall time.Duration
}

// A Client speaks to registries. Its methods may be called concurrently.
type Client struct {
	o            Options
	http, mirror *http.Client
	transports   []*http.Transport
}

// New returns a client.
func New(o Options) *Client {
	c := &Client{o: o}
	c.http = c.client(&http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       30 * time.Second,
	})
	c.mirror = c.http
	if o.MirrorTLS != nil {
		t := c.transports[0].Clone()
		t.TLSClientConfig, t.Proxy = o.MirrorTLS, nil
		c.mirror = c.client(t)
	}
	return c
}

func (c *Client) client(t *http.Transport) *http.Client {
	c.transports = append(c.transports, t)
	return &http.Client{Transport: explained{stalling{t, c.o.Stall}}}
}

// Close closes the idle connections.
func (c *Client) Close() {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// Only returns the mirror where no other registry is asked; "": others are.
func (c *Client) Only() string {
	if c.o.MirrorOnly {
		return c.o.Mirror
	}
	return ""
}

// Hosts lists where images of a registry host are fetched, in order.
func (c *Client) Hosts(host string) ([]docker.RegistryHost, error) {
	var out []docker.RegistryHost
	add := func(client *http.Client, scheme, address, path string) {
		auth := []docker.AuthorizerOpt{docker.WithAuthClient(client)}
		if c.o.Credentials != nil {
			auth = append(auth, docker.WithAuthCreds(c.o.Credentials))
		}
		out = append(out, docker.RegistryHost{
			Client: client, Authorizer: docker.NewDockerAuthorizer(auth...),
			Host: address, Scheme: scheme, Path: path + "/v2",
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		})
	}
	if c.o.Mirror != "" {
		u, err := url.Parse(c.o.Mirror)
		if err != nil {
			return nil, fmt.Errorf("parse the URL of the mirror: %w", err)
		}
		add(c.mirror, u.Scheme, u.Host, strings.TrimSuffix(u.Path, "/"))
	}
	if c.o.MirrorOnly || len(out) > 0 && out[0].Host == host {
		return out, nil
	}
	address, err := docker.DefaultHost(host)
	if err != nil {
		return nil, err
	}
	scheme := "https"
	local, err := docker.MatchLocalhost(host)
	if err != nil {
		return nil, err
	}
	if local || slices.Contains(c.o.PlainHTTP, host) {
		scheme = "http"
	}
	add(c.http, scheme, address, "")
	return out, nil
}

// maxRefusal bounds what is read of a refusal, in bytes.
const maxRefusal = 64 << 10

// explained gives the answer to a HEAD that a registry refuses for want of room the body of that to a GET, which says why and what
// to do: a resolver asks by HEAD.
type explained struct{ next http.RoundTripper }

func (e explained) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := e.next.RoundTrip(req)
	if err != nil || req.Method != http.MethodHead || resp.StatusCode != http.StatusInsufficientStorage {
		return resp, err
	}
	get := req.Clone(req.Context())
	get.Method = http.MethodGet
	why, err := e.next.RoundTrip(get)
	if err != nil {
		return resp, nil //nolint:nilerr // the refusal itself is known
	}
	defer why.Body.Close()
	if why.StatusCode != resp.StatusCode {
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(why.Body, maxRefusal))
	if err != nil {
		return resp, nil //nolint:nilerr // the same
	}
	_ = resp.Body.Close()                           // of a HEAD there is nothing in it
	resp.Body = io.NopCloser(bytes.NewReader(text)) // it is read after it was closed
	return resp, nil
}

// A StallError is the end of an answer of which nothing more came.
type StallError struct {
	Host string
	For  time.Duration // how long nothing came
}

// Error says which host stalled.
func (e *StallError) Error() string {
	return fmt.Sprintf("%s sent nothing for %s in the middle of its answer", e.Host, e.For)
}

// Timeout reports true: it is a net.Error.
func (e *StallError) Timeout() bool { return true }

// Temporary reports true: it may work at the next try.
func (e *StallError) Temporary() bool { return true }

// stalling ends an answer of whose body nothing comes for too long. A slow answer,
// however long it takes as a whole, is no stalled one.
type stalling struct {
	next  http.RoundTripper
	stall time.Duration
}

func (s stalling) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := s.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	why := &StallError{req.URL.Host, s.stall}
	resp.Body = &body{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, stall: s.stall, why: why}
	return resp, nil
}

// A body is read under the limit of its stall. It is not safe for concurrent use.
type body struct {
	io.ReadCloser
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	stall  time.Duration
	why    error
}

// Read reads, and ends the request where that takes too long: only what a reader
// waits for can stall.
func (b *body) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.stall, func() { b.cancel(b.why) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF && context.Cause(b.ctx) == b.why {
		err = b.why
	}
	return n, err
}

func (b *body) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}
