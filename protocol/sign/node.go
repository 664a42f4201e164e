package sign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"

	"github.com/veraison/go-cose"

	"github.com/colonyfleet/colony/protocol"
)

// A NodeStatement is the payload of a NodeDesired: what an LO desires of a node of its site.
type NodeStatement struct {
	// Site is the site of the LO and of the node.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Digest is that of the encoded NodeDesired without Signature: of all else, also of fields that
	// the receiver does not know. It has the node and the position.
	Digest protocol.Digest `cbor:"2,keyasint"`
}

// keyNodeSignature is the key of a NodeDesired that the statement about it leaves out.
const keyNodeSignature = 11

// Node signs a NodeDesired of a site with the key of the LO's certificate, ECDSA P-256 (ES256; RFC 9053,
// section 2.1), and fills in its Signature. It fails where the key does.
func Node(key crypto.Signer, site protocol.SiteID, m *protocol.NodeDesired) error {
	id, err := certifiedID(key.Public())
	if err != nil {
		return err
	}
	s, err := cose.NewSigner(cose.AlgorithmES256, key)
	if err != nil {
		return fmt.Errorf("use the key of the certificate: %w", err)
	}
	m.Signature = nil
	m.Signature, err = statement(s, id, NodeDesired, protocol.Marshal(NodeStatement{site, protocol.DigestOf(protocol.Marshal(m))}))
	return err
}

// CheckNode checks that an encoded NodeDesired is signed, for a site, with the key of the certificate
// of its LO. An error refuses the message as a whole. What the CO signed of it is not looked at.
func CheckNode(key crypto.PublicKey, site protocol.SiteID, message []byte) error {
	var m protocol.NodeDesired
	if err := protocol.Unmarshal(message, &m); err != nil {
		return err
	}
	id, err := certifiedID(key)
	if err != nil {
		return err
	}
	signed, err := decode(m.Signature)
	if err != nil {
		return err
	}
	if keyID(signed) != hex.EncodeToString(id) {
		return refuse(UnknownKey, "the desired state of node %s is signed with key %s, the certificate beside it is of key %x", m.Node, keyID(signed), id)
	}
	payload, err := verify(NodeDesired, signed, cose.AlgorithmES256, key)
	if err != nil {
		return err
	}
	var s NodeStatement
	if err := protocol.Unmarshal(payload, &s); err != nil {
		return refuse(Malformed, "what is signed of the desired state of node %s cannot be read: %v", m.Node, err)
	}
	if s.Site != site {
		return refuse(WrongSite, "the desired state of node %s is signed for site %q, this is site %q", m.Node, s.Site, site)
	}
	var fields Fields
	if err := protocol.Unmarshal(message, &fields); err != nil {
		return err
	}
	if got := protocol.DigestOf(protocol.Marshal(fields.Without(keyNodeSignature))); got != s.Digest {
		return refuse(Mismatch, "signed is the desired state %s of node %s, what came is %s", s.Digest.Short(), m.Node, got.Short())
	}
	return nil
}

// certifiedID returns the id of the key of a certificate in the header of what it signs: the first 8
// bytes of the SHA-256 of its SubjectPublicKeyInfo (RFC 5280, section 4.1.2.7).
func certifiedID(public crypto.PublicKey) ([]byte, error) {
	if k, ok := public.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, protocol.Errorf(protocol.Invalid, "the key of a certificate is of type %T: want ECDSA P-256", public)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("encode the key of a certificate: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:keyIDSize], nil
}
