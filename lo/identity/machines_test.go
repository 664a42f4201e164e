package identity_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	loidentity "github.com/colonyfleet/colony/lo/identity"
	"github.com/colonyfleet/colony/protocol"
)

var (
	now    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	secret = []byte("0123456789abcdef")
)

func open(t *testing.T, d disk.FS, dir string, damaged func(*statefile.Damage)) *loidentity.Machines {
	t.Helper()
	m, err := loidentity.Open(loidentity.Options{
		Site: "plant1", Dir: dir, Disk: d, Clock: identity.NewClock(func() time.Time { return now }, identity.Floor{}, nil), Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Damaged: damaged, Changed: func([]string) {},
		Report: func(context.Context, protocol.EventKind, protocol.NodeID, protocol.Enrolment) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // of a disk that fails
	return m
}

// set gives the site the tokens of these tests, as the CO does.
func set(t *testing.T, m *loidentity.Machines) {
	t.Helper()
	hash, end := identity.HashSecret(secret), now.Add(time.Hour).UnixMilli()
	err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Tokens: []protocol.NodeToken{
		{ID: "instead", Secret: hash, Uses: 1, ExpiresMillis: end, Replace: true},
		{ID: "late", Secret: hash, Uses: 9, ExpiresMillis: now.UnixMilli()},
		{ID: "one", Secret: hash, Uses: 1, ExpiresMillis: end},
		{ID: "two", Secret: hash, Uses: 2, ExpiresMillis: end},
	}}))
	if err != nil {
		t.Fatal(err)
	}
}

func claim(token, node, key string) identity.Claim {
	return identity.Claim{Token: token, Secret: secret, Name: identity.OfNode("plant1", protocol.NodeID(node)), Key: key, Remote: "192.0.2.1:5"}
}

// TestAdmit goes through all that can be wrong with a claim, with a restart of the LO before
// each, and the CO's tokens sent again.
func TestAdmit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none := func(d *statefile.Damage) { t.Errorf("damaged: %v", d) }
	if err := open(t, disk.OS, dir, none).Admit(t.Context(), claim("one", "g1", "k1")); identity.CodeOf(err) != identity.TokenUnknown {
		t.Errorf("before the CO has sent tokens: %v", err)
	}
	wrong, foreign := claim("one", "g1", "k1"), claim("one", "g1", "k1")
	wrong.Secret, foreign.Name.Site = []byte("another 16 bytes"), "plant2"
	for _, c := range []struct {
		what  string
		claim identity.Claim
		want  identity.Code // "": admitted
	}{
		{"no such token", claim("x", "g1", "k1"), identity.TokenUnknown},
		{"a wrong secret", wrong, identity.TokenUnknown},
		{"another site", foreign, identity.WrongSite},
		{"too late", claim("late", "g1", "k1"), identity.TokenExpired},
		{"the first", claim("one", "g1", "k1"), ""},
		{"the same, as its answer was lost", claim("one", "g1", "k1"), ""},
		{"replayed by another gateway", claim("one", "g2", "k2"), identity.TokenExhausted},
		{"two boxes, one name", claim("two", "g1", "k2"), identity.NameTaken},
		{"a second name", claim("two", "g2", "k2"), ""},
		{"the gateway itself, with another token", claim("two", "g1", "k1"), ""},
		{"one use too many", claim("two", "g3", "k3"), identity.TokenExhausted},
		{"a gateway that takes the place of another", claim("instead", "g1", "k4"), ""},
	} {
		m := open(t, disk.OS, dir, none)
		set(t, m)
		if err := m.Admit(t.Context(), c.claim); (err == nil) != (c.want == "") || err != nil && identity.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	m := open(t, disk.OS, dir, none)
	for key, want := range map[string]bool{"k1": false, "k4": true} {
		if err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", "g1"), Key: key}); (err == nil) != want {
			t.Errorf("renewal of g1 with %s: %v, want it: %v", key, err, want)
		}
	}
	if err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant2"})); err == nil {
		t.Error("tokens of another site were taken")
	}
}

// TestFullDisk checks that a use that cannot be stored is no use: the node tries again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d := &failing{FS: disk.OS}
	m := open(t, d, t.TempDir(), nil)
	set(t, m)
	d.full = true
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); !errors.Is(err, errFull) || identity.CodeOf(err) != identity.Unavailable {
		t.Errorf("on a full disk: %v", err)
	}
	d.full = false
	if err := m.Admit(t.Context(), claim("one", "g2", "k2")); err != nil {
		t.Errorf("the token was used up by a node that was not admitted: %v", err)
	}
}

