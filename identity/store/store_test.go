package store_test

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/identity/store"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCredential(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "identity")
	s := open(t, dir)
	if _, err := s.Load(store.Machine); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("load of nothing: %v", err)
	}
	root, made, err := s.InitRoot(now)
	if err != nil || !made {
		t.Fatalf("init: made %v, %v", made, err)
	}
	key, err := s.Key(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := root.Issue(identity.OfNode("a", "n"), key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(store.Machine, &identity.Credential{Key: key, Chain: chain, Root: root.Root()}); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	c, err := s.Load(store.Machine)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Check(identity.NewClock(func() time.Time { return time.Unix(0, 0) }, identity.Floor{}, nil))
	if err != nil || p.Name != identity.OfNode("a", "n") {
		t.Errorf("what was stored: %+v, %v", p, err)
	}
	if again, made, err := s.InitRoot(now); err != nil || made || !again.Root().Equal(root.Root()) {
		t.Errorf("second init: made %v, %v", made, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

// TestDamagedKeyStays checks that a key that cannot be read is never replaced by a new one.
func TestDamagedKeyStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if _, _, err := s.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "root.key")
	if err := os.WriteFile(path, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.InitRoot(now); err == nil {
		t.Error("a damaged root was replaced")
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "-----BEGIN" {
		t.Errorf("the damaged key is %q, %v", raw, err)
	}
}

// TestMissingKey checks that a root whose key is gone is not taken for no root: a new one would
// lock out all machines. Its key can be brought back, that of another root cannot.
func TestMissingKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	root, _, err := s.InitRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := s.ExportRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "root.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenRoot(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root without its key: %v", err)
	}
	if _, made, err := s.InitRoot(now); err == nil || made {
		t.Fatalf("a root without its key was replaced: made %v, %v", made, err)
	}
	other := open(t, t.TempDir())
	if _, _, err := other.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	foreign, err := other.ExportRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ImportRoot(foreign); !errors.Is(err, store.ErrHasRoot) {
		t.Errorf("another root over one without its key: %v", err)
	}
	if _, err := s.ImportRoot(saved); err != nil {
		t.Fatal(err)
	}
	if again, err := s.OpenRoot(); err != nil || !again.Root().Equal(root.Root()) {
		t.Errorf("brought back: %v", err)
	}
}

func TestExportImport(t *testing.T) {
	t.Parallel()
	from := open(t, t.TempDir())
	root, _, err := from.InitRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := from.ExportRoot()
	if err != nil {
		t.Fatal(err)
	}
	to := open(t, t.TempDir())
	if _, err := to.ExportRoot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("export of nothing: %v", err)
	}
	for range 2 {
		if _, err := to.ImportRoot(raw); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := to.OpenRoot(); err != nil || !again.Root().Equal(root.Root()) {
		t.Errorf("imported: %v", err)
	}
	other := open(t, t.TempDir())
	if _, _, err := other.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	if _, err := other.ImportRoot(raw); !errors.Is(err, store.ErrHasRoot) {
		t.Errorf("import over another root: %v", err)
	}
	if _, err := to.ImportRoot([]byte("x")); err == nil {
		t.Error("nonsense was imported")
	}
}

// TestAdoptRoot stores the root that is made of an authority of another PKI: once more it is the same, and another one is
// refused.
func TestAdoptRoot(t *testing.T) {
	t.Parallel()
	company := open(t, t.TempDir())
	if _, _, err := company.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	raw, err := company.ExportRoot()
	if err != nil {
		t.Fatal(err)
	}
	unrelated := identitytest.Root(t, now).Root()
	raw = append(store.EncodeCertificates([]*x509.Certificate{unrelated}), raw...) // as a file has that names the PKI's root, too
	s := open(t, t.TempDir())
	var roots []*x509.Certificate
	for range 2 {
		a, err := s.AdoptRoot(raw, now)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, a.Root())
	}
	if again, err := s.OpenRoot(); err != nil || !again.Root().Equal(roots[0]) || !roots[1].Equal(roots[0]) {
		t.Errorf("stored: %v", err)
	}
	other := open(t, t.TempDir())
	if _, _, err := other.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	if _, err := other.AdoptRoot(raw, now); !errors.Is(err, store.ErrHasRoot) {
		t.Errorf("over another root: %v", err)
	}
	if _, err := s.AdoptRoot([]byte("x"), now); err == nil {
		t.Error("nonsense was adopted")
	}
}

func TestFloor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := func() time.Time { return time.Unix(0, 0) }
	root := identitytest.Root(t, now.Add(-time.Hour))
	for _, generation := range []uint32{0, 3} {
		root.SetGeneration(generation)
		leaf := identitytest.Issue(t, root, root, identity.OfLO("a"), now.Add(time.Duration(generation)*24*time.Hour)).Chain[0]
		if err := open(t, dir).Clock(broken).Raise(leaf, root.Root()); err != nil {
			t.Fatal(err)
		}
		if got := open(t, dir).Floor(); got.Generation != generation || !got.Time.Equal(leaf.NotBefore) {
			t.Errorf("after a restart it is %v, want the beginning %s of generation %d", got, leaf.NotBefore, generation)
		}
		if got := open(t, dir).Clock(broken).Now(); got.Before(leaf.NotBefore) {
			t.Errorf("after a restart it is %s, want the floor %s", got, leaf.NotBefore)
		}
	}
}
