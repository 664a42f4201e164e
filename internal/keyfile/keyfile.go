// Package keyfile reads and makes Ed25519 keys in files, and says what such files hold: PEM with PKCS #8 for private
// keys (RFC 5958, RFC 8410) and SubjectPublicKeyInfo for public ones, as other tools do.
package keyfile

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
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

// Public reads a public key. It is no state of a tier, as a person puts it there: it is on the disk of the system also where
// the tier has another disk.
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
	b, err := disk.ReadFile(disk.OS, path)
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

// dirPerm is the mode of a directory that is made for a key.
const dirPerm = 0o700

// Ensure reads a private key, and makes one where there is none, with its directory. What root makes belongs to the
// owner of the nearest directory that there was.
func Ensure(path string) (ed25519.PrivateKey, error) {
	key, err := Private(path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(path)
	}
	return key, err
}

func create(path string) (ed25519.PrivateKey, error) {
	give, err := ownerOf(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), dirPerm); err != nil {
		return nil, err
	}
	lock, err := filelock.Acquire(path + ".lock") // the CO and a command may both be the first
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if key, err := Private(path); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	b, err := EncodePrivate(key)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(disk.OS, path, b, PrivatePerm); err != nil {
		return nil, err
	}
	return key, give(filepath.Dir(path), path, path+".lock")
}

// ownerOf returns a function that gives files to the owner of the nearest directory that there is above or at dir: what
// root makes for a CO that runs as another user, that user has to read.
func ownerOf(dir string) (give func(paths ...string) error, err error) {
	info, err := os.Stat(dir)
	for ; errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); info, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return nil, err
	}
	return func(paths ...string) error {
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || os.Geteuid() != 0 || owner.Uid == 0 {
			return nil
		}
		for _, path := range paths {
			if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
