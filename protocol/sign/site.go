package sign

import (
	"fmt"

	"github.com/colonyfleet/colony/protocol"
)

// An EntryStatement is the payload of an Entry: an entry for a site, without its Spec and
// Signature. Its Digest names the Spec.
type EntryStatement struct {
	// Site is the site that the entry is for.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Entry is the entry.
	Entry protocol.SiteEntry `cbor:"2,keyasint"`
}

// A TombstoneStatement is the payload of a Tombstone: a removal for a site, without its
// Signature.
type TombstoneStatement struct {
	// Site is the site that is to remove the deployment.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Removal is the removal.
	Removal protocol.Removal `cbor:"2,keyasint"`
}

// A PurgeStatement is the payload of a Purge: a purge for a site, without its Signature.
type PurgeStatement struct {
	// Site is the site of the node.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Purge is the purge.
	Purge protocol.Purge `cbor:"2,keyasint"`
}

// A HeadStatement is the payload of a Head.
type HeadStatement struct {
	// Site is the site that the message is for.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Position is that of the message.
	Position protocol.Position `cbor:"2,keyasint"`
	// Digest is that of the encoded SiteDesired without Head, KeySet and the Specs of its
	// entries: of all else, also of fields that the receiver does not know.
	Digest protocol.Digest `cbor:"3,keyasint"`
}

// The keys of a SiteDesired and of its parts that the statements about them leave out.
const (
	keyDeployments    = 5
	keyRemovals       = 10
	keyPurges         = 11
	keyHead           = 16
	keyKeySet         = 17
	keyEntrySpec      = 4
	keyEntrySignature = 5
	keyRemovalSign    = 4
	keyPurgeSign      = 5
)

// part is a payload as its receiver makes it: of the fields that arrived.
type part struct {
	// Site is the site of the message.
	Site protocol.SiteID `cbor:"1,keyasint"`
	// Fields are those of the entry, removal or purge without its signature.
	Fields Fields `cbor:"2,keyasint"`
}

// Site signs a whole SiteDesired: it fills in the signature of each entry, tombstone and
// purge, and the head. What it has in common with the last message that was signed with earlier is
// not signed anew; nil: everything is. After an error earlier is as before.
func (s *Signer) Site(m *protocol.SiteDesired, earlier *Signatures) (err error) {
	parts := earlier.reuse(s.public)
	deployments := make([]protocol.SiteEntry, len(m.Deployments))
	for i, e := range m.Deployments {
		unsigned := e
		unsigned.Spec, unsigned.Signature = nil, nil
		if e.Signature, err = parts.signature(Entry, protocol.Marshal(EntryStatement{m.Site, unsigned}), s.detached); err != nil {
			return fmt.Errorf("sign deployment %s: %w", e.Deployment, err)
		}
		deployments[i] = e
	}
	removals := make([]protocol.Removal, len(m.Removals))
	for i, r := range m.Removals {
		r.Signature = nil
		if r.Signature, err = parts.signature(Tombstone, protocol.Marshal(TombstoneStatement{m.Site, r}), s.detached); err != nil {
			return fmt.Errorf("sign the removal of deployment %s: %w", r.Deployment, err)
		}
		removals[i] = r
	}
	purges := make([]protocol.Purge, len(m.Purges))
	for i, p := range m.Purges {
		p.Signature = nil
		if p.Signature, err = parts.signature(Purge, protocol.Marshal(PurgeStatement{m.Site, p}), s.detached); err != nil {
			return fmt.Errorf("sign the purge of deployment %s: %w", p.Deployment, err)
		}
		purges[i] = p
	}
	m.Deployments, m.Removals, m.Purges = deployments, removals, purges
	digest, err := headDigest(protocol.Marshal(m))
	if err != nil {
		return err
	}
	if m.Head, err = parts.signature(Head, protocol.Marshal(HeadStatement{m.Site, m.Position, digest}), s.Sign); err != nil {
		return err
	}
	earlier.keep(s.public, parts)
	return nil
}

// headDigest returns the digest of a whole SiteDesired that its head has.
func headDigest(message []byte) (protocol.Digest, error) {
	var fields Fields
	if err := protocol.Unmarshal(message, &fields); err != nil {
		return "", err
	}
	fields = fields.Without(keyHead, keyKeySet)
	if raw, ok := fields[keyDeployments]; ok {
		var entries []Fields
		if err := protocol.Unmarshal(raw, &entries); err != nil {
			return "", err
		}
		for i := range entries {
			entries[i] = entries[i].Without(keyEntrySpec)
		}
		fields[keyDeployments] = protocol.Marshal(entries)
	}
	return protocol.DigestOf(protocol.Marshal(fields)), nil
}

