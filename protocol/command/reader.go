package command

import (
	"crypto/ed25519"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// A Reader reads the commands of a site, and checks their signatures. It is for one goroutine at a
// time.
type Reader struct {
	site    protocol.SiteID
	trust   sign.Trust
	checked bool
}

// NewReader returns the Reader of a receiver that trusts the root key of the fleet's key sets. Nil is the mode of development:
// signatures of commands are not checked.
func NewReader(site protocol.SiteID, root ed25519.PublicKey) (*Reader, error) {
	if root == nil {
		return &Reader{site: site}, nil
	}
	trust, err := sign.NewTrust(root)
	if err != nil {
		return nil, err
	}
	return &Reader{site: site, trust: trust, checked: true}, nil
}

// Follow follows a key set, and reports whether it is a later one that counts.
func (r *Reader) Follow(keySet []byte) bool {
	if !r.checked || len(keySet) == 0 {
		return false
	}
	next, err := r.trust.Follow(keySet)
	if err != nil || next.Number() <= r.trust.Number() {
		return false
	}
	r.trust = next
	return true
}

// KeySet returns the key set that is followed; nil: there is none.
func (r *Reader) KeySet() []byte {
	if !r.checked {
		return nil
	}
	return r.trust.KeySet()
}

// Read reads an encoded Envelope. If its key set is a later one, the Reader adopts it, and newer is true. The error is a sign.Refusal, or
// of kind Invalid for bytes that are no Envelope.
func (r *Reader) Read(envelope []byte) (c *Command, newer bool, err error) {
	var m Envelope
	if err := Unmarshal(envelope, &m); err != nil {
		return nil, false, err
	}
	newer = r.Follow(m.KeySet)
	if r.checked {
		c, err = Open(r.trust, r.site, m.Statement)
		return c, newer, err
	}
	b, err := sign.Unchecked(sign.Command, m.Statement)
	if err != nil {
		return nil, false, err
	}
	c, err = read(r.site, b)
	return c, false, err
}
