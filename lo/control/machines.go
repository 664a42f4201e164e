package control

import (
	"context"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// Enrolment reports to the CO that a node got a certificate, or was refused one. Of renewals that
// were not sent yet the last one is enough.
func (s *Site) Enrolment(ctx context.Context, kind protocol.EventKind, n protocol.NodeID, m protocol.Enrolment) error {
	key := ""
	if m.Renewal {
		key = "certificate/" + string(n)
	}
	f := siteFact(kind, key, &m, s.opts.Now())
	f.Event.Node = n
	_, err := s.append(ctx, []nodes.Fact{f})
	return err
}

// Revocations reports to the CO which list of revoked keys is in force, or why one was refused.
func (s *Site) Revocations(ctx context.Context, number uint64, keys int, refused error) {
	m := protocol.RevocationsReport{V: protocol.Version, Number: number, Keys: uint32(keys)}
	kind, key := protocol.RevocationsAdopted, "revocations"
	if refused != nil {
		kind, key, m.Reason = protocol.RevocationsRefused, "revocations-refused", refused.Error()
	}
	if _, err := s.append(ctx, []nodes.Fact{siteFact(kind, key, &m, s.opts.Now())}); err != nil {
		s.log.WarnContext(ctx, "list of revoked keys not reported to the co", "number", number, "err", err)
	}
}
