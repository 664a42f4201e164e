package sign

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/veraison/go-cose"

	"github.com/colonyfleet/colony/protocol"
)

// A Keys is the payload of a KeySet statement, which the root key signs.
type Keys struct {
	V uint16 `cbor:"0,keyasint"` // protocol.Version
	// Number grows with each key set. A receiver never goes back to a lower one.
	Number uint64 `cbor:"1,keyasint"`
	// Signing are the public keys in force, of 32 bytes each, at most MaxKeys. A key that a
	// later key set does not have signs nothing new any more.
	Signing [][]byte `cbor:"2,keyasint"`
	// Roots are Root statements, each signed with the root key that the one before names, the last of which names
	// the root key that signs the key set; at most MaxRoots. So a receiver follows from any of these root
	// keys. Absent: the root key is the first one.
	Roots [][]byte `cbor:"3,keyasint,omitempty"`
}

// A RootStatement is the payload of a Root statement.
type RootStatement struct {
	V uint16 `cbor:"0,keyasint"` // protocol.Version
	// Public is the next root key, of 32 bytes.
	Public []byte `cbor:"1,keyasint"`
}

// MaxKeys bounds the keys of a key set, MaxRoots the root keys of before.
const (
	MaxKeys  = 16
	MaxRoots = 16
)

// A Trust is what a receiver believes: a root key, and the latest key set that it, or a root key that followed
// it, has signed.
type Trust struct {
	root      ed25519.PublicKey
	roots     [][]byte // of the key set
	number    uint64
	statement []byte
	keys      map[string]ed25519.PublicKey
}

// NewTrust returns the Trust of a root key without a key set.
func NewTrust(root ed25519.PublicKey) (Trust, error) {
	if len(root) != ed25519.PublicKeySize {
		return Trust{}, protocol.Errorf(protocol.Invalid, "a root key of %d bytes: want an Ed25519 key of %d", len(root), ed25519.PublicKeySize)
	}
	return Trust{root: root}, nil
}

// Root returns the root key in force: the one of NewTrust, or one that followed it.
func (t Trust) Root() ed25519.PublicKey { return t.root }

// Roots returns the Root statements of the key set.
func (t Trust) Roots() [][]byte { return t.roots }

// KeySet returns the statement of the key set; nil: there is none yet.
func (t Trust) KeySet() []byte { return t.statement }

// Number returns the number of the key set; 0: there is none yet.
func (t Trust) Number() uint64 { return t.number }

// Trusts reports whether the key set has a key.
func (t Trust) Trusts(public ed25519.PublicKey) bool {
	return t.keys[hex.EncodeToString(KeyID(public))].Equal(public)
}

// Follow returns t with another key set, or t as it is where that is the one it has, or
// none. It refuses what neither the root key nor one that followed it has signed, and a key set with a lower
// number, or another one with the same. A root key that another one followed does not count any more.
func (t Trust) Follow(statement []byte) (Trust, error) {
	if len(statement) == 0 || bytes.Equal(statement, t.statement) {
		return t, nil
	}
	m, err := decode(statement)
	if err != nil {
		return t, err
	}
	root, err := t.successor(m)
	if err != nil {
		return t, err
	}
	payload, err := verify(KeySet, m, cose.AlgorithmEdDSA, root)
	if err != nil {
		return t, err
	}
	var k Keys
	if err := protocol.Unmarshal(payload, &k); err != nil {
		return t, refuse(Malformed, "the key set cannot be read: %v", err)
	}
	if k.V > protocol.Version || k.Number == 0 || len(k.Signing) == 0 || len(k.Signing) > MaxKeys {
		return t, refuse(Malformed, "the key set %d has version %d and %d keys: want a number from 1, version %d and 1 to %d keys", k.Number, k.V, len(k.Signing), protocol.Version, MaxKeys)
	}
	if k.Number <= t.number {
		return t, refuse(Stale, "the key set has number %d: this machine follows %d already", k.Number, t.number)
	}
	next := Trust{root: root, roots: k.Roots, number: k.Number, statement: bytes.Clone(statement), keys: map[string]ed25519.PublicKey{}}
	for _, public := range k.Signing {
		if len(public) != ed25519.PublicKeySize {
			return t, refuse(Malformed, "the key set %d has a key of %d bytes", k.Number, len(public))
		}
		next.keys[hex.EncodeToString(KeyID(public))] = public
	}
	return next, nil
}

// successor returns the root key that has signed a key set, found by the key id in its header: the root of t, or a later
// root that the Root statements in the key set lead to. successor checks each of these statements; the caller checks the key
// set itself.
func (t Trust) successor(m *cose.Sign1Message) (ed25519.PublicKey, error) {
	root := t.root
	var k Keys
	if signedBy(m, root) || protocol.Unmarshal(m.Payload, &k) != nil || len(k.Roots) > MaxRoots {
		k.Roots = nil
	}
	for _, link := range k.Roots {
		s, err := decode(link)
		if err != nil {
			return nil, err
		}
		if !signedBy(s, root) {
			continue // it is about those of before
		}
		payload, err := verify(Root, s, cose.AlgorithmEdDSA, root)
		if err != nil {
			return nil, err
		}
		var next RootStatement
		if err := protocol.Unmarshal(payload, &next); err != nil || next.V > protocol.Version || len(next.Public) != ed25519.PublicKeySize {
			return nil, refuse(Malformed, "what says which root key follows %x cannot be read: want version %d and a key of %d bytes", KeyID(root), protocol.Version, ed25519.PublicKeySize)
		}
		root = next.Public
	}
	if !signedBy(m, root) {
		return nil, refuse(UnknownKey, "the key set is signed with key %s, the root key is %x, which no root key of the key set follows up to that: give this machine the root key of its fleet", keyID(m), KeyID(t.root))
	}
	return root, nil
}

// signedBy reports whether a statement names a key; whether it is signed with that, verify says.
func signedBy(m *cose.Sign1Message, key ed25519.PublicKey) bool {
	return keyID(m) == hex.EncodeToString(KeyID(key))
}

// Verify checks a statement of a kind with its payload in it, and returns the payload.
func (t Trust) Verify(kind Kind, statement []byte) ([]byte, error) {
	m, err := decode(statement)
	if err != nil {
		return nil, err
	}
	key, ok := t.keys[keyID(m)]
	if !ok {
		return nil, refuse(UnknownKey, "a %s is signed with key %s, which the key set %d does not have", kind, keyID(m), t.number)
	}
	return verify(kind, m, cose.AlgorithmEdDSA, key)
}

// Unchecked returns the payload of a statement of a kind without checking its signature: for a receiver without keys.
func Unchecked(kind Kind, statement []byte) ([]byte, error) {
	m, err := decode(statement)
	if err != nil {
		return nil, err
	}
	if got := m.Headers.Protected[cose.HeaderLabelContentType]; got != string(kind) {
		return nil, refuse(WrongKind, "a statement says %v where %s is expected", got, kind)
	}
	return m.Payload, nil
}

// Signing returns the keys of the key set, in the order of their ids.
func (t Trust) Signing() []ed25519.PublicKey {
	out := make([]ed25519.PublicKey, 0, len(t.keys))
	for _, id := range slices.Sorted(maps.Keys(t.keys)) {
		out = append(out, t.keys[id])
	}
	return out
}
