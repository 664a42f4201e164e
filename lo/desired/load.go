package desired

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// signatureSuffix ends the name of the file of a signature, which begins with that of its spec.
const signatureSuffix = ".sig"

// loadSpecs reads the specs, each with its signature. A signature without its spec, because the spec is
// damaged or was being removed when the LO ended, is removed after it was read: it is useless alone, and
// comes again with the spec.
func (s *Store) loadSpecs() error {
	entries, err := s.disk.List(s.specDir())
	if err != nil {
		return fmt.Errorf("list specs: %w", err)
	}
	var signed []protocol.Digest
	for _, e := range entries {
		name, signature := strings.CutSuffix(e.Name(), signatureSuffix)
		digest, err := protocol.ParseDigest("sha256:" + name)
		switch {
		case err != nil && !statefile.IsAside(e.Name()):
			s.log.Warn("a file among the specs is none of the LO and is left alone: remove it, or check the disk", "path", filepath.Join(s.specDir(), e.Name()))
		case err != nil:
		case signature:
			signed = append(signed, digest)
		default:
			if err := s.loadSpec(digest); err != nil {
				return err
			}
		}
	}
	for _, digest := range signed {
		if err := s.loadSignature(digest); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) loadSpec(digest protocol.Digest) error {
	var spec Spec
	found, err := s.load(s.specFile(digest), func(b []byte) (err error) {
		spec, err = verify(digest, b)
		return err
	})
	if found {
		s.specs[digest] = spec
	}
	return err
}

func (s *Store) loadSignature(digest protocol.Digest) error {
	spec, held := s.specs[digest]
	found, err := s.load(s.signatureFile(digest), func(b []byte) error {
		spec.Signature = b
		return nil
	})
	switch {
	case err != nil || !found:
		return err
	case held:
		s.specs[digest] = spec
		return nil
	}
	if err := s.signatureFile(digest).Remove(); err != nil {
		// It is found again at the next start.
		s.log.Warn("a signature without its spec could not be removed", "path", s.signatureFile(digest).Path, "err", err)
	}
	return nil
}
