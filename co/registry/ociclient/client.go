// Package ociclient reads from and writes to OCI registries: the fleet's own one and any
// other. It is go-containerregistry's client with the hosts, the bounds and the kinds of
// errors of Colony. Its tests are those of the fleet's own registry, against which they run.
package ociclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/encrypted"
	"github.com/colonyfleet/colony/co/registry/failure"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/target"
	"github.com/colonyfleet/colony/protocol"
)

// Options configure a Client.
type Options struct {
	// Hosts maps the host of a reference to the address, host:port, that is dialled
	// in its place by plain HTTP. The fleet's own registry stands here under the name
	// that packages use, with its address on this machine. https://host:port is dialled
	// with TLS.
	Hosts map[string]string
	// Insecure lists further hosts that are spoken to by plain HTTP. Loopback
	// addresses always are. No other host is, be it of a private network, one that a
	// registry redirects to, or one that gives out its tokens.
	Insecure []string
	// Allow says why the registry of a host may not be spoken to; the error is returned as
	// it is. The host is as references name it; that of Docker Hub is docker.io. Nil: all
	// may be.
	Allow func(host string) error
	// Credentials returns user and password of a registry, empty for none; a password
	// without a user is an identity token. The host is as references name it. Nil:
	// anonymous.
	Credentials func(host string) (user, password string, err error)
	// KeepTags refuses to push where a tag names something else already: an error of kind
	// Conflict.
	KeepTags bool
	// Timeout bounds one operation. Default 1 minute.
	Timeout time.Duration
	// Roots are the certificates that those of registries may come from. Nil: those that the system trusts.
	Roots *x509.CertPool
	// Transport replaces the default one, with its roots.
	Transport http.RoundTripper
}

// A Client reads from and writes to OCI registries. References may begin with
// oci://. It may be used concurrently. Errors are of kind Invalid for a reference or
// an artifact that is not what it should be, NotFound where the registry has no such
// thing, Denied where it wants other credentials, and Unavailable where it is away.
type Client struct {
	opts  Options
	hosts target.Hosts
}

// New returns a Client.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			TLSClientConfig:       &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       30 * time.Second,
			MaxIdleConnsPerHost:   4,
		}
	}
	return &Client{opts: o, hosts: target.New(o.Hosts, o.Insecure)}
}

// Close closes idle connections. The Client may still be used.
func (c *Client) Close() {
	if t, ok := c.opts.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// reach reads a reference to a registry that is going to be asked, which it may not be
// without Allow.
func (c *Client) reach(ref string) (target.Target, error) {
	t, err := c.hosts.Parse(ref)
	if err != nil || c.opts.Allow == nil {
		return t, err
	}
	return t, c.opts.Allow(t.Host())
}

// Resolve finds the credentials of a registry that is dialled.
func (c *Client) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if c.opts.Credentials == nil {
		return authn.Anonymous, nil
	}
	user, password, err := c.opts.Credentials(c.hosts.Written(r.RegistryStr()))
	switch {
	case err != nil:
		return nil, err
	case user == "" && password == "":
		return authn.Anonymous, nil
	case user == "":
		return authn.FromConfig(authn.AuthConfig{IdentityToken: password}), nil
	}
	return authn.FromConfig(authn.AuthConfig{Username: user, Password: password}), nil
}

func (c *Client) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(encrypted.Transport{Next: c.opts.Transport, Plain: c.hosts.Plain()}),
		remote.WithUserAgent("colony"),
		remote.WithAuthFromKeychain(c),
		remote.WithRetryBackoff(remote.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 2}),
	}
}

func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.opts.Timeout)
}