// TestTokensOnFullDisk checks that tokens that cannot be stored count, as an error would end the
// link to the CO, that they are stored later, and that those that are known are not stored again.
func TestTokensOnFullDisk(t *testing.T) {
	t.Parallel()
	d, dir := &failing{FS: disk.OS, full: true}, t.TempDir()
	m := open(t, d, dir, nil)
	set(t, m)
	d.full = false
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); err != nil {
		t.Errorf("with a token that was not stored: %v", err)
	}
	d.full = true
	if err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1"})); err != nil {
		t.Error(err)
	}
	set(t, m)
	d.full, d.renames = false, 0
	for range 3 {
		set(t, m)
	}
	if d.renames != 1 {
		t.Errorf("the same tokens were stored %d times, want once", d.renames)
	}
	if err := open(t, disk.OS, dir, nil).Admit(t.Context(), claim("two", "g2", "k2")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// TestDamage checks that a damaged file is reported, and that the LO goes on with the tokens
// that the CO sends.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set(t, open(t, disk.OS, dir, nil))
	if err := os.WriteFile(filepath.Join(dir, "nodes.log"), []byte("COLONYS1 and then nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	found := 0
	m := open(t, disk.OS, dir, func(*statefile.Damage) { found++ })
	if found != 1 {
		t.Errorf("damage reported %d times", found)
	}
	set(t, m)
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); err != nil {
		t.Error(err)
	}
}

// TestLostNodes checks that an LO that lost what it knew renews its nodes by the certificates
// that they have, and is not taken in by others.
func TestLostNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	peer := func(node, key string) identity.Peer {
		return identity.Peer{Name: identity.OfNode("plant1", protocol.NodeID(node)), Key: key}
	}
	foreign, expired := peer("g1", "k1"), peer("g2", "k2")
	foreign.Name.Site, expired.Expired = "plant2", true
	for _, c := range []struct {
		what string
		peer identity.Peer
		want identity.Code // "": renewed
	}{
		{"a node of another site", foreign, identity.WrongSite},
		{"one whose certificate has ended", expired, identity.NotEnrolled},
		{"one whose certificate counts", peer("g1", "k1"), ""},
		{"the same again", peer("g1", "k1"), ""},
		{"another one of its name", peer("g1", "k2"), identity.NotEnrolled},
	} {
		m := open(t, disk.OS, dir, nil)
		if err := m.Renewed(t.Context(), c.peer); (err == nil) != (c.want == "") || err != nil && identity.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	m := open(t, disk.OS, dir, nil)
	set(t, m)
	if err := m.Admit(t.Context(), claim("two", "g1", "k2")); identity.CodeOf(err) != identity.NameTaken {
		t.Errorf("a name that was taken by a renewal: %v", err)
	}
}

var errFlush = errors.New("the flush failed")

var errFull = fmt.Errorf("no room: %w", syscall.ENOSPC)

// failing is a disk that is full on demand.
type failing struct {
	disk.FS
	full    bool
	renames int
	// unflushed has flushes of what was written at the end of a file fail.
	unflushed bool
}

func (d *failing) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := d.FS.Open(path, flag, perm)
	return file{f, d, path}, err
}

// A file of a disk that is full on demand.
type file struct {
	disk.File
	d    *failing
	path string
}

func (f file) WriteAt(b []byte, at int64) (int, error) {
	if f.d.full {
		return 0, errFull
	}
	return f.File.WriteAt(b, at)
}

// Sync implements disk.File.
func (f file) Sync() error {
	if f.d.unflushed && !strings.Contains(f.path, ".tmp") {
		return errFlush
	}
	return f.File.Sync()
}

func (d *failing) Rename(from, to string) error {
	if d.full {
		return errFull
	}
	d.renames++
	return d.FS.Rename(from, to)
}

