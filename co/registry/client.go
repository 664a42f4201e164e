package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/colonyfleet/colony/protocol"
)

// maxBlob bounds what the client reads into memory: an archive or a file of a
// package, in bytes.
const maxBlob = 64 << 20

// ClientOptions configure a Client.
type ClientOptions struct {
	// Hosts maps the host of a reference to the address, host:port, that is dialled
	// in its place by plain HTTP. The fleet's own registry stands here under the name
	// that packages use, with its address on this machine.
	Hosts map[string]string
	// Insecure lists further hosts that are spoken to by plain HTTP. Loopback
	// addresses always are.
	Insecure []string
	// Timeout bounds one operation. Default 1 minute.
	Timeout time.Duration
	// Transport replaces the default one.
	Transport http.RoundTripper
}

// A Client reads from and writes to OCI registries. References may begin with
// oci://. It may be used concurrently. Errors are of kind Invalid for a reference or
// an artifact that is not what it should be, NotFound where the registry has no such
// thing, Denied where it wants other credentials, and Unavailable where it is away.
type Client struct {
	opts     ClientOptions
	insecure map[string]bool
}

// NewClient returns a Client.
func NewClient(o ClientOptions) *Client {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       30 * time.Second,
			MaxIdleConnsPerHost:   4,
		}
	}
	c := &Client{opts: o, insecure: map[string]bool{}}
	for _, h := range o.Insecure {
		c.insecure[h] = true
	}
	return c
}

// Close closes idle connections. The Client may still be used.
func (c *Client) Close() {
	if t, ok := c.opts.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// A target is a reference in two forms: as it was written, and where it is dialled.
type target struct {
	written name.Reference
	dialled name.Reference
}

// parse reads a reference, with or without oci://.
func (c *Client) parse(ref string) (target, error) {
	bare := strings.TrimPrefix(ref, "oci://")
	written, err := name.ParseReference(bare)
	if err != nil {
		return target{}, protocol.Errorf(protocol.Invalid, "reference %q: %w", ref, err)
	}
	host := written.Context().RegistryStr()
	address, mapped := c.opts.Hosts[host]
	if !mapped && !c.insecure[host] {
		return target{written: written, dialled: written}, nil
	}
	if !mapped {
		address = host
	}
	registry, err := name.NewRegistry(address, name.Insecure)
	if err != nil {
		return target{}, protocol.Errorf(protocol.Invalid, "address %q of registry %s: %w", address, host, err)
	}
	repository := registry.Repo(written.Context().RepositoryStr())
	if d, ok := written.(name.Digest); ok {
		return target{written: written, dialled: repository.Digest(d.DigestStr())}, nil
	}
	return target{written: written, dialled: repository.Tag(written.Identifier())}, nil
}

func (c *Client) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(c.opts.Transport),
		remote.WithUserAgent("colony"),
		remote.WithRetryBackoff(remote.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 2}),
	}
}

func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.opts.Timeout)
}

// failed gives an error of a registry its kind.
func failed(ctx context.Context, verb, ref string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%s %s: %w", verb, ref, cause)
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return err
	}
	kind := protocol.Unavailable
	if te, ok := errors.AsType[*transport.Error](err); ok {
		switch {
		case te.StatusCode == http.StatusNotFound:
			return protocol.Errorf(protocol.NotFound, "%s %s: the registry does not have it", verb, ref)
		case te.StatusCode == http.StatusUnauthorized, te.StatusCode == http.StatusForbidden:
			kind = protocol.Denied
		case te.StatusCode == http.StatusTooManyRequests, te.StatusCode == http.StatusRequestTimeout:
		case te.StatusCode < 500:
			kind = protocol.Invalid
		}
	}
	return protocol.Errorf(kind, "%s %s: %w", verb, ref, err)
}

// Image resolves an image reference to its pinned form, host/repository@sha256:….
// A tag that names an image for several platforms keeps the digest of the whole
// index, so that one reference serves every node. A reference that holds a digest is
// not looked up.
func (c *Client) Image(ctx context.Context, ref string) (string, error) {
	t, err := c.parse(ref)
	if err != nil {
		return "", err
	}
	repository := pulledName(t.written.Context())
	if d, ok := t.written.(name.Digest); ok {
		digest, err := protocol.ParseDigest(d.DigestStr())
		if err != nil {
			return "", err
		}
		return repository + "@" + string(digest), nil
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var h v1.Hash
	if d, err := remote.Head(t.dialled, c.options(ctx)...); err == nil {
		h = d.Digest
	} else {
		// Some registries answer HEAD without a digest, or not at all; GET tells why.
		d, err := remote.Get(t.dialled, c.options(ctx)...)
		if err != nil {
			return "", failed(ctx, "find image", ref, err)
		}
		h = d.Digest
	}
	digest, err := protocol.ParseDigest(h.String())
	if err != nil {
		return "", err
	}
	return repository + "@" + string(digest), nil
}

// pulledName is the repository as container engines name it.
func pulledName(r name.Repository) string {
	if r.RegistryStr() == name.DefaultRegistry {
		return "docker.io/" + r.RepositoryStr()
	}
	return r.Name()
}

// manifest fetches an image manifest; its digest has been checked.
func (c *Client) manifest(ctx context.Context, t target) (*manifestFile, protocol.Digest, error) {
	d, err := remote.Get(t.dialled, c.options(ctx)...)
	if err != nil {
		return nil, "", err
	}
	digest := protocol.DigestOf(d.Manifest)
	if wanted, ok := t.written.(name.Digest); ok && wanted.DigestStr() != string(digest) {
		return nil, "", protocol.Errorf(protocol.Invalid, "the registry answered with digest %s", digest)
	}
	if d.MediaType != types.OCIManifestSchema1 {
		return nil, "", protocol.Errorf(protocol.Invalid, "%s: media type %s, want %s", t.written, d.MediaType, types.OCIManifestSchema1)
	}
	var m manifestFile
	if err := json.Unmarshal(d.Manifest, &m); err != nil {
		return nil, "", protocol.Errorf(protocol.Invalid, "%s: manifest: %w", t.written, err)
	}
	return &m, digest, nil
}

// fetch reads a blob of the repository of t and checks its digest and size.
func (c *Client) fetch(ctx context.Context, t target, d descriptor) ([]byte, error) {
	digest, err := protocol.ParseDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.Size > maxBlob {
		return nil, protocol.Errorf(protocol.Invalid, "%s: a layer has %d bytes, the limit is %d", t.written, d.Size, maxBlob)
	}
	layer, err := remote.Layer(t.dialled.Context().Digest(d.Digest), c.options(ctx)...)
	if err != nil {
		return nil, err
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, maxBlob+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if err := digest.Verify(b); err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "%s: %w", t.written, err)
	}
	return b, nil
}

// Tags returns the tags of the repository of a reference.
func (c *Client) Tags(ctx context.Context, ref string) ([]string, error) {
	t, err := c.parse(ref)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	tags, err := remote.List(t.dialled.Context(), c.options(ctx)...)
	return tags, failed(ctx, "list tags of", ref, err)
}
