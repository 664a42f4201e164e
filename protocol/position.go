package protocol

import (
	"cmp"
	"fmt"
)

// MaxEpochJump is by how much a sender raises its epoch at most without a person: a receiver that
// holds a still greater epoch was given a position by mistake, or by another sender.
const MaxEpochJump = 1000

// A Position orders the desired states of one receiver: by Epoch, then by Generation.
// A receiver adopts a state only at a greater position than the one it holds. The zero
// Position is before all others: nothing was sent, or nothing is held.
type Position struct {
	// Epoch grows where the sender was restored or has lost its state: a receiver holds a
	// position that the sender does not remember. Absent: 0.
	Epoch uint64 `cbor:"1,keyasint,omitempty" json:"epoch"`
	// Generation grows by at least one with each change of the state. A new epoch goes on
	// counting. Absent: 0.
	Generation uint64 `cbor:"2,keyasint,omitempty" json:"generation"`
}

// Compare returns -1, 0 or 1 where p is before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Generation, q.Generation))
}

// After reports whether p is greater than q.
func (p Position) After(q Position) bool { return p.Compare(q) > 0 }

// IsZero reports whether p is before all others.
func (p Position) IsZero() bool { return p == Position{} }

// String returns the epoch and the generation, such as 3.17.
func (p Position) String() string { return fmt.Sprintf("%d.%d", p.Epoch, p.Generation) }

// Next returns the position of the next change in the same epoch, which is 1 or later.
func (p Position) Next() Position { return Position{max(p.Epoch, 1), p.Generation + 1} }

// Raise returns the position at which a sender that is at p publishes its state once
// more, to a receiver that holds a position which the sender does not remember. The
// generation is above both, so that generations alone never go back. It fails with kind
// Conflict where the epoch would grow by more than MaxEpochJump: a person must decide.
func (p Position) Raise(held Position) (Position, error) {
	next := Position{max(p.Epoch, held.Epoch) + 1, max(p.Generation, held.Generation) + 1}
	if held.Epoch > p.Epoch && held.Epoch-p.Epoch > MaxEpochJump || next.Epoch == 0 || next.Generation == 0 {
		return p, Errorf(Conflict, "the position %s that is held is more than %d epochs after %s", held, MaxEpochJump, p)
	}
	return next, nil
}

// Held is the desired state that a receiver has adopted last.
type Held struct {
	// Position is that of the state. Absent: none is held.
	Position Position `cbor:"1,keyasint,omitzero" json:"position,omitzero"`
	// Digest is the ContentDigest of the state. Absent: none is held.
	Digest Digest `cbor:"2,keyasint,omitempty" json:"digest,omitempty"`
	// Site is the greatest position of the site's desired state that the state of a node
	// names. Absent in what an LO holds: Position is the site's.
	Site Position `cbor:"3,keyasint,omitzero" json:"site,omitzero"`
	// Commit is the commit of the deployments repo that the state was compiled from, by which a CO that was restored knows whether the repo was
	// set back, too. Absent: not known, as in what a node holds. Since 0.3.0.
	Commit string `cbor:"4,keyasint,omitempty" json:"commit,omitempty"`
}

// Unknown reports whether a receiver that holds h has a state that its sender, which is
// at last, does not remember: a later one, or another one at the same position. The
// sender was restored, or has lost its state.
func (h Held) Unknown(last Held) bool {
	c := h.Position.Compare(last.Position)
	return c > 0 || c == 0 && h.Digest != last.Digest
}

// Held returns what a receiver of m holds once it has adopted m.
func (m *SiteDesired) Held() Held {
	h := Held{Position: m.Position, Digest: m.Content, Commit: m.Commit}
	if h.Digest == "" {
		h.Digest = m.ContentDigest()
	}
	return h
}

// ContentDigest is the digest of the content of m, independent of how m travels. It covers the encoding
// of m without specs (m names them by digest), without signatures and KeySet (they change with a key),
// without Digest, Size and Content, and without Running (no part of the state). m must be complete, as
// Digest is not followed. Only the sender of m knows all of its fields.
func (m *SiteDesired) ContentDigest() Digest {
	c := *m
	c.Digest, c.Size, c.Content, c.Running, c.Head, c.KeySet = "", 0, "", nil, nil, nil
	c.Deployments = make([]SiteEntry, len(m.Deployments))
	for i, e := range m.Deployments {
		e.Spec, e.Signature = nil, nil
		c.Deployments[i] = e
	}
	c.Removals = make([]Removal, len(m.Removals))
	for i, r := range m.Removals {
		r.Signature = nil
		c.Removals[i] = r
	}
	c.Purges = make([]Purge, len(m.Purges))
	for i, p := range m.Purges {
		p.Signature = nil
		c.Purges[i] = p
	}
	return DigestOf(Marshal(&c))
}

// Held returns what a receiver of m holds once it has adopted m.
func (m *NodeDesired) Held() Held {
	h := Held{Position: m.Position, Digest: m.Content}
	if h.Digest == "" {
		h.Digest = m.ContentDigest()
	}
	for _, a := range m.Assignments {
		h.Site = later(h.Site, a.Site)
	}
	for _, r := range m.Removals {
		h.Site = later(h.Site, r.Site)
	}
	for _, p := range m.Purges {
		h.Site = later(h.Site, p.Site)
	}
	return h
}

func later(p, q Position) Position {
	if q.After(p) {
		return q
	}
	return p
}

// ContentDigest is the digest of what m says: of its encoding without Content, the specs,
// which the digests in it name, the signatures, KeySet and Certificates.
func (m *NodeDesired) ContentDigest() Digest {
	c := *m
	c.Content, c.KeySet, c.Certificates, c.Signature = "", nil, nil, nil
	c.Assignments = make([]Assignment, len(m.Assignments))
	for i, a := range m.Assignments {
		a.Spec, a.Signature = nil, nil
		c.Assignments[i] = a
	}
	c.Removals = make([]NodeRemoval, len(m.Removals))
	for i, r := range m.Removals {
		r.Signature = nil
		c.Removals[i] = r
	}
	c.Purges = make([]NodePurge, len(m.Purges))
	for i, p := range m.Purges {
		p.Signature = nil
		c.Purges[i] = p
	}
	return DigestOf(Marshal(&c))
}
