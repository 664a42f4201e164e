package sign

import (
	"crypto"
	"crypto/ed25519"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/protocol"
)

// counting counts what a key signs; it fails once n is limit, unless that is 0.
type counting struct {
	ed25519.PrivateKey
	n, limit *int
}

func (c counting) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if *c.n++; *c.limit > 0 && *c.n > *c.limit {
		return nil, errors.New("the key is away")
	}
	return c.PrivateKey.Sign(random, digest, opts)
}

// TestKeptSignatures signs messages one after the other: each has the bytes that it has without
// what is earlier, and only what differs is signed.
func TestKeptSignatures(t *testing.T) {
	t.Parallel()
	n, limit := 0, 0
	key, err := NewSigner(counting{ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), &n, &limit})
	if err != nil {
		t.Fatal(err)
	}
	var earlier Signatures
	all := len(site().Deployments) + len(site().Removals) + len(site().Purges) + 1
	sign := func(what string, by *Signer, want int, change func(*protocol.SiteDesired)) {
		t.Helper()
		m, plain := site(), site()
		change(&m)
		change(&plain)
		n = 0
		if err := by.Site(&m, &earlier); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n != want {
			t.Errorf("%s: %d signatures, want %d", what, n, want)
		}
		if err := by.Site(&plain, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plain, m); diff != "" {
			t.Errorf("%s (-without +with what is earlier):\n%s", what, diff)
		}
		if len(earlier.parts) != len(m.Deployments)+len(m.Removals)+len(m.Purges)+1 {
			t.Errorf("%s: %d signatures are earlier", what, len(earlier.parts))
		}
	}
	same := func(*protocol.SiteDesired) {}
	sign("first", key, all, same)
	sign("the same", key, 0, same)
	sign("another position", key, 1, func(m *protocol.SiteDesired) { m.Position.Generation++ })
	sign("another site", key, all, func(m *protocol.SiteDesired) { m.Site = "quay" })
	sign("the first site once more", key, all, same)
	sign("another replica count", key, 2, func(m *protocol.SiteDesired) { m.Deployments[0].Placement.Replicas += 7 })
	sign("a removal less", key, 1, func(m *protocol.SiteDesired) {
		m.Deployments[0].Placement.Replicas += 7
		m.Removals = m.Removals[:len(m.Removals)-1]
	})
	other, err := NewSigner(counting{ed25519.NewKeyFromSeed(append(make([]byte, ed25519.SeedSize-1), 1)), &n, &limit})
	if err != nil {
		t.Fatal(err)
	}
	sign("another key", other, all, same)

	m := site()
	m.Site = "quay"
	before := len(earlier.parts)
	if n, limit = 0, 1; other.Site(&m, &earlier) == nil {
		t.Error("a key that is away signs")
	}
	limit = 0
	if len(earlier.parts) != before {
		t.Errorf("after an error %d signatures are earlier, want %d", len(earlier.parts), before)
	}
	sign("after an error", other, 0, same)
}

// BenchmarkSite measures what a publish of a site with 100 deployments costs, of which one changed.
func BenchmarkSite(b *testing.B) {
	key := signer(b, 2)
	m := protocol.SiteDesired{V: 1, Site: "plant", Position: protocol.Position{Epoch: 1}}
	for range 100 {
		m.Deployments = append(m.Deployments, site().Deployments[0])
	}
	for i := range m.Deployments {
		m.Deployments[i].Deployment = protocol.DeploymentName("d" + string(rune('a'+i/26)) + string(rune('a'+i%26)))
	}
	for name, earlier := range map[string]*Signatures{"all": nil, "what changed": {}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.Position.Generation++
				m.Deployments[7].Placement.Replicas++
				copied := m
				if err := key.Site(&copied, earlier); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
