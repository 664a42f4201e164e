package identity

import (
	"crypto/x509"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Peer is a machine whose certificate was verified.
type Peer struct {
	Name Name
	// Serial is the serial number of its certificate, in hex.
	Serial string
	// Key is the SHA-256 of its public key, see KeySum, in hex.
	Key string
	// NotBefore and NotAfter are when its certificate begins and ends.
	NotBefore, NotAfter time.Time
	// Expired says that its certificate has ended; only VerifyEver lets that pass.
	Expired bool
	// Withdrawn says that the key of an authority that signed for it was revoked; only Former lets
	// that pass. The owner of that key can have made the certificate: it proves nothing but the
	// peer's own key.
	Withdrawn bool
}

// A Role is the end of a connection that a peer is at.
type Role uint8

// The roles.
const (
	Client Role = iota + 1 // the peer that connects
	Server                 // the peer that accepts the connection
)

// Verify checks that a chain belongs to a machine. The peer's own certificate is first; the root
// may be left out. Verify checks the signatures up to the root, times, usage, the constraints of
// each authority, and that there is exactly one name of Colony in it. An error is of kind Denied
// and says what is wrong.
func Verify(root *x509.Certificate, chain []*x509.Certificate, as Role, now time.Time) (Peer, error) {
	return verify(root, chain, as, now, false)
}

// VerifyEver is Verify, but for the end of the certificates: it also takes a chain that was
// valid when the peer's own certificate ended. Such a peer may renew its certificate and
// nothing else.
func VerifyEver(root *x509.Certificate, chain []*x509.Certificate, as Role, now time.Time) (Peer, error) {
	return verify(root, chain, as, now, true)
}

func verify(root *x509.Certificate, chain []*x509.Certificate, as Role, now time.Time, ever bool) (Peer, error) {
	if root == nil || len(chain) == 0 {
		return Peer{}, protocol.Errorf(protocol.Denied, "no certificate: a part of Colony connects with the one that it got when it was enrolled")
	}
	leaf := chain[0]
	n, err := nameOf(leaf)
	if err != nil {
		return Peer{}, err
	}
	p := Peer{Name: n, Serial: SerialOf(leaf), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter}
	p.Key = KeyName(leaf)
	at := now
	if ever && now.After(leaf.NotAfter) {
		at, p.Expired = leaf.NotAfter, true
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	usage := x509.ExtKeyUsageClientAuth
	if as == Server {
		usage = x509.ExtKeyUsageServerAuth
	}
	found, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return Peer{}, protocol.Errorf(protocol.Denied, "certificate of %s: %w", n.DNS(), err)
	}
	for _, path := range found {
		if err = checkPath(n, path); err == nil {
			return p, nil
		}
	}
	return Peer{}, err
}

// EndOf is when the first certificate of a chain ends. The chain must not be empty.
func EndOf(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// checkPath checks what package x509 does not demand: that there is no authority but the root
// and one of the node's own site, and that this one is constrained.
func checkPath(n Name, path []*x509.Certificate) error {
	if path[0].IsCA {
		return protocol.Errorf(protocol.Denied, "certificate of %s: it is that of an authority", n.DNS())
	}
	switch len(path) {
	case 2: // by the root
		return nil
	case 3:
		site, err := siteOf(path[1])
		if err != nil {
			return err
		}
		if n.Tier != EN || n.Site != site {
			return protocol.Errorf(protocol.Denied, "certificate of %s: the authority of site %s cannot name it", n.DNS(), site)
		}
		return nil
	}
	return protocol.Errorf(protocol.Denied, "certificate of %s: a chain of %d: want the root's, or that of one site", n.DNS(), len(path))
}

// nameOf returns the one name of a certificate.
func nameOf(c *x509.Certificate) (Name, error) {
	if len(c.DNSNames) != 1 || len(c.IPAddresses)+len(c.URIs)+len(c.EmailAddresses) > 0 {
		return Name{}, protocol.Errorf(protocol.Denied, "certificate %s: want one DNS name and no other", SerialOf(c))
	}
	return ParseName(c.DNSNames[0])
}

// siteOf returns the site that an authority may name, after its constraints were checked.
func siteOf(c *x509.Certificate) (protocol.SiteID, error) {
	others := len(c.ExcludedDNSDomains) + len(c.PermittedIPRanges) + len(c.PermittedEmailAddresses) + len(c.PermittedURIDomains)
	switch {
	case !c.IsCA || !c.BasicConstraintsValid || !c.MaxPathLenZero || c.MaxPathLen != 0:
		return "", protocol.Errorf(protocol.Denied, "certificate %s of an authority: want one that may issue no further authority", SerialOf(c))
	case len(c.PermittedDNSDomains) != 1 || others > 0 || !c.PermittedDNSDomainsCritical:
		return "", protocol.Errorf(protocol.Denied, "certificate %s of an authority: want it constrained to the names of one site", SerialOf(c))
	case !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || len(c.UnknownExtKeyUsage) > 0:
		return "", protocol.Errorf(protocol.Denied, "certificate %s of an authority: want it for TLS clients only", SerialOf(c))
	}
	site, ok := strings.CutSuffix(c.PermittedDNSDomains[0], enSuffix)
	id, err := protocol.ParseSiteID(site)
	if !ok || err != nil {
		return "", protocol.Errorf(protocol.Denied, "certificate %s of an authority: it names %q, which is no site", SerialOf(c), c.PermittedDNSDomains[0])
	}
	return id, nil
}

// SerialOf is the serial number of a certificate in hex, which names it in logs.
func SerialOf(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// KeyName is the KeySum of a certificate's key in hex, which names the key in records and in the
// list of keys that were revoked.
func KeyName(c *x509.Certificate) string {
	sum := KeySum(c.PublicKey)
	return hex.EncodeToString(sum[:])
}
