package desired

import (
	"fmt"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// TrustRole is the Role of damaged keys.
const TrustRole = "lo/trust"

// trusted is what a Store that checks has on disk beside the state.
type trusted struct {
	KeySet []byte `cbor:"1,keyasint,omitempty"`
	// Checked is the state that was checked last. Where another one is in force, that was
	// adopted without a check.
	Checked protocol.Held `cbor:"2,keyasint,omitzero"`
}

func (s *Store) trustFile() statefile.File {
	return statefile.File{Disk: s.disk, Identity: statefile.Identity{Role: TrustRole, Name: string(s.site)}, Path: filepath.Join(s.dir, "trust.cbor")}
}

// loadTrust reads the key set. One that is damaged, or that another root key signed, is
// no longer followed: the CO sends its own with each state.
func (s *Store) loadTrust() error {
	if s.root == nil {
		return nil
	}
	var err error
	if s.trust, err = sign.NewTrust(s.root); err != nil {
		return err
	}
	var t trusted
	found, err := s.load(s.trustFile(), func(b []byte) error { return protocol.Unmarshal(b, &t) })
	if err != nil || !found {
		return err
	}
	trust, err := s.trust.Follow(t.KeySet)
	if err != nil {
		s.log.Warn("the stored key set is not that of the root key; waiting for the CO to send one", "path", s.trustFile().Path, "err", err)
		return nil
	}
	s.trust, s.checked = trust, t.Checked
	return nil
}

func (s *Store) saveTrust(trust sign.Trust, checked protocol.Held) error {
	if s.root == nil {
		return nil
	}
	if err := s.trustFile().Save(protocol.Marshal(trusted{KeySet: trust.KeySet(), Checked: checked})); err != nil {
		return fmt.Errorf("store key set: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust, s.checked = trust, checked
	return nil
}

// believed reports whether the state in force was checked, or need not be.
func (s *Store) believed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.current.Held() // an earlier release stored it without the commit, which the digest covers
	return s.root == nil || s.held && s.checked.Position == now.Position && s.checked.Digest == now.Digest
}

// check checks the signatures of a whole state m, which payload encodes. It returns m with the
// statements about its parts, and what the Store is to believe once it has adopted m.
func (s *Store) check(m protocol.SiteDesired, payload []byte) (protocol.SiteDesired, sign.Trust, error) {
	if s.root == nil {
		if attached, err := sign.Attach(payload); err == nil { // else the nodes say what is wrong with them
			m = attached
		}
		m, err := s.inspect(m)
		return m, sign.Trust{}, err
	}
	s.mu.RLock()
	trust := s.trust
	s.mu.RUnlock()
	if len(m.Head) == 0 {
		return m, trust, sign.Refuse(sign.Unsigned, "desired state %s is not signed: set signing.dir in the configuration of the CO, or look for who else publishes for this site", m.Position)
	}
	trust, err := trust.Follow(m.KeySet)
	if err == nil {
		m, err = trust.Site(payload)
	}
	if err == nil {
		m, err = s.inspect(m)
	}
	if err != nil {
		return m, trust, fmt.Errorf("check desired state %s: %w", m.Position, err)
	}
	m.KeySet = trust.KeySet()
	return m, trust, nil
}
