// Package keys keeps the keys with which the CO signs what its sites run: a root key, which
// signs key sets, and the signing key of the present key set. The root key is needed to
// rotate only, and may be kept elsewhere; what the sites are given of all that is its public half.
package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/sign"
)

// The files of a directory of keys.
const (
	RootKey    = "root.key"    // private; only Rotate, Retire and RotateRoot need it
	RootPublic = "root.pub"    // what LOs and ENs are given
	SigningKey = "signing.key" // private
	KeySet     = "key-set"     // signed by the root key
	lockFile   = "lock"
	// nextRoot is the next root key until the key set names it.
	nextRoot = "root.key.next"

	publicPerm = 0o644
)

// Files are the names of all files of a directory of keys that are worth a backup. Where the
// last one is there, all are but the root key, which may be elsewhere.
func Files() []string { return []string{RootKey, RootPublic, SigningKey, KeySet} }

// A Set is a directory of keys as it was read.
type Set struct {
	// Signer signs with the signing key.
	Signer *sign.Signer
	// Trust is what a receiver that has the root key believes.
	Trust sign.Trust
}

// Sign signs a desired state, and gives it the key set. earlier has the signatures of the site's last
// one, of which those that still hold are used again; nil: none.
func (s Set) Sign(m *protocol.SiteDesired, earlier *sign.Signatures) error {
	if err := s.Signer.Site(m, earlier); err != nil {
		return err
	}
	m.KeySet = s.Trust.KeySet()
	return nil
}

// Revocations signs a list of revoked keys, and returns its statement with the key set.
func (s Set) Revocations(m protocol.Revocations) (statement, keySet []byte, err error) {
	statement, err = s.Signer.Revocations(m)
	return statement, s.Trust.KeySet(), err
}

// Command signs a command, and returns its statement with the key set.
func (s Set) Command(c *command.Command) (statement, keySet []byte, err error) {
	statement, err = command.Sign(s.Signer, c)
	return statement, s.Trust.KeySet(), err
}

// Open reads a directory of keys. It fails where they do not belong together: no machine would
// accept what such a key signs.
func Open(dir string) (Set, error) {
	trust, err := openTrust(dir)
	if err != nil {
		return Set{}, err
	}
	key, err := keyfile.Private(filepath.Join(dir, SigningKey))
	if err != nil {
		return Set{}, err
	}
	signer, err := sign.NewSigner(key)
	if err != nil {
		return Set{}, err
	}
	if !trust.Trusts(signer.Public()) {
		return Set{}, fmt.Errorf("the key set %s does not have the key %s: take both from one backup, or rotate the key with \"colony co keys rotate %s\"",
			filepath.Join(dir, KeySet), filepath.Join(dir, SigningKey), dir)
	}
	return Set{Signer: signer, Trust: trust}, nil
}

func openTrust(dir string) (sign.Trust, error) {
	public, err := keyfile.Public(filepath.Join(dir, RootPublic))
	if err != nil {
		return sign.Trust{}, err
	}
	trust, err := sign.NewTrust(public)
	if err != nil {
		return sign.Trust{}, err
	}
	path := filepath.Join(dir, KeySet)
	b, err := disk.ReadFile(disk.OS, path)
	if err != nil {
		return sign.Trust{}, fmt.Errorf("read key set: %w", err)
	}
	if trust, err = trust.Follow(b); err != nil {
		return sign.Trust{}, fmt.Errorf("key set %s: %w", path, err)
	}
	return trust, nil
}

