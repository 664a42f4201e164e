package store

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/colonyfleet/colony/identity"
)

// OpenRoot returns the root of the fleet; fs.ErrNotExist where there is none.
func (s *Store) OpenRoot() (*identity.Authority, error) {
	c, err := s.Load(Root)
	if err != nil {
		return nil, err
	}
	return identity.OpenRoot(c.Root, c.Key)
}

// InitRoot returns the root of the fleet, which it makes where there is none.
func (s *Store) InitRoot(now time.Time) (a *identity.Authority, made bool, err error) {
	if a, err = s.OpenRoot(); !errors.Is(err, fs.ErrNotExist) {
		return a, false, err
	}
	key, err := s.Key(Root)
	if err != nil {
		return nil, false, err
	}
	if a, err = identity.NewRoot(key, now); err != nil {
		return nil, false, err
	}
	return a, true, s.Save(Root, &identity.Credential{Key: key, Root: a.Root()})
}

// ExportRoot returns the root's certificate and its key as PEM: its owner can impersonate every
// machine of the fleet.
func (s *Store) ExportRoot() ([]byte, error) {
	if _, err := s.OpenRoot(); err != nil {
		return nil, err
	}
	cert, err := s.read(s.path(Root + ".crt"))
	if err != nil {
		return nil, err
	}
	key, err := s.read(s.path(Root + ".key"))
	return append(cert, key...), err
}

// ErrHasRoot says that there is another root, which is not replaced.
var ErrHasRoot = errors.New("there is a root of a fleet already")

// ImportRoot stores what ExportRoot returned. It fails with ErrHasRoot where there is another
// one; a root that lost its key gets that back.
func (s *Store) ImportRoot(raw []byte) (*identity.Authority, error) {
	cert, signer, err := parseRoot(raw)
	if err != nil {
		return nil, err
	}
	a, err := identity.OpenRoot(cert, signer)
	if err != nil {
		return nil, err
	}
	return a, s.saveRoot(a, signer)
}

// AdoptRoot makes the root of a fleet with the key of an authority of another PKI, of its PEM certificate and its key,
// see identity.Adopt. It fails with ErrHasRoot where there is another one.
func (s *Store) AdoptRoot(raw []byte, now time.Time) (*identity.Authority, error) {
	cert, signer, err := parseRoot(raw)
	if err != nil {
		return nil, err
	}
	a, err := identity.Adopt(cert, signer, now)
	if err != nil {
		return nil, err
	}
	if old, err := s.OpenRoot(); err == nil && identity.KeySum(old.Root().PublicKey) == identity.KeySum(signer.Public()) {
		return old, nil // the same once more
	}
	return a, s.saveRoot(a, signer)
}

// saveRoot stores a root, unless there is another one.
func (s *Store) saveRoot(a *identity.Authority, signer crypto.Signer) error {
	cert := a.Root()
	old, err := s.read(s.path(Root + ".crt"))
	if err == nil {
		var certs []*x509.Certificate
		if certs, err = ParseCertificates(old); err == nil && !certs[0].Equal(cert) {
			return ErrHasRoot
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("root of the fleet %s: %w: remove the file if it is damaged", s.path(Root+".crt"), err)
	}
	if err := s.disk.MkdirAll(s.dir, dirPerm); err != nil {
		return fmt.Errorf("create the directory of the identity: %w", err)
	}
	if err := s.writeKey(Root, signer); err != nil {
		return err
	}
	return s.Save(Root, &identity.Credential{Key: signer, Root: cert})
}

// parseRoot reads a certificate and its key as PEM. Of several certificates the one of the key counts.
func parseRoot(raw []byte) (*x509.Certificate, crypto.Signer, error) {
	var certs []*x509.Certificate
	var key *pem.Block
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case certType:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, fmt.Errorf("root of a fleet: %w", err)
			}
			certs = append(certs, c)
		case keyType:
			key = block
		}
	}
	if len(certs) == 0 || key == nil {
		return nil, nil, errors.New("root of a fleet: want a PEM certificate and its key (PKCS #8), as colony ca export writes them")
	}
	signer, err := parseKey(key.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("root of a fleet: %w", err)
	}
	for _, c := range certs {
		if samePublic(signer, c.PublicKey) {
			return c, signer, nil
		}
	}
	return certs[0], signer, nil // the caller reports that they do not fit
}
