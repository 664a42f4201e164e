package store

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/atomicfile"
)

// Key returns the key of that name, which it makes where there is none. A key that is damaged
// is not replaced: the error names its file. Repair sets it aside.
func (s *Store) Key(name string) (crypto.Signer, error) {
	k, err := s.readKey(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if s.tpm != nil && name != Root {
		k, err = s.tpm.Make()
	} else {
		k, err = identity.NewKey()
	}
	if err != nil {
		return nil, err
	}
	return k, s.writeKey(name, k)
}

// KeyName returns the KeySum of a key that is there, in hex; fs.ErrNotExist where it is not. A TPM is not asked.
func (s *Store) KeyName(name string) (string, error) {
	path := s.path(name + ".key")
	raw, err := s.read(path)
	if err != nil {
		return "", err
	}
	var public crypto.PublicKey
	if _, der, ok := decodeWrapped(raw); ok {
		public, err = x509.ParsePKIXPublicKey(der)
	} else if k, wrong := decodeKey(raw); wrong != nil {
		err = wrong
	} else {
		public = k.Public()
	}
	if err != nil {
		return "", &damagedError{path, fmt.Errorf("key %s: %w", path, err)}
	}
	sum := identity.KeySum(public)
	return hex.EncodeToString(sum[:]), nil
}

// InTPM reports whether a key that is there is one of a TPM; fs.ErrNotExist where it is not there.
func (s *Store) InTPM(name string) (bool, error) {
	raw, err := s.read(s.path(name + ".key"))
	if err != nil {
		return false, err
	}
	_, _, ok := decodeWrapped(raw)
	return ok, nil
}

func (s *Store) readKey(name string) (crypto.Signer, error) {
	path := s.path(name + ".key")
	raw, err := s.read(path)
	if err != nil {
		return nil, err
	}
	var k crypto.Signer
	wrapped, _, inTPM := decodeWrapped(raw)
	if inTPM {
		k, err = s.openWrapped(raw, wrapped)
	} else {
		k, err = decodeKey(raw)
	}
	if inTPM && err != nil && !errors.Is(err, tpm.ErrForeign) { // the TPM is away, and says nothing of the key
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	if err != nil {
		return nil, &damagedError{path, fmt.Errorf("key %s: %w: remove the file and enrol the machine again", path, err)}
	}
	return k, nil
}

// openWrapped returns a key in the TPM, of the content of its file.
func (s *Store) openWrapped(raw, wrapped []byte) (crypto.Signer, error) {
	if s.tpm == nil {
		return nil, errors.New("it is in a TPM, and the configuration says that keys are files: set identity.key to tpm, or remove the file and enrol the machine again")
	}
	k, err := s.tpm.Open(wrapped)
	if err != nil {
		return nil, err
	}
	if written, err := encodeWrapped(k); err != nil || !bytes.Equal(written, raw) {
		return nil, fmt.Errorf("%w: the wrapped key and what is stored beside it do not fit", tpm.ErrForeign)
	}
	return k, nil
}

// decodeWrapped reads a file of a key in a TPM: the key, wrapped, and its public half, nil where that is damaged; ok is
// false where it is no such file.
func decodeWrapped(raw []byte) (wrapped, public []byte, ok bool) {
	key, rest := pem.Decode(raw)
	if key == nil || key.Type != wrappedType {
		return nil, nil, false
	}
	half, _ := pem.Decode(rest)
	if half == nil || half.Type != publicType {
		return key.Bytes, nil, true
	}
	return key.Bytes, half.Bytes, true
}

// decodeKey reads what encodeKey wrote, and nothing else: the file holds the public key beside
// the private one, so that a change of either is noticed.
func decodeKey(raw []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != keyType {
		return nil, fmt.Errorf("want a PEM block %s", keyType)
	}
	k, err := parseKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	written, err := encodeKey(k)
	if err == nil && !bytes.Equal(written, raw) {
		err = errors.New("the private key and what is stored beside it do not fit")
	}
	return k, err
}

func encodeKey(k crypto.Signer) ([]byte, error) {
	if k, ok := k.(*tpm.Key); ok {
		return encodeWrapped(k)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der}), nil
}

// encodeWrapped writes a key in a TPM: wrapped, and with its public half, for tools without the TPM.
func encodeWrapped(k *tpm.Key) ([]byte, error) {
	wrapped, err := k.Wrapped()
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: wrappedType, Bytes: wrapped}), pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: public})...), nil
}

// samePublic reports whether a public key is that of a key.
func samePublic(a crypto.Signer, b crypto.PublicKey) bool {
	of, ok := a.Public().(*ecdsa.PublicKey)
	return ok && of.Equal(b)
}

func parseKey(der []byte) (crypto.Signer, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("want an ECDSA key")
	}
	return ec, nil
}

func (s *Store) writeKey(name string, k crypto.Signer) error {
	raw, err := encodeKey(k)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.disk, s.path(name+".key"), raw, filePerm)
}