// Init makes a directory of keys, and each file of it once: after an interruption it goes on, and
// if all files exist it changes nothing and returns false. It fails if the public root key exists
// without a key set and without its private half: it does not make another one.
func Init(dir string) (made bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("make directory of keys: %w", err)
	}
	unlock, err := claim(dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	switch complete, err := exists(dir, KeySet); {
	case err != nil:
		return false, err
	case complete:
		_, err := Open(dir)
		return false, err
	}
	if err := checkRoot(dir); err != nil {
		return false, err
	}
	for _, name := range []string{RootKey, SigningKey} {
		switch there, err := exists(dir, name); {
		case err != nil:
			return false, err
		case there:
			continue
		}
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return false, fmt.Errorf("make key: %w", err)
		}
		if err := writePrivate(filepath.Join(dir, name), key); err != nil {
			return false, err
		}
	}
	root, err := keyfile.Private(filepath.Join(dir, RootKey))
	if err != nil {
		return false, err
	}
	public, _ := root.Public().(ed25519.PublicKey)
	encoded, err := keyfile.EncodePublic(public)
	if err == nil {
		err = atomicfile.Write(disk.OS, filepath.Join(dir, RootPublic), encoded, publicPerm)
	}
	if err != nil {
		return false, err
	}
	key, err := keyfile.Private(filepath.Join(dir, SigningKey))
	if err != nil {
		return false, err
	}
	trust, err := sign.NewTrust(public)
	if err != nil {
		return false, err
	}
	return true, writeKeySet(dir, trust, key)
}

// Rotate makes a new signing key, and a key set with it and those before it. The CO
// signs with it from its next start on; statements by the former keys go on to count, until Retire.
// It returns the number of the key set.
func Rotate(dir string) (uint64, error) {
	unlock, err := claim(dir)
	if err != nil {
		return 0, err
	}
	defer unlock()
	trust, err := openTrust(dir)
	if err != nil {
		return 0, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return 0, fmt.Errorf("make key: %w", err)
	}
	former := trust.Signing()
	if len(former) >= sign.MaxKeys {
		return 0, fmt.Errorf("the key set has %d keys already: retire the former ones first with \"colony co keys retire %s\"", len(former), dir)
	}
	// The key set first: a key set with a key that has no private part does no harm.
	if err := writeKeySet(dir, trust, key, former...); err != nil {
		return 0, err
	}
	return trust.Number() + 1, writePrivate(filepath.Join(dir, SigningKey), key)
}

// Retire makes a key set with the present signing key alone. It returns the number of the key set.
func Retire(dir string) (uint64, error) {
	s, unlock, err := openToChange(dir)
	if err != nil {
		return 0, err
	}
	defer unlock()
	key, err := keyfile.Private(filepath.Join(dir, SigningKey))
	if err != nil {
		return 0, err
	}
	return s.Trust.Number() + 1, writeKeySet(dir, s.Trust, key)
}

// RotateRoot makes a new root key in the place of the present one, which signs it: the key set has the chain of all
// root keys, by which machines that have any of them follow. The signing keys stay. It returns the number of the key set.
func RotateRoot(dir string) (uint64, error) {
	s, unlock, err := openToChange(dir)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if len(s.Trust.Roots()) >= sign.MaxRoots {
		return 0, fmt.Errorf("the key set has the chain of %d root keys already, and no machine follows a longer one", len(s.Trust.Roots()))
	}
	root, err := openRoot(dir, s.Trust)
	if err != nil {
		return 0, err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return 0, fmt.Errorf("make key: %w", err)
	}
	link, err := root.Sign(sign.Root, protocol.Marshal(sign.RootStatement{V: protocol.Version, Public: public}))
	if err != nil {
		return 0, err
	}
	next, err := sign.NewSigner(private)
	if err != nil {
		return 0, err
	}
	set := sign.Keys{V: protocol.Version, Number: s.Trust.Number() + 1, Roots: append(slices.Clone(s.Trust.Roots()), link)}
	for _, k := range s.Trust.Signing() {
		set.Signing = append(set.Signing, k)
	}
	statement, err := next.Sign(sign.KeySet, protocol.Marshal(set))
	if err != nil {
		return 0, err
	}
	// The private key first: a key set whose root has no private key could never be followed by another
	// one.
	if err := writePrivate(filepath.Join(dir, nextRoot), private); err != nil {
		return 0, err
	}
	if err := atomicfile.Write(disk.OS, filepath.Join(dir, KeySet), statement, publicPerm); err != nil {
		return 0, err
	}
	return set.Number, promoteNextRoot(dir, public)
}

