// Package store keeps the keys and certificates of a machine, and the floor of its clock, in a directory: files
// that only their owner reads, each replaced whole. A key is made here and never leaves the directory. Or it is
// made in a TPM and never leaves the TPM: then the directory has the wrapped key.
//
// Keys and certificates are PEM, as other tools read it, and are checked in place of a checksum: a file is valid
// if encoding its content again gives the same bytes, the key fits the certificate, and each certificate is signed
// by the one above it. A damaged file is ignored; Repair sets it aside.
package store

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600
	maxFile  = 64 << 10

	keyType, certType = "PRIVATE KEY", "CERTIFICATE"
	// Of a key in a TPM: as OpenSSL's provider tpm2 reads it, and its public half.
	wrappedType, publicType = "TSS2 PRIVATE KEY", "PUBLIC KEY"
	floorFile               = "clock.floor"
	refusalFile             = "refused"
)

// The names of what a Store keeps.
const (
	Machine = "machine" // the machine's own
	Issuer  = "issuer"  // the authority of a site, at its LO
	Root    = "root"    // the root of the fleet, at the CO
)

// A Store is the directory. Its methods may be called concurrently, but for two that change
// one name.
type Store struct {
	disk disk.FS
	dir  string
	tpm  *tpm.Module // where new keys are made; nil: here
}

// Dir is the directory of a machine's identity in the state directory of its tier.
func Dir(stateDir string) string { return filepath.Join(stateDir, "identity") }

// Open makes the directory where it does not exist, and removes what a crash left. Nil is the
// file system of the machine.
func Open(d disk.FS, dir string) (*Store, error) {
	s := At(d, dir)
	if err := s.disk.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create the directory of the identity: %w", err)
	}
	if err := atomicfile.Clean(s.disk, dir); err != nil {
		return nil, fmt.Errorf("clean the directory of the identity: %w", err)
	}
	return s, nil
}

// At returns the store of a directory without making or cleaning that: for readers alone. Nil is
// the file system of the machine.
func At(d disk.FS, dir string) *Store { return &Store{disk: disk.Or(d), dir: dir} }

// In has new keys made in a TPM, but for the root of a fleet, and those that are there used in it. Nil: keys are
// files. It is called before any other method, and returns the Store.
func (s *Store) In(m *tpm.Module) *Store {
	s.tpm = m
	return s
}

// Load returns the credential of that name; fs.ErrNotExist where there is none. A certificate
// whose key is missing is an error of its own: nothing may take its place unasked.
func (s *Store) Load(name string) (*identity.Credential, error) {
	path := s.path(name + ".crt")
	raw, err := s.read(path)
	if err != nil {
		return nil, err
	}
	chain, err := ParseCertificates(raw)
	if err == nil && (len(chain) < 2 && name != Root || !bytes.Equal(EncodeCertificates(chain), raw)) {
		err = errCertificates
	}
	if err != nil {
		return nil, &damagedError{path, fmt.Errorf("certificates of %s: %w: remove the file and enrol the machine again", path, err)}
	}
	key, err := s.readKey(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && name == Root:
		return nil, fmt.Errorf("%s is there and its key %s is not: bring the key back with colony ca import", path, s.path(name+".key"))
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s is there and its key %s is not: bring the key back, or remove the certificate and enrol the machine again", path, s.path(name+".key"))
	case err != nil:
		return nil, fmt.Errorf("%w: the certificate beside it is of no use without", err)
	}
	last := len(chain) - 1
	c := &identity.Credential{Key: key, Chain: chain[:max(last, 1)], Root: chain[last]}
	if err := c.Sound(); err != nil {
		return nil, &damagedError{path, fmt.Errorf("certificates of %s: %w: remove the file and enrol the machine again", path, err)}
	}
	return c, nil
}

var errCertificates = errors.New("want PEM certificates and nothing else, the root's last")

// A damagedError says that a file does not hold what was stored in it.
type damagedError struct {
	path string
	err  error
}

// Error says what is wrong.
func (e *damagedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *damagedError) Unwrap() error { return e.err }

// Save stores the certificates of that name in the place of the former ones, and its key where
// the one that is stored is another or damaged.
func (s *Store) Save(name string, c *identity.Credential) error {
	if old, err := s.readKey(name); err != nil || !samePublic(old, c.Key.Public()) {
		if err := s.writeKey(name, c.Key); err != nil {
			return err
		}
	}
	all := c.Chain
	if len(all) == 0 || !all[len(all)-1].Equal(c.Root) {
		all = append(all[:len(all):len(all)], c.Root)
	}
	return atomicfile.Write(s.disk, s.path(name+".crt"), EncodeCertificates(all), filePerm)
}