// TestManyNodes enrols many nodes: each is one record of the file, which is not replaced for it, and all are
// known after a restart. Then a node that is enrolled over and over does not make the file grow for ever.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	const many = 300
	dir, d := t.TempDir(), &failing{FS: disk.OS}
	m := open(t, d, dir, nil)
	tokens := []protocol.NodeToken{{ID: "all", Secret: identity.HashSecret(secret), Uses: 1 << 20, ExpiresMillis: now.Add(time.Hour).UnixMilli()}}
	tokens = append(tokens, tokens[0])
	tokens[1].ID = "other"
	if err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Tokens: tokens})); err != nil {
		t.Fatal(err)
	}
	d.renames = 0
	for i := range many {
		if err := m.Admit(t.Context(), claim("all", fmt.Sprintf("g%d", i), fmt.Sprintf("k%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if d.renames != 0 {
		t.Errorf("the file was replaced %d times", d.renames)
	}
	m = open(t, d, dir, func(d *statefile.Damage) { t.Errorf("damaged: %v", d) })
	for i := range many {
		if err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", protocol.NodeID(fmt.Sprintf("g%d", i))), Key: fmt.Sprintf("k%d", i), Expired: true}); err != nil {
			t.Errorf("g%d after a restart: %v", i, err)
		}
	}
	for i := range 3 * many { // one gateway with two tokens in turn, and a long key, so that few will do
		if err := m.Admit(t.Context(), claim([]string{"all", "other"}[i%2], "one", strings.Repeat("k", 2<<10))); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "nodes.log")); err != nil || info.Size() > 1<<20 {
		t.Errorf("the file has %d bytes (%v)", info.Size(), err)
	}
	if d.renames == 0 {
		t.Error("the file was never replaced")
	}
}

// TestFailedFlush has the disk fail to make durable what was appended: the node is not admitted until it is.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	d, dir := &failing{FS: disk.OS}, t.TempDir()
	m := open(t, d, dir, nil)
	set(t, m)
	d.unflushed = true
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); !errors.Is(err, errFlush) {
		t.Errorf("a flush that failed: %v", err)
	}
	d.full = true
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); !errors.Is(err, errFull) {
		t.Errorf("the same claim, while the file cannot be replaced: %v", err)
	}
	if err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", "g1"), Key: "k1"}); err != nil {
		t.Errorf("a renewal, which needs no room: %v", err)
	}
	d.full = false
	if err := m.Admit(t.Context(), claim("one", "g1", "k1")); err != nil {
		t.Errorf("the same claim: %v", err)
	}
	if err := open(t, disk.OS, dir, nil).Admit(t.Context(), claim("one", "g1", "k1")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// TestManyAtOnce enrols nodes at once, which share flushes.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := open(t, disk.OS, dir, nil)
	tokens := []protocol.NodeToken{{ID: "all", Secret: identity.HashSecret(secret), Uses: 100, ExpiresMillis: now.Add(time.Hour).UnixMilli()}}
	if err := m.SetTokens(protocol.Marshal(&protocol.SiteTokens{V: protocol.Version, Site: "plant1", Tokens: tokens})); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if err := m.Admit(t.Context(), claim("all", fmt.Sprintf("g%d", i), fmt.Sprintf("k%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	m = open(t, disk.OS, dir, func(d *statefile.Damage) { t.Errorf("damaged: %v", d) })
	for i := range 100 {
		if !m.Enrolled(protocol.NodeID(fmt.Sprintf("g%d", i))) {
			t.Errorf("g%d is not known after a restart", i)
		}
	}
	if err := m.Admit(t.Context(), claim("all", "g100", "k100")); identity.CodeOf(err) != identity.TokenExhausted {
		t.Errorf("one use too many: %v", err)
	}
}

// TestFormerFile reads the file of builds that replaced it whole, and removes it.
func TestFormerFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	former := statefile.File{Disk: disk.OS, Path: filepath.Join(dir, "nodes"), Identity: statefile.Identity{Role: "lo/machines"}}
	if err := former.Save([]byte(`{"tokens": null, "used": {"two": 2}, "nodes": {"g1": {"key": "k1", "token": "two", "certified": true}}, "replaced": {"k0": 4102444800000}}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m := open(t, disk.OS, dir, func(d *statefile.Damage) { t.Errorf("damaged: %v", d) })
		set(t, m)
		for key, want := range map[string]identity.Code{"k1": "", "k0": identity.Revoked} {
			err := m.Renewed(t.Context(), identity.Peer{Name: identity.OfNode("plant1", "g1"), Key: key})
			if (err == nil) != (want == "") || err != nil && identity.CodeOf(err) != want {
				t.Errorf("renewal with %s: %v, want %q", key, err, want)
			}
		}
		if err := m.Admit(t.Context(), claim("two", "g2", "k2")); identity.CodeOf(err) != identity.TokenExhausted {
			t.Errorf("a token that was used up: %v", err)
		}
		if _, err := os.Stat(former.Path); err == nil {
			t.Error("the former file is still there")
		}
	}
}
