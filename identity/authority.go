package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// How long certificates are valid. An issuer shortens what it issues to its own end.
const (
	RootLife      = 20 * 365 * 24 * time.Hour // 20 years
	AuthorityLife = 365 * 24 * time.Hour      // of a site
	LeafLife      = 30 * 24 * time.Hour       // 30 days
	// backdate is how far a certificate's beginning lies before its issue, for peers whose clocks are late.
	backdate = time.Hour
)

// An Authority issues certificates: the root, or that of a site. Its methods may be called
// concurrently where the signer's may.
type Authority struct {
	cert *x509.Certificate
	root *x509.Certificate // cert itself for the root
	key  crypto.Signer
	site protocol.SiteID // empty for the root

	generation atomic.Uint32
}

// SetGeneration says of which generation certificates are from now on, see GenerationOf. Those of a site's authority are
// of that of its certificate at least.
func (a *Authority) SetGeneration(g uint32) { a.generation.Store(min(g, MaxGeneration)) }

// NewKey makes a key of the kind that certificates take: ECDSA P-256.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewRoot makes the root of a fleet, which certifies itself.
func NewRoot(key crypto.Signer, now time.Time) (*Authority, error) {
	t := rootTemplate(keyID(key.Public()), now)
	cert, err := sign(t, t, key.Public(), key, 0)
	if err != nil {
		return nil, fmt.Errorf("make the root certificate: %w", err)
	}
	return &Authority{cert: cert, root: cert, key: key}, nil
}

// rootTemplate is that of a root whose key has an id.
func rootTemplate(id []byte, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"Colony"}, CommonName: "root " + hex.EncodeToString(id[:min(len(id), 4)])},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(RootLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: id,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{domain},
	}
}

// OpenRoot returns the root whose certificate and key were stored.
func OpenRoot(cert *x509.Certificate, key crypto.Signer) (*Authority, error) {
	if err := checkRoot(cert); err != nil {
		return nil, err
	}
	if err := fits(cert, key); err != nil {
		return nil, err
	}
	return &Authority{cert: cert, root: cert, key: key}, nil
}

// Adopt returns the root of a fleet with the key and the name of an authority of another PKI, such as a company's. Its certificate
// certifies itself and names machines of Colony alone, so that machines trust nothing else of that PKI; it ends with that of the
// authority. Programs that trust that PKI accept what the root issues, too: Adopt fails where the authority may not issue such a
// certificate.
func Adopt(cert *x509.Certificate, key crypto.Signer, now time.Time) (*Authority, error) {
	if err := checkKey(key.Public()); err != nil {
		return nil, err
	}
	if err := fits(cert, key); err != nil {
		return nil, err
	}
	if len(cert.SubjectKeyId) == 0 || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, protocol.Errorf(protocol.Invalid, "certificate %s: it is not that of an authority: want key usage certificate signing, and a subject key identifier", SerialOf(cert))
	}
	t := rootTemplate(cert.SubjectKeyId, now)
	t.RawSubject, t.NotBefore, t.NotAfter = cert.RawSubject, cert.NotBefore, cert.NotAfter
	own, err := sign(t, t, key.Public(), key, 0)
	if err != nil {
		return nil, fmt.Errorf("make the root certificate: %w", err)
	}
	a := &Authority{cert: own, root: own, key: key}
	if err := a.try(cert, now); err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "certificate %s of the authority: the fleet's certificates would not count in its PKI: want a path length of 1 or none, no extended key usage but those of TLS, and no name constraint that leaves %s out: %w", SerialOf(cert), domain, err)
	}
	return a, nil
}

