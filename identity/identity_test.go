package identity_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestNames(t *testing.T) {
	t.Parallel()
	for dns, want := range map[string]identity.Name{
		"co.colony.internal":            identity.OfCO(),
		"plant1.lo.colony.internal":     identity.OfLO("plant1"),
		"g-1.plant1.en.colony.internal": identity.OfNode("plant1", "g-1"),
		"co.lo.en.colony.internal":      identity.OfNode("lo", "co"),
	} {
		got, err := identity.ParseName(dns)
		if err != nil || got != want || got.DNS() != dns {
			t.Errorf("ParseName(%q) = %+v, %v; want %+v", dns, got, err, want)
		}
	}
	for _, dns := range []string{
		"", "colony.internal", ".lo.colony.internal", "a.b.lo.colony.internal", "plant1.en.colony.internal", "a.b.c.en.colony.internal",
		"*.plant1.en.colony.internal", "*.lo.colony.internal", "CO.colony.internal", "co.colony.internal.", "g..en.colony.internal", "plant1.lo.colony.internal.example",
		"g_1.plant1.en.colony.internal", "x.co.colony.internal", "plant1.lo.colony.internal\x00",
	} {
		if got, err := identity.ParseName(dns); err == nil {
			t.Errorf("ParseName(%q) = %+v, want an error", dns, got)
		}
	}
}

// TestIssued checks what each authority issues, at both ends of a connection.
func TestIssued(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, _ := identitytest.Site(t, root, "plant1", now)
	for _, c := range []struct {
		by     *identity.Authority
		name   identity.Name
		server bool
	}{
		{root, identity.OfCO(), true},
		{root, identity.OfLO("plant1"), true},
		{root, identity.OfNode("plant1", "g1"), false},
		{site, identity.OfNode("plant1", "g1"), false},
	} {
		chain, err := c.by.Issue(c.name, identitytest.Key(t).Public(), now)
		if err != nil {
			t.Fatal(err)
		}
		p, err := identity.Verify(root.Root(), chain, identity.Client, now)
		if err != nil || p.Name != c.name || p.Serial != identity.SerialOf(chain[0]) || p.Expired {
			t.Errorf("%s as client: %+v, %v", c.name, p, err)
		}
		if _, err := identity.Verify(root.Root(), chain, identity.Server, now); (err == nil) != c.server {
			t.Errorf("%s as server: %v, want one: %v", c.name, err, c.server)
		}
		if _, err := identity.Verify(identitytest.Root(t, now).Root(), chain, identity.Client, now); err == nil {
			t.Errorf("%s: another fleet's root took it", c.name)
		}
	}
	for _, n := range []identity.Name{identity.OfCO(), identity.OfLO("plant1"), identity.OfNode("plant2", "g1"), {}, identity.OfNode("plant1", "a.b")} {
		if _, err := site.Issue(n, identitytest.Key(t).Public(), now); err == nil {
			t.Errorf("the authority of plant1 issued %+v", n)
		}
	}
	if _, err := site.IssueSite("plant1", identitytest.Key(t).Public(), now); err == nil {
		t.Error("the authority of a site issued an authority")
	}
}

// TestKeys checks that only ECDSA P-256 is certified, and that a request proves its key.
func TestKeys(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Issue(identity.OfLO("a"), p384.Public(), now); err == nil {
		t.Error("a P-384 key was certified")
	}
	key := identitytest.Key(t)
	request, err := identity.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	if pub, err := identity.KeyOf(request); err != nil || identity.KeySum(pub) != identity.KeySum(key.Public()) {
		t.Errorf("key of the request: %v", err)
	}
	request[len(request)-1] ^= 1
	if _, err := identity.KeyOf(request); err == nil {
		t.Error("a request with a wrong signature was taken")
	}
	// Of another kind of key the kind is what is wrong, whatever its proof is.
	if request, err = identity.Request(p384); err != nil {
		t.Fatal(err)
	}
	request[len(request)-1] ^= 1
	if _, err := identity.KeyOf(request); err == nil || !strings.Contains(err.Error(), "P-256") {
		t.Errorf("the proof of a P-384 key was looked at: %v", err)
	}
	if _, err := identity.OpenRoot(root.Root(), key); err == nil {
		t.Error("a root was opened with another key")
	}
}

// forged is a certificate that an attacker with the key of a site's authority can make, past the
// checks of Issue.
func forged(t *testing.T, parent *x509.Certificate, key crypto.Signer, edit func(c *x509.Certificate)) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	edit(c)
	pub := identitytest.Key(t).Public()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestStolenSite checks that an owner of the key of a site's authority can be a node of that site
