package store_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// stored makes what an LO keeps, and returns the files of it.
func stored(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	above := open(t, t.TempDir())
	root, _, err := above.InitRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	key := func(name string) *identity.Credential {
		k, err := s.Key(name)
		if err != nil {
			t.Fatal(err)
		}
		return &identity.Credential{Key: k, Root: root.Root()}
	}
	machine, issuer := key(store.Machine), key(store.Issuer)
	if machine.Chain, err = root.Issue(identity.OfLO("a"), machine.Key.Public(), now); err != nil {
		t.Fatal(err)
	}
	cert, err := root.IssueSite("a", issuer.Key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	issuer.Chain = append(issuer.Chain, cert)
	if err := errors.Join(s.Save(store.Machine, machine), s.Save(store.Issuer, issuer), s.Clock(time.Now).Raise(machine.Chain[0], root.Root())); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"machine.key", "machine.crt", "issuer.key", "issuer.crt", "clock.floor"} {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// on returns a disk with the files in the directory at.
func on(t *testing.T, files map[string][]byte) disk.FS {
	t.Helper()
	d := simdisk.New(1)
	if err := d.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := atomicfile.Write(d, filepath.Join(at, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

const at = "/identity"

// opened is the store of a disk of on.
func opened(t *testing.T, d disk.FS) *store.Store {
	t.Helper()
	s, err := store.Open(d, at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// floorOf is where the clock of a store begins to count.
func floorOf(s *store.Store) time.Time { return s.Floor().Time }

// repaired repairs all that an LO keeps, and returns which files were found damaged.
func repaired(s *store.Store) (names []string) {
	for _, d := range append(s.Repair(store.Machine), s.Repair(store.Issuer)...) {
		names = append(names, filepath.Base(d.Path))
	}
	slices.Sort(names)
	return names
}

var everyBit = flag.Bool("every-bit", false, "have TestEveryDamage flip every bit of keys and certificates, and not only some")

// TestEveryDamage flips bits of what an LO keeps, each one of the floor of its clock, and cuts and swaps the files. Each damage is
// noticed and set aside; what counts after that is what was stored, or nothing, and a key can be made.
func TestEveryDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := stored(t, dir)
	before := map[string]*identity.Credential{}
	for _, name := range []string{store.Machine, store.Issuer} {
		c, err := open(t, dir).Load(name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = c
	}
	check := func(what string, damaged map[string][]byte, want ...string) {
		t.Helper()
		s := opened(t, on(t, damaged))
		found := repaired(s)
		for _, w := range want {
			if !slices.Contains(found, w) {
				t.Fatalf("%s: %q were found damaged, want %q", what, found, want)
			}
		}
		for name, was := range before {
			c, err := s.Load(name)
			switch {
			case err == nil && (!c.Chain[0].Equal(was.Chain[0]) || !c.Root.Equal(was.Root)):
				t.Fatalf("%s: another %s counts", what, name)
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				t.Fatalf("%s: %s: %v", what, name, err)
			}
			if _, err := s.Key(name); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if floor := floorOf(s); !floor.Equal(before[store.Machine].Chain[0].NotBefore) && !floor.IsZero() {
			t.Fatalf("%s: the clock counts from %s on", what, floor)
		}
		if again := repaired(s); len(again) > 0 {
			t.Fatalf("%s: %q are damaged after the repair", what, again)
		}
	}
	check("no damage", files)
	names := slices.Sorted(maps.Keys(files))
	for i, name := range names {
		content := files[name]
		for at := range content {
			for bit := range 8 {
				if (at%4 != 0 || bit != at/4%8) && name != "clock.floor" && !*everyBit {
					continue
				}
				damaged := maps.Clone(files)
				damaged[name] = bytes.Clone(content)
				damaged[name][at] ^= 1 << bit
				check(fmt.Sprintf("flip of bit %d of byte %d of %s", bit, at, name), damaged, name)
			}
			if at%64 != 0 && !*everyBit {
				continue
			}
			damaged := maps.Clone(files)
			damaged[name] = content[:at]
			check(fmt.Sprintf("cut of %s at %d", name, at), damaged, name)
		}
		for _, other := range names[i+1:] {
			damaged := maps.Clone(files)
			damaged[name], damaged[other] = files[other], files[name]
			check("swap of "+name+" with "+other, damaged, name, other)
		}
	}
}

// TestFloorWithoutHeader checks that the floor of a build that wrote it without a header counts.
func TestFloorWithoutHeader(t *testing.T) {
	t.Parallel()
	s := opened(t, on(t, map[string][]byte{"clock.floor": []byte(now.Format(time.RFC3339))}))
	if found := repaired(s); len(found) > 0 || !floorOf(s).Equal(now) {
		t.Errorf("the floor is %s, and %q are damaged", floorOf(s), found)
	}
}

// TestRepairKeepsTheKey checks that a key that is right outlives its certificates, by which the machine
// is known, and that certificates go with a key that is damaged or missing.
func TestRepairKeepsTheKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spoilt string
		aside  []string
		kept   bool
	}{
		{"machine.crt", []string{"machine.crt"}, true},
		{"machine.key", []string{"issuer.crt", "issuer.key", "machine.crt", "machine.key"}, false},
		{"", []string{"issuer.crt", "issuer.key", "machine.crt"}, false}, // the key is missing
	} {
		files := stored(t, t.TempDir())
		if c.spoilt == "" {
			delete(files, "machine.key")
		} else {
			files[c.spoilt] = []byte("-----BEGIN")
		}
		d := on(t, files)
		s := opened(t, d)
		if found := repaired(s); !slices.Equal(found, c.aside) {
			t.Errorf("%q: %q were set aside", c.spoilt, found)
		}
		if _, err := s.Key(store.Machine); err != nil {
			t.Errorf("%q: %v", c.spoilt, err)
		}
		raw, err := disk.ReadFile(d, filepath.Join(at, "machine.key"))
		if err != nil || bytes.Equal(raw, files["machine.key"]) != c.kept {
			t.Errorf("%q: the key is kept: %v, want %v; %v", c.spoilt, !c.kept, c.kept, err)
		}
		left, err := d.List(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.aside {
			if !slices.ContainsFunc(left, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), name+".damaged-") }) {
				t.Errorf("%q: %s was not kept aside", c.spoilt, name)
			}
		}
	}
}

// TestRepairLeavesTheRoot checks that a damaged root stays where it is: no other one is made.
func TestRepairLeavesTheRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if _, _, err := s.InitRoot(now); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "root.key")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[40] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if found := s.Repair(store.Root); len(found) > 0 {
		t.Errorf("of the root there was set aside %v", found)
	}
	if _, err := s.OpenRoot(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root whose key is damaged: %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, raw) {
		t.Errorf("the damaged key was changed: %v", err)
	}
}

// TestLaterFloor checks that the floor of a later release is neither read nor replaced.
func TestLaterFloor(t *testing.T) {
	t.Parallel()
	id := statefile.Identity{Role: "identity/clock"}
	later := id.Seal([]byte("of a later format"))
	later[8] = 99
	sum := sha256.New()
	for _, part := range [][]byte{later[:32], []byte(id.Role), []byte(id.Name), later[64:]} {
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write(part)
	}
	copy(later[32:], sum.Sum(nil))
	d := on(t, map[string][]byte{"clock.floor": later})
	s := opened(t, d)
	if found := repaired(s); len(found) > 0 || !floorOf(s).IsZero() {
		t.Errorf("%q are damaged, the floor is %s", found, floorOf(s))
	}
	root := identitytest.Root(t, now)
	if err := s.Clock(time.Now).Raise(root.Root(), root.Root()); err == nil || !strings.Contains(err.Error(), "format 99") {
		t.Errorf("raise over the floor of a later release: %v", err)
	}
	if raw, err := disk.ReadFile(d, filepath.Join(at, "clock.floor")); err != nil || !bytes.Equal(raw, later) {
		t.Errorf("the file was changed: %v", err)
	}
}