// try checks that what a issues, and the authority of a site by it, is verified by another certificate of its key.
func (a *Authority) try(by *x509.Certificate, now time.Time) error {
	const site = "try"
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(by)
	siteCert, err := a.IssueSite(site, a.key.Public(), now)
	if err != nil {
		return err
	}
	between.AddCert(siteCert)
	ofSite, err := OpenSite(siteCert, a.root, a.key)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		by    *Authority
		name  Name
		usage x509.ExtKeyUsage
	}{{a, OfLO(site), x509.ExtKeyUsageServerAuth}, {ofSite, OfNode(site, "node"), x509.ExtKeyUsageClientAuth}} {
		chain, err := c.by.Issue(c.name, a.key.Public(), now)
		if err == nil {
			_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{c.usage}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// OpenSite returns the authority of a site whose certificate, by root, and key were stored.
func OpenSite(cert, root *x509.Certificate, key crypto.Signer) (*Authority, error) {
	site, err := siteOf(cert)
	if err == nil {
		err = cert.CheckSignatureFrom(root)
	}
	if err == nil {
		err = fits(cert, key)
	}
	if err != nil {
		return nil, fmt.Errorf("authority of a site: %w", err)
	}
	return &Authority{cert: cert, root: root, key: key, site: site}, nil
}

// Root is the root's certificate.
func (a *Authority) Root() *x509.Certificate { return a.root }

// Certificate is the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Issue certifies that a key is that of a machine, and returns its chain without the root.
// The root names every machine, the authority of a site only the nodes of that site.
func (a *Authority) Issue(n Name, pub crypto.PublicKey, now time.Time) ([]*x509.Certificate, error) {
	if a.site != "" && (n.Tier != EN || n.Site != a.site) {
		return nil, protocol.Errorf(protocol.Denied, "the authority of site %s cannot certify %s", a.site, n.DNS())
	}
	if parsed, err := ParseName(n.DNS()); err != nil || parsed != n {
		return nil, protocol.Errorf(protocol.Invalid, "certify %q: no machine has this name", n.DNS())
	}
	if err := checkKey(pub); err != nil {
		return nil, err
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if n.Tier != EN {
		usage = append(usage, x509.ExtKeyUsageServerAuth)
	}
	cert, err := a.sign(&x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usage, BasicConstraintsValid: true,
		DNSNames: []string{n.DNS()}, // the subject is empty, which makes this critical: RFC 5280, section 4.2.1.6
	}, pub, now, LeafLife)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", n.DNS(), err)
	}
	if a.site != "" {
		return []*x509.Certificate{cert, a.cert}, nil
	}
	return []*x509.Certificate{cert}, nil
}

// IssueSite certifies the authority of a site: it can name nodes of that site, as clients,
// and can issue no further authority. Only the root does that.
func (a *Authority) IssueSite(site protocol.SiteID, pub crypto.PublicKey, now time.Time) (*x509.Certificate, error) {
	if a.site != "" {
		return nil, protocol.Errorf(protocol.Denied, "the authority of site %s cannot certify another authority", a.site)
	}
	if _, err := protocol.ParseSiteID(string(site)); err != nil {
		return nil, err
	}
	if err := checkKey(pub); err != nil {
		return nil, err
	}
	id := keyID(pub)
	cert, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{Organization: []string{"Colony"}, CommonName: "site " + hex.EncodeToString(id[:4])},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true, SubjectKeyId: id,
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{siteDomain(site)},
	}, pub, now, AuthorityLife)
	if err != nil {
		return nil, fmt.Errorf("certify the authority of site %s: %w", site, err)
	}
	return cert, nil
}

// sign fills in what all certificates have, for one that lasts for life.
func (a *Authority) sign(t *x509.Certificate, pub crypto.PublicKey, now time.Time, life time.Duration) (*x509.Certificate, error) {
	// A clock before the issuer's own beginning is wrong.
	t.NotBefore = latest(now.Add(-backdate), a.cert.NotBefore)
	t.NotAfter = latest(now, t.NotBefore).Add(life)
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	if !t.NotAfter.After(now) {
		return nil, protocol.Errorf(protocol.Unavailable, "the certificate of the authority ended at %s: renew it", a.cert.NotAfter.Format(time.RFC3339))
	}
	return sign(t, a.cert, pub, a.key, max(a.generation.Load(), GenerationOf(a.cert)))
}

func sign(t, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer, generation uint32) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1)) // at most 1<<127: generationBit is above
	t.SerialNumber.Or(t.SerialNumber, new(big.Int).Lsh(big.NewInt(int64(generation)), generationBit))
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Request makes a certificate request (RFC 2986), which proves that its maker has the key. The
// request has no subject: the issuer chooses the name.
func Request(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return der, nil
}

// KeyOf returns the key of a certificate request, after its proof was checked. The kind of the
// key is checked before: the proof of a huge key of another kind would take long.
func KeyOf(request []byte) (crypto.PublicKey, error) {
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "certificate request: %w", err)
	}
	if err := checkKey(r.PublicKey); err != nil {
		return nil, err
	}
	if err := r.CheckSignature(); err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "certificate request: %w", err)
	}
	return r.PublicKey, nil
}

func checkKey(pub crypto.PublicKey) error {
	if k, ok := pub.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return protocol.Errorf(protocol.Invalid, "key of a certificate: want ECDSA P-256")
	}
	return nil
}

// ErrOtherKey says that a key and a certificate do not belong together.
var ErrOtherKey = errors.New("the key is not that of the certificate")

// fits checks that a key is that of a certificate.
func fits(cert *x509.Certificate, key crypto.Signer) error {
	pub, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !pub.Equal(cert.PublicKey) {
		return ErrOtherKey
	}
	return nil
}

// checkRoot checks that a certificate can be the root of a fleet.
func checkRoot(cert *x509.Certificate) error {
	if !cert.IsCA || !cert.BasicConstraintsValid || !bytes.Equal(cert.RawIssuer, cert.RawSubject) {
		return protocol.Errorf(protocol.Invalid, "root certificate: it is not one that certifies itself")
	}
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return protocol.Errorf(protocol.Invalid, "root certificate: %w", err)
	}
	return checkKey(cert.PublicKey)
}

// KeySum is the SHA-256 of a public key, in the form that X.509 gives it
// (SubjectPublicKeyInfo, RFC 5280, section 4.1.2.7). It names a key.
func KeySum(pub crypto.PublicKey) [sha256.Size]byte {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return [sha256.Size]byte{} // no key of a certificate that was parsed
	}
	return sha256.Sum256(der)
}

func keyID(pub crypto.PublicKey) []byte {
	sum := KeySum(pub)
	return sum[:20]
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
