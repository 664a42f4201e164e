// Package signtest signs as a CO does, with fixed keys, for tests of receivers that check
// signatures. The keys protect nothing.
package signtest

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// Signer returns the Signer of a key: of equal seeds, the same.
func Signer(t testing.TB, seed byte) *sign.Signer {
	t.Helper()
	s, err := sign.NewSigner(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A CO is a CO's keys.
type CO struct {
	t    testing.TB
	root *sign.Signer
	// Key signs desired states, and KeySet is sent with each.
	Key    *sign.Signer
	KeySet []byte
}

// New returns the keys of a CO with the key set 1. Those of another seed are of another fleet.
func New(t testing.TB, seed byte) *CO {
	t.Helper()
	c := &CO{t: t, root: Signer(t, seed)}
	c.Use(1, Signer(t, seed+1))
	return c
}

// Root returns the public root key.
func (c *CO) Root() ed25519.PublicKey { return c.root.Public() }

// Use makes a key set with a number, whose first key signs from now on.
func (c *CO) Use(number uint64, keys ...*sign.Signer) {
	c.t.Helper()
	set := sign.Keys{V: protocol.Version, Number: number}
	for _, k := range keys {
		set.Signing = append(set.Signing, k.Public())
	}
	var err error
	if c.KeySet, err = c.root.Sign(sign.KeySet, protocol.Marshal(set)); err != nil {
		c.t.Fatal(err)
	}
	c.Key = keys[0]
}

// Sign returns m signed, with the key set.
func (c *CO) Sign(m protocol.SiteDesired) protocol.SiteDesired {
	c.t.Helper()
	m.Content, m.Head, m.KeySet = m.ContentDigest(), nil, nil
	if err := c.Key.Site(&m, nil); err != nil {
		c.t.Fatal(err)
	}
	m.KeySet = c.KeySet
	return m
}

// Attached returns m signed, with statements in place of the detached signatures: as an LO
// hands them on.
func (c *CO) Attached(m protocol.SiteDesired) protocol.SiteDesired {
	c.t.Helper()
	signed := c.Sign(m)
	attached, err := sign.Attach(protocol.Marshal(&signed))
	if err != nil {
		c.t.Fatal(err)
	}
	return attached
}