// and nothing else.
func TestStolenSite(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, key := identitytest.Site(t, root, "plant1", now)
	chain := func(c *x509.Certificate) []*x509.Certificate {
		return []*x509.Certificate{c, site.Certificate(), root.Root()}
	}
	for _, as := range []identity.Role{identity.Client, identity.Server} {
		for what, edit := range map[string]func(c *x509.Certificate){
			"co":                  func(c *x509.Certificate) { c.DNSNames = []string{"co.colony.internal"} },
			"its own lo":          func(c *x509.Certificate) { c.DNSNames = []string{"plant1.lo.colony.internal"} },
			"another lo":          func(c *x509.Certificate) { c.DNSNames = []string{"plant2.lo.colony.internal"} },
			"another site's node": func(c *x509.Certificate) { c.DNSNames = []string{"g1.plant2.en.colony.internal"} },
			"the site's domain":   func(c *x509.Certificate) { c.DNSNames = []string{"plant1.en.colony.internal"} },
			"two levels below":    func(c *x509.Certificate) { c.DNSNames = []string{"a.g1.plant1.en.colony.internal"} },
			"a longer site":       func(c *x509.Certificate) { c.DNSNames = []string{"g1.xplant1.en.colony.internal"} },
			"a wildcard":          func(c *x509.Certificate) { c.DNSNames = []string{"*.plant1.en.colony.internal"} },
			"two names": func(c *x509.Certificate) {
				c.DNSNames = []string{"g1.plant1.en.colony.internal", "g2.plant1.en.colony.internal"}
			},
			"no name": func(c *x509.Certificate) { c.Subject.CommonName = "g1.plant1.en.colony.internal" },
			"an address besides": func(c *x509.Certificate) {
				c.DNSNames, c.IPAddresses = []string{"g1.plant1.en.colony.internal"}, []net.IP{net.IPv4(10, 0, 0, 1)}
			},
			"a mail address": func(c *x509.Certificate) {
				c.DNSNames, c.EmailAddresses = []string{"g1.plant1.en.colony.internal"}, []string{"a@b.example"}
			},
			"an authority itself": func(c *x509.Certificate) {
				c.DNSNames, c.IsCA = []string{"g1.plant1.en.colony.internal"}, true
			},
		} {
			if p, err := identity.Verify(root.Root(), chain(forged(t, site.Certificate(), key, edit)), as, now); err == nil {
				t.Errorf("%s was taken for %s", what, p.Name.DNS())
			}
		}
	}
	node := forged(t, site.Certificate(), key, func(c *x509.Certificate) { c.DNSNames = []string{"g1.plant1.en.colony.internal"} })
	if _, err := identity.Verify(root.Root(), chain(node), identity.Client, now); err != nil {
		t.Errorf("a node of its own: %v", err)
	}
	if _, err := identity.Verify(root.Root(), chain(node), identity.Server, now); err == nil {
		t.Error("a node was taken for a server")
	}
	sub := identitytest.Key(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(8), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, site.Certificate(), sub.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	below := forged(t, authority, sub, func(c *x509.Certificate) { c.DNSNames = []string{"g1.plant1.en.colony.internal"} })
	if _, err := identity.Verify(root.Root(), append([]*x509.Certificate{below, authority}, site.Certificate()), identity.Client, now); err == nil {
		t.Error("an authority below that of a site was taken")
	}
}

// TestUnconstrainedAuthority checks that the root's own signature is not enough for an
// authority that package x509 would take.
func TestUnconstrainedAuthority(t *testing.T) {
	t.Parallel()
	rootKey := identitytest.Key(t)
	root, err := identity.NewRoot(rootKey, now)
	if err != nil {
		t.Fatal(err)
	}
	for what, edit := range map[string]func(c *x509.Certificate){
		"without constraints":    func(c *x509.Certificate) { c.PermittedDNSDomains = nil },
		"with a wide constraint": func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"colony.internal"} },
		"with two sites": func(c *x509.Certificate) {
			c.PermittedDNSDomains = append(c.PermittedDNSDomains, "b.en.colony.internal")
		},
		"for servers":        func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) },
		"with a longer path": func(c *x509.Certificate) { c.MaxPathLenZero, c.MaxPathLen = false, 1 },
	} {
		key := identitytest.Key(t)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(9), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
			MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"a.en.colony.internal"},
		}
		edit(c)
		der, err := x509.CreateCertificate(rand.Reader, c, root.Root(), key.Public(), rootKey)
		if err != nil {
			t.Fatal(err)
		}
		authority, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		leaf := forged(t, authority, key, func(c *x509.Certificate) { c.DNSNames = []string{"g1.a.en.colony.internal"} })
		if _, err := identity.Verify(root.Root(), []*x509.Certificate{leaf, authority}, identity.Client, now); err == nil {
			t.Errorf("an authority %s was taken", what)
		}
	}
}

