// Package enrol is how a machine gets its certificate, and a new one before that ends: an
// exchange over HTTPS, the same with the CO for an LO and with the LO for a node.
//
// A machine that joins has a token. It compares the fingerprint in it with the root that the
// server presents, and proves the secret only then. One that renews proves its key by TLS, and
// may do so after its certificate has ended. One that has neither applies: it knows the fingerprint
// of the root, and asks until its key is approved. Whether a machine may have a certificate, and by
// what name, a Registrar decides; package enrol issues it.
package enrol

import "github.com/colonyfleet/colony/identity"

// The paths of the exchange.
const (
	joinPath  = "/enrol/v1/join"
	renewPath = "/enrol/v1/renew"
	applyPath = "/enrol/v1/apply"
)

// maxBody bounds a question and an answer, in bytes.
const maxBody = 32 << 10

// A question is what a machine asks, as JSON. Bytes are base64, requests and certificates DER.
type question struct {
	Token   string `json:"token,omitempty"`  // id of the join token
	Secret  []byte `json:"secret,omitempty"` // of the join token
	Device  string `json:"device,omitempty"` // serial number of the machine that applies; absent: it knows none
	Site    string `json:"site"`
	Node    string `json:"node,omitempty"` // absent: it is the LO of the site
	Request []byte `json:"request"`        // for the machine's certificate (RFC 2986)
	// Authority is the request for the certificate of the site's authority; absent but for LOs.
	Authority []byte `json:"authority,omitempty"`
}

// An answer has what was issued.
type answer struct {
	Chain     [][]byte      `json:"chain,omitempty"`     // the machine's own first, without the root
	Root      []byte        `json:"root,omitempty"`      // the root's
	Authority []byte        `json:"authority,omitempty"` // that of the site's authority
	Code      identity.Code `json:"code,omitempty"`      // why it was refused; the others are absent then
	Message   string        `json:"message,omitempty"`   // for people
}
