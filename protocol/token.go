package protocol

// SiteTokens are the join tokens with which nodes of a site may enrol at its LO, without the CO:
// whole state, retained on the site's topic. Since 0.3.0.
type SiteTokens struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Site is the site that it is for.
	Site SiteID `cbor:"1,keyasint"`
	// Tokens are sorted by id. Absent: no node may enrol with one.
	Tokens []NodeToken `cbor:"2,keyasint,omitempty"`
	// Nodes are the nodes that are enrolled, as the CO knows from the LO's events, sorted by node:
	// an LO that took the place of another one knows them by their keys. Absent: the CO knows of
	// none.
	Nodes []EnrolledNode `cbor:"3,keyasint,omitempty"`
	// Revoked are the nodes whose keys were revoked after one of the tokens was made, sorted by
	// node. Absent: there are none.
	Revoked []RevokedNode `cbor:"4,keyasint,omitempty"`
	// Decided are the keys of nodes without a token that were approved or rejected, sorted by key.
	// Absent: there are none.
	Decided []DecidedKey `cbor:"5,keyasint,omitempty"`
}

func (m *SiteTokens) version() uint16 { return m.V }

// A NodeToken is what an LO needs of a join token to enrol nodes with it. Since 0.3.0.
type NodeToken struct {
	ID            string `cbor:"1,keyasint"`           // names the token: 16 hex digits
	Secret        []byte `cbor:"2,keyasint"`           // SHA-256 of its secret
	Uses          uint32 `cbor:"3,keyasint"`           // how many nodes may enrol with it
	ExpiresMillis int64  `cbor:"4,keyasint"`           // when it ends, in milliseconds since 1970
	Replace       bool   `cbor:"5,keyasint,omitempty"` // a node may take a name over from another one; absent: it may not
	// MadeMillis is when the CO made it, in milliseconds since 1970. Absent: it is not known, and
	// the token is valid in spite of every revocation.
	MadeMillis int64 `cbor:"6,keyasint,omitempty"`
}

// A RevokedNode is a name of a node whose key was revoked: a token that was made before does not
// open it, unless it is for one use and lets a node take a name over. Since 0.3.0.
type RevokedNode struct {
	Node     NodeID `cbor:"1,keyasint"` // its id
	AtMillis int64  `cbor:"2,keyasint"` // when the key was revoked last, in milliseconds since 1970
}

// An EnrolledNode is a node with the key that it is known by. Since 0.3.0.
type EnrolledNode struct {
	Node NodeID `cbor:"1,keyasint"` // its id
	Key  []byte `cbor:"2,keyasint"` // SHA-256 of its public key (SubjectPublicKeyInfo)
}

// A DecidedKey is what was decided about a node that has no join token. Since 0.3.0.
type DecidedKey struct {
	Key           []byte `cbor:"1,keyasint"`           // SHA-256 of its public key (SubjectPublicKeyInfo)
	Node          NodeID `cbor:"2,keyasint"`           // the name that it asked by: the decision holds for this name alone
	Approved      bool   `cbor:"3,keyasint,omitempty"` // it may enrol; absent: it was rejected
	Replace       bool   `cbor:"4,keyasint,omitempty"` // it may take the name over from another key; absent: it may not
	ExpiresMillis int64  `cbor:"5,keyasint"`           // when the decision ends, in milliseconds since 1970
}