// TestTimes checks when certificates count, and that one that has ended opens VerifyEver only.
func TestTimes(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, _ := identitytest.Site(t, root, "a", now)
	chain, err := site.Issue(identity.OfNode("a", "n"), identitytest.Key(t).Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	year := now.Add(400 * 24 * time.Hour) // the authority has ended as well
	for _, c := range []struct {
		at         time.Time
		good, ever bool
	}{
		{now, true, true},
		{now.Add(-30 * time.Minute), true, true}, // a clock that is late
		{now.Add(-2 * time.Hour), false, false},
		{now.Add(identity.LeafLife + time.Minute), false, true},
		{year, false, true},
	} {
		if _, err := identity.Verify(root.Root(), chain, identity.Client, c.at); (err == nil) != c.good {
			t.Errorf("at %s: %v, want it valid: %v", c.at, err, c.good)
		}
		p, err := identity.VerifyEver(root.Root(), chain, identity.Client, c.at)
		if (err == nil) != c.ever || err == nil && p.Expired == c.good {
			t.Errorf("ever, at %s: %+v, %v, want it: %v", c.at, p, err, c.ever)
		}
	}
	late := now.Add(identity.AuthorityLife - time.Hour)
	if chain, err = site.Issue(identity.OfNode("a", "n"), identitytest.Key(t).Public(), late); err != nil {
		t.Fatal(err)
	}
	if !chain[0].NotAfter.Equal(site.Certificate().NotAfter) {
		t.Errorf("a node's certificate ends at %s, its authority's at %s", chain[0].NotAfter, site.Certificate().NotAfter)
	}
	if _, err := site.Issue(identity.OfNode("a", "n"), identitytest.Key(t).Public(), year); err == nil {
		t.Error("an authority that has ended issued a certificate")
	}
}

// TestNameProperty tries names at random: a chain of a site's authority is taken for a name if
// and only if that is the name of a node of the site.
func TestNameProperty(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	site, key := identitytest.Site(t, root, "s", now)
	r := mathrand.New(mathrand.NewPCG(1, 2))
	labels := []string{"s", "t", "ss", "co", "lo", "en", "n", "colony", "internal", "*", "s.en", ""}
	for range 1500 {
		parts := make([]string, r.IntN(4))
		for i := range parts {
			parts[i] = labels[r.IntN(len(labels))]
		}
		name := strings.Join(append(parts, []string{"en.colony.internal", "lo.colony.internal", "colony.internal", "s.en.colony.internal"}[r.IntN(4)]), ".")
		want, err := identity.ParseName(name)
		may := err == nil && want.Tier == identity.EN && want.Site == "s"
		leaf := forged(t, site.Certificate(), key, func(c *x509.Certificate) { c.DNSNames = []string{name} })
		p, err := identity.Verify(root.Root(), []*x509.Certificate{leaf, site.Certificate()}, identity.Client, now)
		if (err == nil) != may || err == nil && p.Name != want {
			t.Fatalf("%q: %+v, %v, want it: %v", name, p, err, may)
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	root := identitytest.Root(t, now)
	token := identity.NewToken(root.Root())
	again, err := identity.ParseToken(token.String() + "\n")
	if err != nil || again.ID != token.ID || !bytes.Equal(again.Secret, token.Secret) || again.Root != token.Root {
		t.Fatalf("read back: %+v, %v", again, err)
	}
	if !identity.SecretMatches(token.Hash(), again.Secret) || identity.SecretMatches(token.Hash(), identity.NewToken(root.Root()).Secret) || identity.SecretMatches(nil, nil) {
		t.Error("the hash of the secret does not tell secrets apart")
	}
	if pinned, err := token.Pin([]*x509.Certificate{identitytest.Root(t, now).Root(), root.Root()}); err != nil || !pinned.Equal(root.Root()) {
		t.Errorf("pin: %v", err)
	}
	other := identitytest.Root(t, now)
	chain, err := other.Issue(identity.OfCO(), identitytest.Key(t).Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := token.Pin(append(chain, other.Root())); err == nil {
		t.Error("another fleet's root was pinned")
	}
	for _, text := range []string{"", "a.b.c", token.ID, token.String() + ".x", "." + token.String(), token.String()[1:], token.String()[:len(token.String())-2]} {
		if _, err := identity.ParseToken(text); err == nil {
			t.Errorf("token %q was taken", text)
		} else if len(text) > 40 && strings.Contains(err.Error(), text[20:30]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}
