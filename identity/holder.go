package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Credential is what proves a machine's name.
type Credential struct {
	Key   crypto.Signer
	Chain []*x509.Certificate // its own certificate first, without the root
	Root  *x509.Certificate
}

// Sound returns an error where the parts do not belong together, at any time: the root certifies
// itself, each certificate is signed by the one above it, and the key is that of the first. For a
// credential with changed bytes at least one of these fails.
func (c *Credential) Sound() error {
	if c.Root == nil || len(c.Chain) == 0 {
		return protocol.Errorf(protocol.Invalid, "no certificate")
	}
	if err := c.linked(); err != nil {
		return err
	}
	return fits(c.Chain[0], c.Key)
}

// linked checks the signatures from the root down.
func (c *Credential) linked() error {
	if err := checkRoot(c.Root); err != nil {
		return err
	}
	above := c.Root
	for _, one := range slices.Backward(c.Chain) {
		if err := one.CheckSignatureFrom(above); err != nil {
			return protocol.Errorf(protocol.Invalid, "certificate %s: %w", SerialOf(one), err)
		}
		above = one
	}
	return nil
}

// Check returns the peer that the credential names, at a time; VerifyEver verifies one that has
// ended.
func (c *Credential) Check(clock *Clock) (Peer, error) {
	if len(c.Chain) == 0 {
		return Peer{}, protocol.Errorf(protocol.Denied, "no certificate")
	}
	if err := fits(c.Chain[0], c.Key); err != nil {
		return Peer{}, err
	}
	// A certificate has begun, even if the clock is behind.
	return VerifyEver(c.Root, c.Chain, Client, clock.For(c.Chain[0]))
}

func (c *Credential) certificate() *tls.Certificate {
	return &tls.Certificate{PrivateKey: c.Key, Leaf: c.Chain[0], Certificate: append(c.Raw(), c.Root.Raw)} // the root too, for peers that pin it
}

// Raw returns the certificates, its own first and without the root, in DER.
func (c *Credential) Raw() [][]byte {
	out := make([][]byte, len(c.Chain), len(c.Chain)+1)
	for i, one := range c.Chain {
		out[i] = one.Raw
	}
	return out
}

// A Holder has the credential of this machine, which changes when it is renewed, and makes of
// it both ends of connections. A change does not touch connections that are open: see Left and
// Standing. Its methods
// may be called concurrently.
type Holder struct {
	clock   *Clock
	current atomic.Pointer[Credential]
	revoked atomic.Pointer[map[string]bool] // keys, by KeyName
}

// NewHolder returns a holder without a credential.
func NewHolder(clock *Clock) *Holder { return &Holder{clock: clock} }

// Clock is the time that the holder goes by.
func (h *Holder) Clock() *Clock { return h.clock }

// Set puts a credential in the place of the former one.
func (h *Holder) Set(c *Credential) { h.current.Store(c) }

// Credential is the one in use, or nil.
func (h *Holder) Credential() *Credential { return h.current.Load() }

// SetRevoked says whose certificates no longer count: those of keys that were revoked, by KeyName.
func (h *Holder) SetRevoked(keys []string) {
	m := make(map[string]bool, len(keys))
	for _, k := range keys {
		m[k] = true
	}
	h.revoked.Store(&m)
}

// Revoked reports whether the certificates of a key, by KeyName, no longer count.
func (h *Holder) Revoked(key string) bool {
	m := h.revoked.Load()
	return m != nil && (*m)[key]
}

var errNone = protocol.Errorf(protocol.Unavailable, "this machine has no certificate yet: it must be enrolled")

// Peer returns the peer at the other end of a connection, by its certificates at this moment.
func (h *Holder) Peer(s tls.ConnectionState, as Role) (Peer, error) { return h.peer(s, as, Verify) }

// Client is Peer for the client of a connection.
func (h *Holder) Client(s tls.ConnectionState) (Peer, error) { return h.Peer(s, Client) }

// Former is Peer for a client that connects to renew its certificate, which may be expired or withdrawn. If its key was
// revoked, the error comes with its name; a client whose certificate is not accepted at all gets the zero Peer.
func (h *Holder) Former(s tls.ConnectionState) (Peer, error) {
	p, err := h.verified(s, Client, VerifyEver)
	if err != nil {
		return Peer{}, err
	}
	if err := h.standing(s.PeerCertificates[:1]); err != nil {
		return p, err
	}
	p.Withdrawn = h.standing(s.PeerCertificates) != nil
	return p, nil
}

