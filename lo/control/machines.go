package control

import (
	"context"
	"encoding/hex"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// Enrolment reports to the CO that a node got a certificate, was refused one, or waits to be approved. Of
// renewals that were not sent yet, and of reports of one key that waits, the first ones and the later ones by
// themselves, the last one is enough.
func (s *Site) Enrolment(ctx context.Context, kind protocol.EventKind, n protocol.NodeID, m protocol.Enrolment) error {
	key := ""
	if m.Renewal {
		key = "certificate/" + string(n)
	}
	if kind == protocol.MachinePending {
		key = "pending/" + hex.EncodeToString(m.Key)
		if m.Renewal { // it is no event at the CO, and must not take the place of a report that is
			key = "pending-again/" + hex.EncodeToString(m.Key)
		}
	}
	f := siteFact(kind, key, &m, s.opts.Now())
	f.Event.Node = n
	_, err := s.append(ctx, []nodes.Fact{f})
	return err
}

// Certified says that the LO has another certificate: what it desires of its nodes is published with it. It does
// not wait.
func (s *Site) Certified() { s.reconcileAll() }

// Report reports to the CO what is about the site and changes no record. Of the reports of one key that were not sent yet the
// last one is enough.
func (s *Site) Report(ctx context.Context, kind protocol.EventKind, key string, message any) error {
	_, err := s.append(ctx, []nodes.Fact{siteFact(kind, key, message, s.opts.Now())})
	return err
}

// Revocations reports to the CO which list of revoked keys is in force, or why one was refused.
func (s *Site) Revocations(ctx context.Context, number uint64, keys int, refused error) {
	m := protocol.RevocationsReport{V: protocol.Version, Number: number, Keys: uint32(keys)}
	kind, key := protocol.RevocationsAdopted, "revocations"
	if refused != nil {
		kind, key, m.Reason = protocol.RevocationsRefused, "revocations-refused", refused.Error()
	}
	if err := s.Report(ctx, kind, key, &m); err != nil {
		s.log.WarnContext(ctx, "list of revoked keys not reported to the co", "number", number, "err", err)
	}
}
