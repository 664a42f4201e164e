package protocol

// SiteTokens are the join tokens with which nodes of a site may enrol at its LO, without the CO:
// whole state, retained on the site's topic. Since 0.3.0.
type SiteTokens struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Site is the site that it is for.
	Site SiteID `cbor:"1,keyasint"`
	// Tokens are sorted by id. Absent: no node may enrol.
	Tokens []NodeToken `cbor:"2,keyasint,omitempty"`
	// Nodes are the nodes that are enrolled, as the CO knows from the LO's events, sorted by node:
	// an LO that took the place of another one knows them by their keys. Absent: the CO knows of
	// none.
	Nodes []EnrolledNode `cbor:"3,keyasint,omitempty"`
	// Revoked are the nodes whose keys were revoked after one of the tokens was made, sorted by
	// node. Absent: there are none.
	Revoked []RevokedNode `cbor:"4,keyasint,omitempty"`
}

func (m *SiteTokens) version() uint16 { return m.V }

// A NodeToken is what an LO needs of a join token to enrol nodes with it. Since 0.3.0.
type NodeToken struct {
	// ID names the token: 16 hex digits.
	ID string `cbor:"1,keyasint"`
	// Secret is the SHA-256 of its secret.
	Secret []byte `cbor:"2,keyasint"`
	// Uses is how many nodes may enrol with it.
	Uses uint32 `cbor:"3,keyasint"`
	// ExpiresMillis is when it ends, in milliseconds since 1970.
	ExpiresMillis int64 `cbor:"4,keyasint"`
	// Replace lets a node take a name over from another one. Absent: it does not.
	Replace bool `cbor:"5,keyasint,omitempty"`
	// MadeMillis is when the CO made it, in milliseconds since 1970. Absent: it is not known, and
	// the token counts whatever was revoked.
	MadeMillis int64 `cbor:"6,keyasint,omitempty"`
}

// A RevokedNode is a name of a node whose key was revoked: a token that was made before does not
// open it, unless it is for one use and lets a node take a name over. Since 0.3.0.
type RevokedNode struct {
	// Node is its id.
	Node NodeID `cbor:"1,keyasint"`
	// AtMillis is when the key was revoked last, in milliseconds since 1970.
	AtMillis int64 `cbor:"2,keyasint"`
}

// An EnrolledNode is a node with the key that it is known by. Since 0.3.0.
type EnrolledNode struct {
	// Node is its id.
	Node NodeID `cbor:"1,keyasint"`
	// Key is the SHA-256 of its public key (SubjectPublicKeyInfo).
	Key []byte `cbor:"2,keyasint"`
}
