package keys

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/internal/keyfile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// signed returns a desired state that the keys of a directory signed, encoded.
func signed(t *testing.T, dir string) (message, keySet []byte) {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := protocol.SiteDesired{V: 1, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: 2}, Deployments: []protocol.SiteEntry{{Deployment: "a"}}}
	if err := s.Sign(&m, nil); err != nil {
		t.Fatal(err)
	}
	return protocol.Marshal(&m), m.KeySet
}

func TestRotation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	if made, err := Init(dir); err != nil || !made {
		t.Fatal(made, err)
	}
	if made, err := Init(dir); err != nil || made {
		t.Fatalf("the second time: %v %v", made, err)
	}
	for _, name := range []string{RootKey, SigningKey} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: %v, %v", name, info.Mode(), err)
		}
	}
	first, keySet := signed(t, dir)
	set, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	receiver := set.Trust
	if _, err := receiver.Site(first); err != nil {
		t.Fatal(err)
	}
	if n, err := Rotate(dir); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	second, keySet2 := signed(t, dir)
	if _, err := receiver.Site(second); sign.ReasonOf(err) != sign.UnknownKey {
		t.Errorf("without the new key set: %v", err)
	}
	if receiver, err = receiver.Follow(keySet2); err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string][]byte{"by the former key": first, "by the new key": second} {
		if _, err := receiver.Site(message); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := Retire(dir); err != nil || n != 3 {
		t.Fatal(n, err)
	}
	third, keySet3 := signed(t, dir)
	if receiver, err = receiver.Follow(keySet3); err != nil {
		t.Fatal(err)
	}
	if _, err := receiver.Site(third); err != nil {
		t.Error(err)
	}
	if _, err := receiver.Site(first); sign.ReasonOf(err) != sign.UnknownKey {
		t.Errorf("by a retired key: %v", err)
	}
	if _, err := receiver.Follow(keySet); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("an earlier key set: %v", err)
	}
}

func TestRootKeyElsewhere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, RootKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err != nil {
		t.Errorf("the CO needs the root key: %v", err)
	}
	if _, err := Rotate(dir); err == nil {
		t.Error("rotated without the root key")
	}
	if s, err := Open(dir); err != nil || s.Trust.Number() != 1 {
		t.Errorf("after a rotation that failed: %v", err)
	}
}

func TestWhatDoesNotBelongTogether(t *testing.T) {
	t.Parallel()
	dir, other := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "keys")
	for _, d := range []string{dir, other} {
		if _, err := Init(d); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(other, SigningKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, SigningKey), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a key that the key set does not have was taken")
	}
	if b, err = os.ReadFile(filepath.Join(other, KeySet)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, KeySet), b, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); sign.ReasonOf(err) != sign.UnknownKey {
		t.Errorf("a key set of another root key: %v", err)
	}
}

// TestInterrupted checks that what Init had made when it was interrupted is kept: it may be in use.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(dir, RootKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{KeySet, RootPublic} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if made, err := Init(dir); err != nil || !made {
		t.Fatal(made, err)
	}
	again, err := os.ReadFile(filepath.Join(dir, RootKey))
	if err != nil || string(again) != string(root) {
		t.Errorf("the root key was replaced (%v)", err)
	}
	if _, err := Open(dir); err != nil {
		t.Error(err)
	}
}

// TestRootKeyIsNotReplaced has the key set lost while the root key is elsewhere, or is another one:
// what the sites were given as the root key stays, and comes into use once more when the files do.
func TestRootKeyIsNotReplaced(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "keys")
	if _, err := Init(other); err != nil {
		t.Fatal(err)
	}
	for name, lose := range map[string]func(t *testing.T, root string){
		"elsewhere": func(t *testing.T, root string) {
			t.Helper()
			if err := os.Remove(root); err != nil {
				t.Fatal(err)
			}
		},
		"another one": func(t *testing.T, root string) {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(other, RootKey))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "keys")
			if _, err := Init(dir); err != nil {
				t.Fatal(err)
			}
			before := map[string][]byte{}
			for _, name := range Files() {
				b, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				before[name] = b
			}
			if err := os.Remove(filepath.Join(dir, KeySet)); err != nil {
				t.Fatal(err)
			}
			lose(t, filepath.Join(dir, RootKey))
			_, err := Init(dir)
			if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, RootKey)) || !strings.Contains(err.Error(), filepath.Join(dir, KeySet)) {
				t.Errorf("made anew: %v", err)
			}
			if b, err := os.ReadFile(filepath.Join(dir, RootPublic)); err != nil || !bytes.Equal(b, before[RootPublic]) {
				t.Errorf("the public root key was replaced (%v)", err)
			}
			if err := os.WriteFile(filepath.Join(dir, RootKey), before[RootKey], 0o600); err != nil {
				t.Fatal(err)
			}
			if made, err := Init(dir); err != nil || !made {
				t.Errorf("with the root key: %t, %v", made, err)
			}
		})
	}
}

