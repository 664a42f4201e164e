// Package sign is what the CO signs and what the LO and the nodes check: statements
// about the desired state of a site, each a COSE_Sign1 (RFC 9052, section 4.2) with Ed25519
// (RFC 8032; RFC 9053, section 2.2). The protected header has the algorithm, the id of
// the key and a content type that names the kind of statement, so that no statement
// passes for one of another kind. docs/adr/0008-signed-desired-state.md says why.
//
// A statement is detached, without its payload, where the payload is sent anyway: in the
// entries of a SiteDesired. Its receiver attaches the payload, and a statement goes on,
// to a node and to a disk, as those bytes.
//
// The package is pure: no I/O and no clock. A signature has no time in it, so that
// no clock decides whether it counts. Its values are not changed after they are made and may be
// used concurrently.
package sign

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/veraison/go-cose"

	"github.com/colonyfleet/colony/protocol"
)

// A Kind is the content type of a statement (RFC 9052, section 3.1).
type Kind string

// The kinds. The list only grows.
const (
	Entry     Kind = "colony.v1/entry"     // a protocol.SiteEntry: what a site runs
	Tombstone Kind = "colony.v1/tombstone" // a protocol.Removal: what a site removes
	Purge     Kind = "colony.v1/purge"     // a protocol.Purge: a volume that a node removes
	Head      Kind = "colony.v1/head"      // a whole protocol.SiteDesired, by digest
	KeySet    Kind = "colony.v1/key-set"   // the keys with which all others are signed
	Root      Kind = "colony.v1/root"      // the root key that follows the one by which it is signed

	Revocations Kind = "colony.v1/revocations" // a protocol.Revocations: whose certificates do not count
	Command     Kind = "colony.v1/command"     // a command.Command: what an operator asks of nodes, once

	// By an LO, with the key of its certificate.
	NodeDesired Kind = "colony.v1/node-desired" // a whole protocol.NodeDesired, by digest
)

const (
	// MaxStatement bounds a statement with its payload, in bytes.
	MaxStatement = 64 << 10
	// maxHeader bounds the encoded headers of a statement, in bytes.
	maxHeader = 256

	keyIDSize = 8
)

// KeyID returns the id of a key in the header of what it signs: the first 8 bytes of the
// SHA-256 of the public key. It only says which key to try.
func KeyID(public ed25519.PublicKey) []byte {
	sum := sha256.Sum256(public)
	return sum[:keyIDSize]
}

// A Signer signs statements with one key.
type Signer struct {
	signer cose.Signer
	public ed25519.PublicKey
}

// NewSigner returns the Signer of a key, which may be anywhere as long as its public half
// is an Ed25519 key.
func NewSigner(key crypto.Signer) (*Signer, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, protocol.Errorf(protocol.Invalid, "a signing key is of type %T: want Ed25519", key.Public())
	}
	s, err := cose.NewSigner(cose.AlgorithmEdDSA, key)
	if err != nil {
		return nil, fmt.Errorf("use signing key: %w", err)
	}
	return &Signer{signer: s, public: public}, nil
}

// Public returns the public half of the key.
func (s *Signer) Public() ed25519.PublicKey { return s.public }

// Sign returns the statement of a payload, with the payload in it. It fails where the key
// does, such as one that is on another machine.
func (s *Signer) Sign(kind Kind, payload []byte) ([]byte, error) {
	return statement(s.signer, KeyID(s.public), kind, payload)
}

// statement signs a payload with a key that has an id.
func statement(by cose.Signer, id []byte, kind Kind, payload []byte) ([]byte, error) {
	statement, err := cose.Sign1(rand.Reader, by, cose.Headers{Protected: cose.ProtectedHeader{
		cose.HeaderLabelAlgorithm: by.Algorithm(), cose.HeaderLabelContentType: string(kind), cose.HeaderLabelKeyID: id,
	}}, payload, nil)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", kind, err)
	}
	return statement, nil
}

// detached returns the statement of a payload, without the payload.
func (s *Signer) detached(kind Kind, payload []byte) ([]byte, error) {
	statement, err := s.Sign(kind, payload)
	if err != nil {
		return nil, err
	}
	m, err := decode(statement)
	if err != nil {
		return nil, err
	}
	m.Payload = nil
	return m.MarshalCBOR()
}

// attach puts the payload into a detached statement.
func attach(statement, payload []byte) ([]byte, error) {
	m, err := decode(statement)
	if err != nil {
		return nil, err
	}
	if m.Payload != nil {
		return nil, refuse(Malformed, "a statement that is to be detached has a payload")
	}
	m.Payload = payload
	return m.MarshalCBOR()
}

// decode reads a statement without checking its signature. It refuses what has more
// than Sign writes: unprotected headers, and headers that must be understood.
func decode(statement []byte) (*cose.Sign1Message, error) {
	switch {
	case len(statement) == 0:
		return nil, refuse(Unsigned, "there is no signature: its sender does not sign, or is of a release that does not")
	case len(statement) > MaxStatement:
		return nil, refuse(Malformed, "a statement has %d bytes: the limit is %d", len(statement), MaxStatement)
	}
	var m cose.Sign1Message
	if err := m.UnmarshalCBOR(statement); err != nil {
		return nil, refuse(Malformed, "a statement is no COSE_Sign1: %v", err)
	}
	if len(m.Headers.RawProtected) > maxHeader || len(m.Headers.Unprotected) > 0 || len(m.Headers.Protected) != 3 {
		return nil, refuse(Malformed, "a statement has other headers than algorithm, content type and key id")
	}
	return &m, nil
}

// keyID returns the id of the key that a statement names.
func keyID(m *cose.Sign1Message) string {
	id, _ := m.Headers.Protected[cose.HeaderLabelKeyID].([]byte)
	return hex.EncodeToString(id)
}

// verify checks a statement of a kind with one key of an algorithm, and returns its payload.
func verify(kind Kind, m *cose.Sign1Message, algorithm cose.Algorithm, key crypto.PublicKey) ([]byte, error) {
	if got := m.Headers.Protected[cose.HeaderLabelContentType]; got != string(kind) {
		return nil, refuse(WrongKind, "a statement says %v where %s is expected", got, kind)
	}
	if alg, err := m.Headers.Protected.Algorithm(); err != nil || alg != algorithm {
		return nil, refuse(Malformed, "a statement is signed with algorithm %v: want %s", m.Headers.Protected[cose.HeaderLabelAlgorithm], algorithm)
	}
	if m.Payload == nil {
		return nil, refuse(Malformed, "a statement has no payload")
	}
	v, err := cose.NewVerifier(algorithm, key)
	if err != nil {
		return nil, fmt.Errorf("use key %s: %w", keyID(m), err)
	}
	if err := m.Verify(nil, v); err != nil {
		return nil, refuse(BadSignature, "the signature of a %s by key %s is not right: what it is over was changed", kind, keyID(m))
	}
	return m.Payload, nil
}
