// Package identitytest makes keys, authorities and certificates for tests.
package identitytest

import (
	"crypto"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// Key returns a new key.
func Key(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Root returns a new root, whose certificate begins at a time.
func Root(t testing.TB, at time.Time) *identity.Authority {
	t.Helper()
	root, err := identity.NewRoot(Key(t), at)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// Site returns the authority of a site by a root, with a new key, and that key. Its certificate begins at a time.
func Site(t testing.TB, root *identity.Authority, site protocol.SiteID, at time.Time) (*identity.Authority, crypto.Signer) {
	t.Helper()
	key := Key(t)
	cert, err := root.IssueSite(site, key.Public(), at)
	if err != nil {
		t.Fatal(err)
	}
	a, err := identity.OpenSite(cert, root.Root(), key)
	if err != nil {
		t.Fatal(err)
	}
	return a, key
}

// Issue returns a certificate of a machine, which begins at a time, with its new key. Its root is root.
func Issue(t testing.TB, by, root *identity.Authority, n identity.Name, at time.Time) *identity.Credential {
	t.Helper()
	key := Key(t)
	chain, err := by.Issue(n, key.Public(), at)
	if err != nil {
		t.Fatal(err)
	}
	return &identity.Credential{Key: key, Chain: chain, Root: root.Root()}
}

// Holder returns a holder of a certificate that begins now, by the clock of the system.
func Holder(t testing.TB, by, root *identity.Authority, n identity.Name) *identity.Holder {
	t.Helper()
	h := identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil))
	h.Set(Issue(t, by, root, n, time.Now()))
	return h
}