// TestUnreadableIsNotAbsent checks that a file that cannot be looked for does not count as absent.
func TestUnreadableIsNotAbsent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink(KeySet, filepath.Join(dir, KeySet)); err != nil { // to itself
		t.Fatal(err)
	}
	if _, err := Init(dir); err == nil {
		t.Error("keys were made beside a key set that cannot be read")
	}
	if _, err := os.Stat(filepath.Join(dir, RootKey)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a root key was made: %v", err)
	}
}

// TestRootRotation gives the root key two successors. Receivers of each of them, one that slept through both, and one that is
// given the last, follow; the former root key is removed, and a rotation of the signing key goes on.
func TestRootRotation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	first, _ := signed(t, dir)
	set, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	asleep, awake := set.Trust, set.Trust
	former, err := os.ReadFile(filepath.Join(dir, RootKey))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2) {
		if n, err := RotateRoot(dir); err != nil || n != i+2 {
			t.Fatal(n, err)
		}
		if set, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		if awake, err = awake.Follow(set.Trust.KeySet()); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := Rotate(dir); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	last, keySet := signed(t, dir)
	public, err := keyfile.Public(filepath.Join(dir, RootPublic))
	if err != nil {
		t.Fatal(err)
	}
	given, err := sign.NewTrust(public)
	if err != nil {
		t.Fatal(err)
	}
	for name, receiver := range map[string]sign.Trust{"awake": awake, "asleep": asleep, "given the last root key": given} {
		next, err := receiver.Follow(keySet)
		if err != nil || !next.Root().Equal(public) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, message := range [][]byte{first, last} {
			if _, err := next.Site(message); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, RootKey), former, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(string) (uint64, error){"rotate": Rotate, "retire": Retire, "rotate the root": RotateRoot} {
		if _, err := change(dir); err == nil || !strings.Contains(err.Error(), "is not the root key in force") {
			t.Errorf("%s with the former root key: %v", name, err)
		}
	}
}

// TestRootRotationInterrupted ends a rotation of the root key between any two of its writes: what is there goes on, and the next
// command either has the next root key or the one of before.
func TestRootRotationInterrupted(t *testing.T) {
	t.Parallel()
	before, after := filepath.Join(t.TempDir(), "before"), filepath.Join(t.TempDir(), "after")
	if _, err := Init(before); err != nil {
		t.Fatal(err)
	}
	copied := func(to, from, name, as string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.MkdirAll(to, 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, as), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range Files() {
		copied(after, before, name, name)
	}
	if _, err := RotateRoot(after); err != nil {
		t.Fatal(err)
	}
	for name, done := range map[string][]string{"the next key": {}, "the key set": {KeySet}, "the public key": {KeySet, RootPublic}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "keys")
			for _, name := range Files() {
				copied(dir, before, name, name)
			}
			copied(dir, after, RootKey, nextRoot)
			for _, name := range done {
				copied(dir, after, name, name)
			}
			was, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Rotate(dir); err != nil {
				t.Fatal(err)
			}
			is, err := Open(dir)
			if err != nil || !is.Trust.Root().Equal(was.Trust.Root()) || is.Trust.Number() != was.Trust.Number()+1 {
				t.Errorf("key set %d after %d, %v", is.Trust.Number(), was.Trust.Number(), err)
			}
			if _, err := os.Stat(filepath.Join(dir, nextRoot)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: %v", nextRoot, err)
			}
			if _, err := RotateRoot(dir); err != nil {
				t.Error(err)
			}
		})
	}
}
