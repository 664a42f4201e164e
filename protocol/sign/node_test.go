package sign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/veraison/go-cose"

	"github.com/colonyfleet/colony/protocol"
)

// certified returns a new key, as a certificate has.
func certified(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// nodeDesired returns what an LO desires of node n1.
func nodeDesired() protocol.NodeDesired {
	return protocol.NodeDesired{
		V: 1, Node: "n1", Position: protocol.Position{Epoch: 2, Generation: 4}, KeySet: []byte{1}, Certificates: [][]byte{{2}},
		Assignments: []protocol.Assignment{{Deployment: "web", Digest: protocol.DigestOf(nil), Spec: []byte{3}, Signature: []byte{4}, Attempt: 1}},
		Removals:    []protocol.NodeRemoval{{Deployment: "old", Signature: []byte{5}}},
	}
}

// TestNode changes each part of what an LO has signed for a node, as a broker between the two can.
func TestNode(t *testing.T) {
	t.Parallel()
	key, other := certified(t), certified(t)
	signed := nodeDesired()
	if err := Node(key, "plant", &signed); err != nil {
		t.Fatal(err)
	}
	if err := CheckNode(key.Public(), "plant", protocol.Marshal(&signed)); err != nil {
		t.Fatalf("as it was signed: %v", err)
	}
	own := signer(t, 1)
	id, err := certifiedID(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	by, err := cose.NewSigner(cose.AlgorithmES256, key)
	if err != nil {
		t.Fatal(err)
	}
	stated := func(kind Kind, payload []byte) []byte { return must(statement(by, id, kind, payload)) }
	for name, tt := range map[string]struct {
		change func(m *protocol.NodeDesired)
		want   Reason
	}{
		"without a signature": {func(m *protocol.NodeDesired) { m.Signature = nil }, Unsigned},
		"no signature":        {func(m *protocol.NodeDesired) { m.Signature = []byte{1} }, Malformed},
		"by another key":      {func(m *protocol.NodeDesired) { _ = Node(other, "plant", m) }, UnknownKey},
		"by the CO's key":     {func(m *protocol.NodeDesired) { m.Signature, _ = own.Sign(NodeDesired, []byte{1}) }, UnknownKey},
		"for another site":    {func(m *protocol.NodeDesired) { _ = Node(key, "quay", m) }, WrongSite},
		"another kind": {func(m *protocol.NodeDesired) {
			m.Signature = stated(Entry, protocol.Marshal(NodeStatement{Site: "plant"}))
		}, WrongKind},
		"no statement in it": {func(m *protocol.NodeDesired) {
			m.Signature = stated(NodeDesired, []byte{1})
		}, Malformed},
		"altered signature": {func(m *protocol.NodeDesired) { m.Signature[len(m.Signature)-1] ^= 1 }, BadSignature},
		"another node":      {func(m *protocol.NodeDesired) { m.Node = "n2" }, Mismatch},
		"another position":  {func(m *protocol.NodeDesired) { m.Position.Generation++ }, Mismatch},
		"another attempt":   {func(m *protocol.NodeDesired) { m.Assignments[0].Attempt++ }, Mismatch},
		"a rollback":        {func(m *protocol.NodeDesired) { m.Assignments[0].Rollback = true }, Mismatch},
		"an assignment less": {func(m *protocol.NodeDesired) {
			m.Assignments = nil
		}, Mismatch},
		"a removal less":     {func(m *protocol.NodeDesired) { m.Removals = nil }, Mismatch},
		"another removal":    {func(m *protocol.NodeDesired) { m.Removals[0].Deployment = "web" }, Mismatch},
		"a purge more":       {func(m *protocol.NodeDesired) { m.Purges = []protocol.NodePurge{{Deployment: "web"}} }, Mismatch},
		"another key set":    {func(m *protocol.NodeDesired) { m.KeySet = []byte{9} }, Mismatch},
		"another cited text": {func(m *protocol.NodeDesired) { m.Assignments[0].Signature = []byte{9} }, Mismatch},
	} {
		m := nodeDesired()
		m.Signature = append([]byte(nil), signed.Signature...)
		tt.change(&m)
		if err := CheckNode(key.Public(), "plant", protocol.Marshal(&m)); ReasonOf(err) != tt.want || protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	// A field that this release does not know is covered, too.
	var fields Fields
	if err := protocol.Unmarshal(protocol.Marshal(&signed), &fields); err != nil {
		t.Fatal(err)
	}
	fields[99] = protocol.Marshal(1)
	if err := CheckNode(key.Public(), "plant", protocol.Marshal(fields)); ReasonOf(err) != Mismatch {
		t.Errorf("with a field of a later release: %v", err)
	}
}

// TestNodeKeys checks that only a key that certificates can have signs.
func TestNodeKeys(t *testing.T) {
	t.Parallel()
	long, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{long, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))} {
		m := nodeDesired()
		if err := Node(key, "plant", &m); err == nil || m.Signature != nil || !strings.Contains(err.Error(), "want ECDSA P-256") {
			t.Errorf("signed with %T: %v", key.Public(), err)
		}
		if err := CheckNode(key.Public(), "plant", protocol.Marshal(&m)); err == nil {
			t.Errorf("checked with %T", key.Public())
		}
	}
}
