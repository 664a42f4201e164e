package protocol

// SiteRevocations hand on to the LO of a site and to its nodes whose certificates no longer count:
// whole state, retained on the site's topic at the CO's broker and at that of the LO. Since 0.3.0.
type SiteRevocations struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Statement is that of the Revocations, which the CO signed (package sign). Absent: the CO does
	// not sign, and List is there.
	Statement []byte `cbor:"1,keyasint,omitempty"`
	// KeySet is the statement of the keys of Statement's signature. Absent: the CO does not sign.
	KeySet []byte `cbor:"2,keyasint,omitempty"`
	// List is the encoded Revocations. Absent: Statement has it.
	List []byte `cbor:"3,keyasint,omitempty"`
}

func (m *SiteRevocations) version() uint16 { return m.V }

// Revocations are the keys of machines of a site whose certificates no longer count, although they
// have not ended. Since 0.3.0.
type Revocations struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Site is the site that it is for.
	Site SiteID `cbor:"1,keyasint"`
	// Number grows with each list of the site. A receiver never goes back to a lower one.
	Number uint64 `cbor:"2,keyasint"`
	// Keys are sorted by key, at most MaxRevoked. Absent: no key is revoked.
	Keys []RevokedKey `cbor:"3,keyasint,omitempty"`
}

func (m *Revocations) version() uint16 { return m.V }

// MaxRevoked bounds the keys of a list: a statement has room for so many.
const MaxRevoked = 1000

// A RevokedKey is the key of a machine, or of the authority of a site: no certificate of it, and
// none that it signed, counts. Since 0.3.0.
type RevokedKey struct {
	// Key is the SHA-256 of the public key (SubjectPublicKeyInfo; RFC 5280, section 4.1.2.7).
	Key []byte `cbor:"1,keyasint"`
	// EndMillis is when the last certificate of the key has ended and the CO takes the key off the
	// list, in milliseconds since 1970.
	EndMillis int64 `cbor:"2,keyasint"`
}
