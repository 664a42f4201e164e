package sign

import (
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// Revocations signs a list of revoked keys.
func (s *Signer) Revocations(m protocol.Revocations) ([]byte, error) {
	return s.Sign(Revocations, protocol.Marshal(&m))
}

// Revocations checks the statement of a list of revoked keys for a site.
func (t Trust) Revocations(site protocol.SiteID, statement []byte) (protocol.Revocations, error) {
	b, err := t.Verify(Revocations, statement)
	if err != nil {
		return protocol.Revocations{}, err
	}
	return ReadRevocations(site, b)
}

// UncheckedRevocations reads the statement of a list for a site without checking its signature: for
// a receiver without keys, and for what was checked when it was adopted.
func UncheckedRevocations(site protocol.SiteID, statement []byte) (protocol.Revocations, error) {
	m, err := decode(statement)
	if err != nil {
		return protocol.Revocations{}, err
	}
	return ReadRevocations(site, m.Payload)
}

// ReadRevocations reads an encoded list for a site.
func ReadRevocations(site protocol.SiteID, list []byte) (m protocol.Revocations, err error) {
	if err := protocol.Unmarshal(list, &m); err != nil {
		return m, refuse(Malformed, "the list of revoked keys cannot be read: %v", err)
	}
	switch {
	case m.Site != site:
		return m, refuse(WrongSite, "the list of revoked keys is for site %q, this is site %q", m.Site, site)
	case m.Number == 0 || len(m.Keys) > protocol.MaxRevoked:
		return m, refuse(Malformed, "the list of revoked keys has number %d and %d keys: want a number from 1, and up to %d keys", m.Number, len(m.Keys), protocol.MaxRevoked)
	case slices.ContainsFunc(m.Keys, func(k protocol.RevokedKey) bool { return len(k.Key) != 32 }):
		return m, refuse(Malformed, "the list of revoked keys has one that is no SHA-256")
	}
	return m, nil
}
