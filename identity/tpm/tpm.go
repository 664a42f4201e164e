// Package tpm keeps keys in a TPM 2.0: ECDSA P-256, made in it, which never leave it. On the disk there is only the key wrapped
// by the TPM. Only the TPM that made it can use it, and no longer after the TPM was cleared. Nothing is stored in the TPM, so
// that it holds any number of keys.
//
// A wrapped key is a TPMKey in DER (TSS2 PRIVATE KEY, as OpenSSL's provider tpm2 reads it; draft-bottomley-tpm2-keys), under the
// storage root key of the owner hierarchy by the TCG's template for P-256 (TPM 2.0 Provisioning Guidance, section 7.5.1). Until
// it is cleared, a TPM makes the same storage root key each time. The owner hierarchy must have no password.
package tpm

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// DefaultPath is the device of the kernel's resource manager.
const DefaultPath = "/dev/tpmrm0"

// ErrForeign says that the TPM has not made a wrapped key, or has been cleared since, or that the
// wrapped key was changed: it is of no use any more.
var ErrForeign = errors.New("the TPM cannot use this key: it is another TPM, it was cleared, or what is on the disk was changed")

// A Module is a TPM. It is opened when it is first needed, and again after a failure. Its methods may be
// called concurrently; the TPM does one thing at a time.
type Module struct {
	path string

	mu     sync.Mutex // protects what follows
	device transport.TPMCloser
	parent tpm2.NamedHandle // of all keys; counts while device does
}

// New returns the Module at a path: a device, such as DefaultPath, or the Unix socket of an emulator.
func New(path string) *Module { return &Module{path: path} }

// Parse returns the Module of the key identity.key of a configuration: tpm, or tpm: and a path. It is nil where keys
// are files: for file, and for nothing.
func Parse(key string) (*Module, error) {
	kind, path, named := strings.Cut(key, ":")
	switch {
	case key == "", key == "file":
		return nil, nil
	case kind != "tpm", named && !filepath.IsAbs(path):
		return nil, fmt.Errorf("identity.key %q: want file, tpm, or tpm: and the absolute path of the device of a TPM, such as tpm:%s", key, DefaultPath)
	case named:
		return New(path), nil
	}
	return New(DefaultPath), nil
}

// Path is where the TPM is.
func (m *Module) Path() string { return m.path }

// signing is the template of the keys: for signatures alone, bound to the TPM and to its parent.
func signing() tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, SignEncrypt: true,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			CurveID: tpm2.TPMECCNistP256,
			Scheme: tpm2.TPMTECCScheme{
				Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
		}),
	}
}

// Make makes a new key.
func (m *Module) Make() (*Key, error) {
	var made *tpm2.CreateResponse
	err := m.do(func() (err error) {
		made, err = tpm2.Create{ParentHandle: m.parent, InPublic: tpm2.New2B(signing())}.Execute(m.device)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make a key in the TPM %s: %w", m.path, err)
	}
	return m.key(made.OutPublic, made.OutPrivate)
}

// Open returns the key that was wrapped. It fails with ErrForeign where the TPM cannot use it; any other
// error says nothing about the key.
func (m *Module) Open(wrapped []byte) (*Key, error) {
	k, err := m.decode(wrapped)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if err := m.do(func() error { return k.with(func(tpm2.NamedHandle) error { return nil }) }); err != nil {
		return nil, fmt.Errorf("use a key in the TPM %s: %w", m.path, err)
	}
	return k, nil
}

// foreign reports whether a TPM has rejected a wrapped key as not its own: its answer to TPM2_Load is then about one of
// the two parameters, which are the halves of the key (TPM 2.0 Library, part 3, section 12.2).
func foreign(err error) bool {
	answer, ok := errors.AsType[tpm2.TPMFmt1Error](err)
	if !ok {
		return false
	}
	parameter, _ := answer.Parameter()
	return parameter
}

// Close closes the TPM until it is needed again. A nil Module is closed.
func (m *Module) Close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.close()
}

func (m *Module) close() error {
	if m.device == nil {
		return nil
	}
	_, flush := tpm2.FlushContext{FlushHandle: m.parent.Handle}.Execute(m.device) // an emulator has no resource manager
	err := m.device.Close()
	m.device = nil
	return errors.Join(flush, err)
}

// do has the TPM do something. Where that fails it is opened anew and tried once more, as after
// the machine slept: what was loaded is gone then.
func (m *Module) do(what func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.device != nil
	err := m.open()
	if err == nil {
		err = what()
	}
	if err != nil && held {
		_ = m.close() // of a device that has failed
		if err = m.open(); err == nil {
			err = what()
		}
	}
	return err
}

// open opens the device, and makes the parent of all keys.
func (m *Module) open() error {
	if m.device != nil {
		return nil
	}
	device, err := connect(m.path)
	if err != nil {
		return err
	}
	root, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHOwner, InPublic: tpm2.New2B(tpm2.ECCSRKTemplate)}.Execute(device)
	if err != nil {
		return errors.Join(fmt.Errorf("make the storage root key of the owner hierarchy, which must have no password: %w", err), device.Close())
	}
	m.device, m.parent = device, tpm2.NamedHandle{Handle: root.ObjectHandle, Name: root.Name}
	return nil
}