// Site checks a whole encoded SiteDesired: its head, and each entry, tombstone and purge.
// It returns what the message holds, with statements in place of the detached signatures:
// each has its payload in it and can be handed on. KeySet is not looked at: Follow it
// before. An error refuses the message as a whole.
func (t Trust) Site(message []byte) (protocol.SiteDesired, error) {
	var m protocol.SiteDesired
	if err := protocol.Unmarshal(message, &m); err != nil {
		return m, err
	}
	payload, err := t.Verify(Head, m.Head)
	if err != nil {
		return m, err
	}
	var h HeadStatement
	if err := protocol.Unmarshal(payload, &h); err != nil {
		return m, refuse(Malformed, "the head cannot be read: %v", err)
	}
	if h.Site != m.Site {
		return m, refuse(WrongSite, "the head is signed for site %q, the desired state says %q", h.Site, m.Site)
	}
	digest, err := headDigest(message)
	if err != nil {
		return m, err
	}
	if h.Position != m.Position || h.Digest != digest {
		return m, refuse(Mismatch, "the head is signed over %s at %s, the desired state is %s at %s", h.Digest.Short(), h.Position, digest.Short(), m.Position)
	}
	return m, parts(message, &m, func(kind Kind, signature, payload []byte) ([]byte, error) {
		statement, err := attach(signature, payload)
		if err == nil {
			_, err = t.Verify(kind, statement)
		}
		return statement, err
	})
}

// parts replaces the signature of each part of m by what statement returns for it and
// for the payload that it is over.
func parts(message []byte, m *protocol.SiteDesired, statement func(kind Kind, signature, payload []byte) ([]byte, error)) error {
	var fields Fields
	if err := protocol.Unmarshal(message, &fields); err != nil {
		return err
	}
	for _, list := range []struct {
		key       uint64
		kind      Kind
		without   []uint64
		signature func(i int) *[]byte
	}{
		{keyDeployments, Entry, []uint64{keyEntrySpec, keyEntrySignature}, func(i int) *[]byte { return &m.Deployments[i].Signature }},
		{keyRemovals, Tombstone, []uint64{keyRemovalSign}, func(i int) *[]byte { return &m.Removals[i].Signature }},
		{keyPurges, Purge, []uint64{keyPurgeSign}, func(i int) *[]byte { return &m.Purges[i].Signature }},
	} {
		raw, ok := fields[list.key]
		if !ok {
			continue
		}
		var parts []Fields
		if err := protocol.Unmarshal(raw, &parts); err != nil {
			return err
		}
		for i, p := range parts {
			signature := list.signature(i)
			s, err := statement(list.kind, *signature, protocol.Marshal(part{m.Site, p.Without(list.without...)}))
			if err != nil {
				return err
			}
			*signature = s
		}
	}
	return nil
}

// Entry checks the statement of an entry for a site, as Trust.Site returns it.
func (t Trust) Entry(site protocol.SiteID, statement []byte) (protocol.SiteEntry, error) {
	var s EntryStatement
	err := t.about(Entry, statement, &s)
	if err == nil && s.Site != site {
		err = refuse(WrongSite, "the entry of deployment %q is signed for site %q, this is site %q", s.Entry.Deployment, s.Site, site)
	}
	return s.Entry, err
}

// Tombstone checks the statement of a removal for a site, as Trust.Site returns it.
func (t Trust) Tombstone(site protocol.SiteID, statement []byte) (protocol.Removal, error) {
	var s TombstoneStatement
	err := t.about(Tombstone, statement, &s)
	if err == nil && s.Site != site {
		err = refuse(WrongSite, "the removal of deployment %q is signed for site %q, this is site %q", s.Removal.Deployment, s.Site, site)
	}
	return s.Removal, err
}

// Purge checks the statement of a purge for a site, as Trust.Site returns it.
func (t Trust) Purge(site protocol.SiteID, statement []byte) (protocol.Purge, error) {
	var s PurgeStatement
	err := t.about(Purge, statement, &s)
	if err == nil && s.Site != site {
		err = refuse(WrongSite, "the purge of deployment %q is signed for site %q, this is site %q", s.Purge.Deployment, s.Site, site)
	}
	return s.Purge, err
}

// about checks a statement and reads its payload.
func (t Trust) about(kind Kind, statement []byte, payload any) error {
	b, err := t.Verify(kind, statement)
	if err != nil {
		return err
	}
	if err := protocol.Unmarshal(b, payload); err != nil {
		return refuse(Malformed, "a %s cannot be read: %v", kind, err)
	}
	return nil
}

// Attach returns what a whole encoded SiteDesired holds, with statements in place of the
// detached signatures as Trust.Site returns it, and checks none of them: for a receiver
// without keys, which hands them on. What has no signature gets none.
func Attach(message []byte) (protocol.SiteDesired, error) {
	var m protocol.SiteDesired
	if err := protocol.Unmarshal(message, &m); err != nil {
		return m, err
	}
	return m, parts(message, &m, func(_ Kind, signature, payload []byte) ([]byte, error) {
		if len(signature) == 0 {
			return nil, nil
		}
		return attach(signature, payload)
	})
}