// Remove removes the certificates of that name. Its key stays.
func (s *Store) Remove(name string) error {
	if err := s.disk.Remove(s.path(name + ".crt")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the certificates %s: %w", name, err)
	}
	return nil
}

// Clock returns a clock over now with the floor that was stored, and stores it as it rises.
// There is no floor where its file is damaged: certificates raise it again.
func (s *Store) Clock(now func() time.Time) *identity.Clock {
	floor, err := s.readFloor()
	later, _ := errors.AsType[*statefile.NewerError](err)
	if err != nil {
		floor = identity.Floor{}
	}
	return identity.NewClock(now, floor, func(f identity.Floor) error {
		if later != nil { // it is left to the release that reads it
			return fmt.Errorf("floor of the clock %s: %w", s.path(floorFile), later)
		}
		return s.floor().Save(formatFloor(f))
	})
}

func (s *Store) floor() statefile.File {
	return statefile.File{Disk: s.disk, Path: s.path(floorFile), Identity: statefile.Identity{Role: "identity/clock"}}
}

// Floor is the floor that was stored; the zero Floor where there is none, or its file is damaged. It changes nothing.
func (s *Store) Floor() identity.Floor {
	f, err := s.readFloor()
	if err != nil {
		return identity.Floor{}
	}
	return f
}

// readFloor reads the floor and changes nothing. The files of before had no header.
func (s *Store) readFloor() (identity.Floor, error) {
	raw, err := s.read(s.path(floorFile))
	if err != nil {
		return identity.Floor{}, err
	}
	content, plain, err := s.floor().Unseal(raw)
	if plain {
		content, err = raw, nil
	}
	if err != nil {
		return identity.Floor{}, err
	}
	return parseFloor(content)
}

// formatFloor writes the time, and the generation behind it where there is one: earlier releases read the time alone.
func formatFloor(f identity.Floor) []byte {
	b := f.Time.UTC().AppendFormat(nil, time.RFC3339)
	if f.Generation > 0 {
		b = strconv.AppendUint(append(b, ' '), uint64(f.Generation), 10)
	}
	return b
}

func parseFloor(content []byte) (f identity.Floor, err error) {
	at, generation, numbered := strings.Cut(string(content), " ")
	if numbered {
		n, err := strconv.ParseUint(generation, 10, 32)
		if err != nil {
			return identity.Floor{}, err
		}
		f.Generation = uint32(n)
	}
	f.Time, err = time.Parse(time.RFC3339, at)
	return f, err
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) read(path string) ([]byte, error) {
	f, err := s.disk.Open(path, os.O_RDONLY, 0)
	if disk.Unreadable(err) {
		return nil, &damagedError{path, err}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxFile {
		return nil, &damagedError{path, fmt.Errorf("%s has %d bytes: want up to %d", path, size, maxFile)}
	}
	raw := make([]byte, size)
	if n, err := f.ReadAt(raw, 0); int64(n) < size {
		err = fmt.Errorf("read %s: %w", path, err)
		if disk.Unreadable(err) {
			err = &damagedError{path, err}
		}
		return nil, err
	}
	return raw, nil
}

// SaveRefusal stores why the machine was refused when it asked for a certificate last; nil: it was not.
func (s *Store) SaveRefusal(r *identity.Refusal) error {
	if r == nil {
		return atomicfile.Remove(s.disk, s.path(refusalFile))
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.disk, s.path(refusalFile), raw, filePerm)
}

// Refusal returns what SaveRefusal stored; fs.ErrNotExist where the machine was not refused.
func (s *Store) Refusal() (*identity.Refusal, error) {
	raw, err := s.read(s.path(refusalFile))
	if err != nil {
		return nil, err
	}
	r := &identity.Refusal{}
	return r, json.Unmarshal(raw, r)
}

// EncodeCertificates writes certificates as PEM.
func EncodeCertificates(list []*x509.Certificate) []byte {
	var out []byte
	for _, c := range list {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certType, Bytes: c.Raw})...)
	}
	return out
}

// ParseCertificates reads PEM certificates, at least one.
func ParseCertificates(raw []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certType {
			return nil, fmt.Errorf("a PEM block %s: want %s", block.Type, certType)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no PEM certificate")
	}
	return out, nil
}
