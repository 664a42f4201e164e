// Package keyfile reads Ed25519 keys from files, and says what such files hold: PEM with PKCS #8 for private
// keys (RFC 5958, RFC 8410) and SubjectPublicKeyInfo for public ones, as other tools do.
package keyfile

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// PrivatePerm is the mode of the file of a private key.
const PrivatePerm = 0o600

const (
	privateType = "PRIVATE KEY"
	publicType  = "PUBLIC KEY"
	maxFile     = 64 << 10
)

// EncodePrivate returns the content of the file of a private key, which is to have PrivatePerm.
func EncodePrivate(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}), nil
}

// EncodePublic returns the content of the file of a public key.
func EncodePublic(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der}), nil
}

// Private reads a private key. It refuses a file that others than its owner may read.
func Private(path string) (ed25519.PrivateKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fmt.Errorf("the key %s has mode %#o: others may read it; set it to 0600, and replace the key if they did", path, perm)
	}
	der, err := block(path, privateType)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key %s is of type %T: want Ed25519", path, key)
	}
	return private, nil
}

// Public reads a public key.
func Public(path string) (ed25519.PublicKey, error) {
	der, err := block(path, publicType)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the key %s is of type %T: want Ed25519", path, key)
	}
	return public, nil
}

func block(path, kind string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("read key %s: it has %d bytes", path, len(b))
	}
	p, _ := pem.Decode(b)
	if p == nil || p.Type != kind {
		return nil, fmt.Errorf("read key %s: it holds no PEM block %q", path, kind)
	}
	return p.Bytes, nil
}