func (h *Holder) peer(s tls.ConnectionState, as Role, check verifier) (Peer, error) {
	p, err := h.verified(s, as, check)
	if err == nil {
		err = h.standing(s.PeerCertificates)
	}
	if err != nil {
		return Peer{}, err
	}
	return p, nil
}

// verified is peer without the check for revocation.
func (h *Holder) verified(s tls.ConnectionState, as Role, check verifier) (Peer, error) {
	c := h.current.Load()
	if c == nil {
		return Peer{}, errNone
	}
	now := h.clock.Now()
	if len(s.PeerCertificates) > 0 {
		now = h.clock.For(s.PeerCertificates[0])
	}
	return check(c.Root, s.PeerCertificates, as, now)
}

// verifier is Verify or VerifyEver.
type verifier func(root *x509.Certificate, chain []*x509.Certificate, as Role, now time.Time) (Peer, error)

// Left is for how long the certificates of the peer of a connection last, counted from now: until the
// first of them ends. A caller that measures the time from the handshake on is right even if the
// clock is set meanwhile.
func (h *Holder) Left(s tls.ConnectionState) time.Duration {
	if len(s.PeerCertificates) == 0 {
		return 0
	}
	return EndOf(s.PeerCertificates).Sub(h.clock.For(s.PeerCertificates[0]))
}

// Standing returns an error where a certificate of the peer of a connection was revoked, at any
// time.
func (h *Holder) Standing(s tls.ConnectionState) error { return h.standing(s.PeerCertificates) }

// standing checks that no certificate of a chain was revoked.
func (h *Holder) standing(chain []*x509.Certificate) error {
	if m := h.revoked.Load(); m == nil || len(*m) == 0 {
		return nil
	}
	own := h.current.Load()
	for _, c := range chain {
		if own != nil && c.Equal(own.Root) { // it comes with each chain, and is never revoked
			continue
		}
		if h.Revoked(KeyName(c)) {
			return protocol.Errorf(protocol.Denied, "certificate %s: its key was revoked", SerialOf(c))
		}
	}
	return nil
}

// ServerTLS is the server's end of mutual TLS 1.3: only machines of the fleet whose
// certificates count get through the handshake, a resumed one included.
func (h *Holder) ServerTLS() *tls.Config {
	c := h.EnrolTLS()
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection decides
	c.VerifyConnection = func(s tls.ConnectionState) error {
		_, err := h.Peer(s, Client)
		return err
	}
	return c
}

// EnrolTLS is the server's end for machines that are to be enrolled or renewed: a client may
// present a certificate, which proves its key and no more; see Former.
func (h *Holder) EnrolTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := h.current.Load(); c != nil {
				return c.certificate(), nil
			}
			return nil, errNone
		},
	}
}

// sessions are those that this machine may resume. A session goes on with the certificates with which it
// began, so that those of another credential are forgotten; and each is used once: one that the server
// refused would be refused again.
type sessions struct {
	h *Holder

	mu    sync.Mutex
	of    *Credential
	cache tls.ClientSessionCache
}

// current is the cache of the present credential. s.mu is held.
func (s *sessions) current() tls.ClientSessionCache {
	if c := s.h.current.Load(); s.cache == nil || s.of != c {
		s.of, s.cache = c, tls.NewLRUClientSessionCache(4)
	}
	return s.cache
}

// Get implements tls.ClientSessionCache.
func (s *sessions) Get(key string) (*tls.ClientSessionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.current()
	state, ok := c.Get(key)
	c.Put(key, nil)
	return state, ok
}

// Put implements tls.ClientSessionCache.
func (s *sessions) Put(key string, state *tls.ClientSessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current().Put(key, state)
}

// ClientTLS is the client's end of mutual TLS 1.3 with the machine that has the name want,
// wherever it was reached.
func (h *Holder) ClientTLS(want Name) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: want.DNS(), ClientSessionCache: &sessions{h: h},
		// The root is known only once the machine is enrolled, and its clock may be late:
		// VerifyConnection checks all that package tls would, and runs for each connection.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			p, err := h.Peer(s, Server)
			if err != nil {
				return err
			}
			if p.Name != want {
				return protocol.Errorf(protocol.Denied, "the server is %s: want %s", p.Name.DNS(), want.DNS())
			}
			return h.clock.Raise(s.PeerCertificates[0], h.current.Load().Root)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := h.current.Load(); c != nil {
				return c.certificate(), nil
			}
			return nil, errNone
		},
	}
}
