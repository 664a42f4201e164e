package identity

import (
	"context"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/protocol"
)

// A Sign signs a list of revoked keys, and returns its statement with the key set.
type Sign func(m protocol.Revocations) (statement, keySet []byte, err error)

// Links are what Run works with.
type Links struct {
	// Tokens publishes an encoded protocol.SiteTokens to a site, Revocations an encoded
	// protocol.SiteRevocations, both retained.
	Tokens, Revocations Publish
	// Recheck ends the connections of machines whose keys were revoked.
	Recheck func()
	// Sign signs lists. Nil: they are not signed.
	Sign Sign
}

// Revoke revokes the keys of a machine: none of its certificates counts any more. It returns when that
// is recorded; connections end, and sites learn of it, in Run.
func (m *Machines) Revoke(ctx context.Context, n identity.Name) (fleet.Revocation, error) {
	out, err := m.Record.Revoke(ctx, n)
	if err == nil {
		m.Notify()
	}
	return out, err
}

// Admit decides on a claim. A machine that takes the place of another one has the keys of that revoked.
func (m *Machines) Admit(ctx context.Context, c identity.Claim) error {
	err := m.Record.Admit(ctx, c)
	if err == nil {
		m.Notify()
	}
	return err
}

// Notify says that the record may have changed. It does not wait. Of a nil Machines, it does nothing.
func (m *Machines) Notify() {
	if m != nil {
		m.changed.Notify()
	}
}

// Committed is called with events of a site that are committed: certificates that its LO issued, and
// nodes that were removed, are in the record then. It does not wait. Of a nil Machines, it does nothing.
func (m *Machines) Committed(events []protocol.Event) {
	if slices.ContainsFunc(events, func(e protocol.Event) bool {
		return e.Kind == protocol.MachineEnrolled || e.Kind == protocol.NodeDecommissioned
	}) {
		m.Notify()
	}
}

// revoked puts the lists of all sites into force here, and returns them.
func (m *Machines) revoked(ctx context.Context, to Links) ([]protocol.Revocations, error) {
	lists, above, err := m.Revocations(ctx)
	if err != nil {
		return nil, err
	}
	m.holder.SetRevoked(above) // no more of it: what LOs report of their nodes must not reach other sites
	to.Recheck()
	return lists, nil
}

// publishLists publishes to each site its list where it is not the one that was sent.
func (m *Machines) publishLists(ctx context.Context, to Links, lists []protocol.Revocations, sent map[protocol.SiteID]uint64) (err error) {
	for _, list := range lists {
		if sent[list.Site] == list.Number {
			continue
		}
		message := protocol.SiteRevocations{V: protocol.Version}
		if to.Sign == nil {
			message.List = protocol.Marshal(&list)
		} else if message.Statement, message.KeySet, err = to.Sign(list); err != nil {
			return err
		}
		if err := to.Revocations(ctx, list.Site, protocol.Marshal(&message)); err != nil {
			return err
		}
		m.log.InfoContext(ctx, "list of revoked keys published", "site_id", string(list.Site), "number", list.Number, "keys", len(list.Keys), "signed", to.Sign != nil)
		sent[list.Site] = list.Number
	}
	return nil
}