// A Key is a key in a TPM. Its methods may be called concurrently.
type Key struct {
	m       *Module
	public  *ecdsa.PublicKey
	area    tpm2.TPM2BPublic
	private tpm2.TPM2BPrivate
}

// key returns the key of what the TPM gives out of it.
func (m *Module) key(area tpm2.TPM2BPublic, private tpm2.TPM2BPrivate) (*Key, error) {
	template := signing()
	public, err := area.Contents()
	if err != nil {
		return nil, fmt.Errorf("public half of a key in a TPM: %w", err)
	}
	point, err := public.Unique.ECC()
	if err != nil || public.ObjectAttributes != template.ObjectAttributes {
		return nil, errors.New("public half of a key in a TPM: want a P-256 key for signatures alone that cannot leave the TPM")
	}
	encoded := append(make([]byte, 0, 65), 4) // uncompressed (SEC 1, section 2.3.3)
	for _, c := range [][]byte{point.X.Buffer, point.Y.Buffer} {
		if len(c) > 32 {
			return nil, errors.New("public half of a key in a TPM: want one of P-256")
		}
		encoded = append(append(encoded, make([]byte, 32-len(c))...), c...)
	}
	k, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), encoded)
	if err != nil {
		return nil, fmt.Errorf("public half of a key in a TPM: %w", err)
	}
	return &Key{m: m, public: k, area: area, private: private}, nil
}

// with loads the key for a call of what. m.mu is held.
func (k *Key) with(what func(loaded tpm2.NamedHandle) error) error {
	loaded, err := tpm2.Load{ParentHandle: k.m.parent, InPrivate: k.private, InPublic: k.area}.Execute(k.m.device)
	if foreign(err) {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if err != nil {
		return err
	}
	err = what(tpm2.NamedHandle{Handle: loaded.ObjectHandle, Name: loaded.Name})
	_, flush := tpm2.FlushContext{FlushHandle: loaded.ObjectHandle}.Execute(k.m.device)
	return errors.Join(err, flush)
}

// Public returns the public half, an *ecdsa.PublicKey.
func (k *Key) Public() crypto.PublicKey { return k.public }

// Sign signs a SHA-256 digest, and returns the signature as crypto.Signer has it, in ASN.1. It fails
// where the TPM does. Nil options are those of SHA-256, as callers have it that sign by ECDSA alone.
func (k *Key) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts != nil && opts.HashFunc() != crypto.SHA256 || len(digest) != crypto.SHA256.Size() {
		return nil, fmt.Errorf("sign with a key in a TPM: a digest of %d bytes: want one of SHA-256", len(digest))
	}
	var out *tpm2.SignResponse
	err := k.m.do(func() error {
		return k.with(func(loaded tpm2.NamedHandle) (err error) {
			out, err = tpm2.Sign{
				KeyHandle: loaded, Digest: tpm2.TPM2BDigest{Buffer: digest},
				InScheme:   tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUSigScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSchemeHash{HashAlg: tpm2.TPMAlgSHA256})},
				Validation: tpm2.TPMTTKHashCheck{Tag: tpm2.TPMSTHashCheck, Hierarchy: tpm2.TPMRHNull},
			}.Execute(k.m.device)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("sign with a key in the TPM %s: %w", k.m.path, err)
	}
	s, err := out.Signature.Signature.ECDSA()
	if err != nil {
		return nil, fmt.Errorf("signature of the TPM %s: %w", k.m.path, err)
	}
	return asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(s.SignatureR.Buffer), new(big.Int).SetBytes(s.SignatureS.Buffer)})
}

// wrappedKey is a TPMKey.
type wrappedKey struct {
	Type      asn1.ObjectIdentifier
	EmptyAuth bool `asn1:"explicit,tag:0"`
	Parent    int64
	Public    []byte // a TPM2B_PUBLIC
	Private   []byte // a TPM2B_PRIVATE
}

// loadable is the type of a key that the TPM loads under its parent (id-loadablekey).
var loadable = asn1.ObjectIdentifier{2, 23, 133, 10, 1, 3}

// Wrapped returns what is to be on the disk in the place of the key, for Open.
func (k *Key) Wrapped() ([]byte, error) {
	return asn1.Marshal(wrappedKey{loadable, true, int64(tpm2.TPMRHOwner), tpm2.Marshal(k.area), tpm2.Marshal(k.private)})
}

// decode reads a wrapped key, and asks no TPM.
func (m *Module) decode(wrapped []byte) (*Key, error) {
	var w wrappedKey
	if rest, err := asn1.Unmarshal(wrapped, &w); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("want a TPMKey in DER (%v)", err)
	}
	if !w.Type.Equal(loadable) || !w.EmptyAuth || w.Parent != int64(tpm2.TPMRHOwner) {
		return nil, errors.New("want a key without a password under the owner hierarchy")
	}
	area, err := tpm2.Unmarshal[tpm2.TPM2BPublic](w.Public)
	if err != nil {
		return nil, err
	}
	private, err := tpm2.Unmarshal[tpm2.TPM2BPrivate](w.Private)
	if err != nil {
		return nil, err
	}
	k, err := m.key(*area, *private)
	if err != nil {
		return nil, err
	}
	if written, err := k.Wrapped(); err != nil || !bytes.Equal(written, wrapped) {
		return nil, errors.New("the key is not written as this program does")
	}
	return k, nil
}
