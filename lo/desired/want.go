package desired

import (
	"context"
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/protocol"
)

// A Want is what to fetch from the CO.
type Want struct {
	Digest protocol.Digest
	Size   uint64 // in bytes
	// Like is content that the CO may still have, and that is like what is wanted: then only the difference travels. Nil: there is none.
	Like []byte
}

// Fetch returns the bytes that have the digest and the size of a Want.
type Fetch func(ctx context.Context, w Want) ([]byte, error)

// whole fetches the state that m names by digest, and returns it and its encoding.
func (s *Store) whole(ctx context.Context, m protocol.SiteDesired) (protocol.SiteDesired, []byte, error) {
	s.mu.RLock()
	w := Want{m.Digest, m.Size, s.body}
	s.mu.RUnlock()
	b, err := s.fetch(ctx, w)
	if err != nil {
		return m, nil, fmt.Errorf("fetch desired state: %w", err)
	}
	if err := m.Digest.Verify(b); err != nil {
		return m, nil, protocol.Errorf(protocol.Invalid, "desired state %s: %w", m.Position, err)
	}
	whole, err := s.decode(b)
	if err != nil {
		return m, nil, err
	}
	if whole.Position != m.Position || whole.Digest != "" {
		return m, nil, protocol.Errorf(protocol.Invalid, "desired state %s names %s by digest", m.Position, whole.Position)
	}
	return whole, b, nil
}

// previous returns the encoded version of a deployment that is in force; nil: there is none.
func (s *Store) previous(name protocol.DeploymentName) []byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := slices.IndexFunc(s.current.Deployments, func(e protocol.SiteEntry) bool { return e.Deployment == name })
	if i < 0 {
		return nil
	}
	return s.specs[s.current.Deployments[i].Digest].Bytes
}