// promoteNextRoot puts the next root key in the place of the present one, where it is the one in force.
func promoteNextRoot(dir string, inForce ed25519.PublicKey) error {
	next := filepath.Join(dir, nextRoot)
	switch key, err := keyfile.Private(next); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !inForce.Equal(key.Public()):
		return atomicfile.Remove(disk.OS, next) // a rotation that was interrupted before the key set had it
	}
	encoded, err := keyfile.EncodePublic(inForce)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(disk.OS, filepath.Join(dir, RootPublic), encoded, publicPerm); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(dir, RootKey)); err != nil {
		return fmt.Errorf("put the root key in its place: %w", err)
	}
	return nil
}

// openRoot returns what signs with the root key, which must be the one in force.
func openRoot(dir string, trust sign.Trust) (*sign.Signer, error) {
	if err := promoteNextRoot(dir, trust.Root()); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, RootKey)
	private, err := keyfile.Private(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("a key set is signed with the root key: put %s back for this command: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	if !trust.Root().Equal(private.Public()) {
		return nil, fmt.Errorf("%s is not the root key in force, whose id is %x: it is one of before or of another fleet; put the right one back for this command", path, sign.KeyID(trust.Root()))
	}
	return sign.NewSigner(private)
}

// writeKeySet signs a key set of the public half of key and of others, in the place of that of trust.
func writeKeySet(dir string, trust sign.Trust, key ed25519.PrivateKey, others ...ed25519.PublicKey) error {
	root, err := openRoot(dir, trust)
	if err != nil {
		return err
	}
	public, _ := key.Public().(ed25519.PublicKey)
	set := sign.Keys{V: protocol.Version, Number: trust.Number() + 1, Signing: [][]byte{public}, Roots: trust.Roots()}
	for _, k := range others {
		set.Signing = append(set.Signing, k)
	}
	statement, err := root.Sign(sign.KeySet, protocol.Marshal(set))
	if err != nil {
		return err
	}
	return atomicfile.Write(disk.OS, filepath.Join(dir, KeySet), statement, publicPerm)
}

func writePrivate(path string, key ed25519.PrivateKey) error {
	encoded, err := keyfile.EncodePrivate(key)
	if err != nil {
		return err
	}
	return atomicfile.Write(disk.OS, path, encoded, keyfile.PrivatePerm)
}

// openToChange is Open for a command that changes the directory, until unlock is called.
func openToChange(dir string) (s Set, unlock func(), err error) {
	if unlock, err = claim(dir); err != nil {
		return s, nil, err
	}
	if s, err = Open(dir); err != nil {
		unlock()
	}
	return s, unlock, err
}

// claim keeps two commands from changing one directory at a time.
func claim(dir string) (unlock func(), err error) {
	lock, err := filelock.Acquire(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("lock directory of keys %s: %w", dir, err)
	}
	return func() { _ = lock.Close() }, nil // the process holds nothing else of it
}

// checkRoot refuses to go on in a directory without a key set whose public root key is not that of
// its root key: sites may have it already, and would not believe what another one signs.
func checkRoot(dir string) error {
	public, private := filepath.Join(dir, RootPublic), filepath.Join(dir, RootKey)
	if there, err := exists(dir, RootPublic); err != nil || !there {
		return err
	}
	want, err := keyfile.Public(public)
	if err != nil {
		return err
	}
	there, err := exists(dir, RootKey)
	if err != nil {
		return err
	}
	if there {
		key, err := keyfile.Private(private)
		if err != nil {
			return err
		}
		there = want.Equal(key.Public())
	}
	if !there {
		return fmt.Errorf("the directory of keys %s has %s, and neither a key set nor the private half of it: bring back %s and %s from a backup, or %s alone where the key set is lost; with another root key no site would believe this CO",
			dir, RootPublic, filepath.Join(dir, KeySet), filepath.Join(dir, SigningKey), private)
	}
	return nil
}

// exists reports whether a file is in a directory.
func exists(dir, name string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a file of the keys: %w", err)
	}
	return true, nil
}
