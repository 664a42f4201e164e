package identity_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/protocol"
)

// certified returns a certificate of the PKI of a company.
func certified(t *testing.T, template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(7)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestAdopt gives a fleet an authority of a company's PKI as its root: its machines trust what that issues and nothing else
// of the company, and programs that trust the company's root accept the machines.
func TestAdopt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	companyKey, key := identitytest.Key(t), identitytest.Key(t)
	self := &x509.Certificate{Subject: pkix.Name{CommonName: "company"}, NotBefore: now, NotAfter: now.AddDate(9, 0, 0), IsCA: true, BasicConstraintsValid: true, MaxPathLen: -1, KeyUsage: x509.KeyUsageCertSign}
	company := certified(t, self, self, companyKey.Public(), companyKey)
	template := func() *x509.Certificate {
		return &x509.Certificate{
			Subject: pkix.Name{CommonName: "company, fleet"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(2, 0, 0), IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1,
			KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1, 2, 3},
		}
	}
	authority := certified(t, template(), company, key.Public(), companyKey)
	root, err := identity.Adopt(authority, key, now)
	if err != nil {
		t.Fatal(err)
	}
	if !root.Root().NotAfter.Equal(authority.NotAfter) {
		t.Errorf("the root ends at %s, the authority at %s", root.Root().NotAfter, authority.NotAfter)
	}
	if reopened, err := identity.OpenRoot(root.Root(), key); err != nil || reopened.Root() != root.Root() {
		t.Errorf("stored: %v", err)
	}
	site, _ := identitytest.Site(t, root, "plant", now)
	roots := x509.NewCertPool()
	roots.AddCert(company)
	for _, c := range []struct {
		by    *identity.Authority
		name  identity.Name
		role  identity.Role
		usage x509.ExtKeyUsage
	}{
		{root, identity.OfCO(), identity.Server, x509.ExtKeyUsageServerAuth},
		{root, identity.OfLO("plant"), identity.Server, x509.ExtKeyUsageServerAuth},
		{site, identity.OfNode("plant", "n1"), identity.Client, x509.ExtKeyUsageClientAuth},
	} {
		machine := identitytest.Issue(t, c.by, root, c.name, now)
		if p, err := identity.Verify(root.Root(), machine.Chain, c.role, now); err != nil || p.Name != c.name {
			t.Errorf("%s in the fleet: %v", c.name, err)
		}
		between := x509.NewCertPool()
		for _, one := range append(machine.Chain[1:], authority) {
			between.AddCert(one)
		}
		if _, err := machine.Chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{c.usage}, DNSName: c.name.DNS()}); err != nil {
			t.Errorf("%s in the company: %v", c.name, err)
		}
	}
	// What the company's other authorities issue names no machine of the fleet.
	otherKey := identitytest.Key(t)
	other := certified(t, template(), company, otherKey.Public(), companyKey)
	forged := certified(t, &x509.Certificate{NotBefore: now, NotAfter: now.AddDate(0, 1, 0), DNSNames: []string{identity.OfLO("plant").DNS()}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, other, otherKey.Public(), otherKey)
	if _, err := identity.Verify(root.Root(), []*x509.Certificate{forged, other, company}, identity.Server, now); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("a machine by another authority of the company: %v", err)
	}

	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(c *x509.Certificate)
		key    crypto.Signer
	}{
		"no further authority": {func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 0, true }, key},
		"ended":                {func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, key},
		"not begun":            {func(c *x509.Certificate) { c.NotBefore = now.Add(time.Hour) }, key},
		"other names": {func(c *x509.Certificate) {
			c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"company.example"}
		}, key},
		"mail alone":   {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} }, key},
		"no authority": {func(c *x509.Certificate) { c.IsCA, c.MaxPathLen, c.KeyUsage = false, 0, x509.KeyUsageDigitalSignature }, key},
		"an RSA key":   {func(*x509.Certificate) {}, long},
	} {
		one := template()
		tt.change(one)
		if _, err := identity.Adopt(certified(t, one, company, tt.key.Public(), companyKey), tt.key, now); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v, want it invalid", name, err)
		}
	}
	if _, err := identity.Adopt(authority, otherKey, now); !errors.Is(err, identity.ErrOtherKey) {
		t.Errorf("with another key: %v", err)
	}
}