// Image resolves an image reference to its pinned form, host/repository@sha256:….
// A tag that names an image for several platforms keeps the digest of the whole
// index, so that one reference serves every node. A reference that holds a digest is
// looked up in the fleet's own registry alone.
func (c *Client) Image(ctx context.Context, ref string) (string, error) {
	t, err := c.hosts.Parse(ref)
	if err != nil {
		return "", err
	}
	repository := t.Repository()
	if d, ok := t.Written.(name.Digest); ok {
		digest, err := protocol.ParseDigest(d.DigestStr())
		if err == nil && t.Own {
			err = c.there(ctx, t, ref)
		}
		if err != nil {
			return "", err
		}
		return repository + "@" + string(digest), nil
	}
	if t, err = c.reach(ref); err != nil {
		return "", err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var h v1.Hash
	if d, err := remote.Head(t.Dialled, c.options(ctx)...); err == nil {
		h = d.Digest
	} else {
		// Some registries answer HEAD without a digest, or not at all; GET says why.
		d, err := remote.Get(t.Dialled, c.options(ctx)...)
		if err != nil {
			return "", c.lacks(t, failure.Of(ctx, "find image", ref, err))
		}
		h = d.Digest
	}
	digest, err := protocol.ParseDigest(h.String())
	if err != nil {
		return "", err
	}
	return repository + "@" + string(digest), nil
}

// there says why an image that is named by its digest cannot be had.
func (c *Client) there(ctx context.Context, t target.Target, ref string) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	_, err := remote.Head(t.Dialled, c.options(ctx)...)
	return c.lacks(t, failure.Of(ctx, "find image", ref, err))
}

// lacks says how an image comes into the fleet's own registry, where it does not have it.
func (c *Client) lacks(t target.Target, err error) error {
	if !t.Own {
		return err
	}
	return failure.Lacks(err, "as with skopeo copy docker://SOURCE docker://ADDRESS-OF-THE-CO"+strings.TrimPrefix(t.Written.Name(), t.Written.Context().RegistryStr()))
}

// Health returns the check that an image declares, nil where it has none. Of an image for
// several platforms it is that of the first.
func (c *Client) Health(ctx context.Context, ref string) (*protocol.Health, error) {
	t, err := c.reach(ref)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	d, err := remote.Get(t.Dialled, c.options(ctx)...)
	if err != nil {
		return nil, failure.Of(ctx, "read image", ref, err)
	}
	h, err := image.Health(d)
	return h, failure.Of(ctx, "read image", ref, err)
}

// manifest fetches an image manifest; its digest has been checked.
func (c *Client) manifest(ctx context.Context, t target.Target) (*artifact.Manifest, protocol.Digest, error) {
	d, err := remote.Get(t.Dialled, c.options(ctx)...)
	if err != nil {
		return nil, "", err
	}
	digest := protocol.DigestOf(d.Manifest)
	if pinned, ok := t.Written.(name.Digest); ok && pinned.DigestStr() != string(digest) {
		return nil, "", protocol.Errorf(protocol.Invalid, "the registry answered with digest %s", digest)
	}
	if d.MediaType != types.OCIManifestSchema1 {
		return nil, "", protocol.Errorf(protocol.Invalid, "%s: media type %s, want %s", t.Written, d.MediaType, types.OCIManifestSchema1)
	}
	var m artifact.Manifest
	if err := json.Unmarshal(d.Manifest, &m); err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "%s: manifest: %w", t.Written, err)
	}
	return &m, digest, nil
}

// fetch reads a blob of the repository of t and checks its digest and size.
func (c *Client) fetch(ctx context.Context, t target.Target, d artifact.Descriptor) ([]byte, error) {
	digest, err := protocol.ParseDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.Size > artifact.MaxFile {
		return nil, protocol.Errorf(protocol.Invalid, "%s: a layer has %d bytes, the limit is %d", t.Written, d.Size, artifact.MaxFile)
	}
	layer, err := remote.Layer(t.Dialled.Context().Digest(d.Digest), c.options(ctx)...)
	if err != nil {
		return nil, err
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, artifact.MaxFile+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if err := digest.Verify(b); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "%s: %w", t.Written, err)
	}
	return b, nil
}

// Tags returns the tags of the repository of a reference.
func (c *Client) Tags(ctx context.Context, ref string) ([]string, error) {
	t, err := c.reach(ref)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	tags, err := remote.List(t.Dialled.Context(), c.options(ctx)...)
	return tags, failure.Of(ctx, "list tags of", ref, err)
}
