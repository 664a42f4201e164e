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
}

// MaxKeys bounds the keys of a key set.
const MaxKeys = 16

// A Trust is what a receiver believes: a root key, and the latest key set that it signed.
type Trust struct {
	root      ed25519.PublicKey
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

// KeySet returns the statement of the key set; nil: there is none yet.
func (t Trust) KeySet() []byte { return t.statement }

// Number returns the number of the key set; 0: there is none yet.
func (t Trust) Number() uint64 { return t.number }

// Trusts reports whether the key set has a key.
func (t Trust) Trusts(public ed25519.PublicKey) bool {
	return t.keys[hex.EncodeToString(KeyID(public))].Equal(public)
}

// Follow returns t with another key set, or t as it is where that is the one it has, or
// none. It refuses what the root key did not sign, and a key set with a lower number, or
// another one with the same.
func (t Trust) Follow(statement []byte) (Trust, error) {
	if len(statement) == 0 || bytes.Equal(statement, t.statement) {
		return t, nil
	}
	m, err := decode(statement)
	if err != nil {
		return t, err
	}
	if keyID(m) != hex.EncodeToString(KeyID(t.root)) {
		return t, refuse(UnknownKey, "the key set is signed with key %s, the root key is %x: give this machine the root key of its fleet", keyID(m), KeyID(t.root))
	}
	payload, err := verify(KeySet, m, cose.AlgorithmEdDSA, t.root)
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
	next := Trust{root: t.root, number: k.Number, statement: bytes.Clone(statement), keys: map[string]ed25519.PublicKey{}}
	for _, public := range k.Signing {
		if len(public) != ed25519.PublicKeySize {
			return t, refuse(Malformed, "the key set %d has a key of %d bytes", k.Number, len(public))
		}
		next.keys[hex.EncodeToString(KeyID(public))] = public
	}
	return next, nil
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
