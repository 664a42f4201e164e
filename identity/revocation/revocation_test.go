package revocation_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
	"github.com/google/go-cmp/cmp"
)

// A machine has a List, and what it said had changed.
type machine struct {
	*revocation.List
	changed [][]string
	refused []error
	damaged int
}

func open(t *testing.T, dir string, root ed25519.PublicKey) *machine {
	t.Helper()
	m := &machine{}
	var err error
	m.List, err = revocation.Open(revocation.Options{
		Site: "plant", Root: root, Disk: disk.OS, Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Changed: func(keys []string) { m.changed = append(m.changed, keys) },
		Refused: func(err error) { m.refused = append(m.refused, err) },
		Damaged: func(*statefile.Damage) { m.damaged++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func key(of string) []byte {
	sum := sha256.Sum256([]byte(of))
	return sum[:]
}

func list(site protocol.SiteID, number uint64, of ...string) protocol.Revocations {
	m := protocol.Revocations{V: 1, Site: site, Number: number}
	for _, one := range of {
		m.Keys = append(m.Keys, protocol.RevokedKey{Key: key(one), EndMillis: 1700000000000})
	}
	return m
}

// signed is the message of a CO.
func signed(t *testing.T, c *signtest.CO, m protocol.Revocations) []byte {
	t.Helper()
	statement, err := c.Key.Revocations(m)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Marshal(&protocol.SiteRevocations{V: 1, Statement: statement, KeySet: c.KeySet})
}

func unsigned(m protocol.Revocations) []byte {
	return protocol.Marshal(&protocol.SiteRevocations{V: 1, List: protocol.Marshal(&m)})
}

// TestOnlySigned offers what a machine refuses: each has its reason, is counted, and changes nothing.
func TestOnlySigned(t *testing.T) {
	t.Parallel()
	co, thief := signtest.New(t, 1), signtest.New(t, 50)
	dir := t.TempDir()
	m := open(t, dir, co.Root())
	good := signed(t, co, list("plant", 7, "a", "b"))
	if changed, err := m.Set(good); err != nil || !changed {
		t.Fatalf("a list: %v, %v", changed, err)
	}
	if changed, err := m.Set(good); err != nil || changed {
		t.Fatalf("the same once more: %v, %v", changed, err)
	}
	altered := bytes.Clone(good)
	altered[bytes.Index(altered, key("a"))] ^= 1
	forged := thief.Key
	statement, err := forged.Revocations(list("plant", 9))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what    string
		payload []byte
		want    sign.Reason
	}{
		{"a shorter list of before", signed(t, co, list("plant", 6, "a")), sign.Stale},
		{"another one with its number", signed(t, co, list("plant", 7, "a")), sign.Mismatch},
		{"that of another site", signed(t, co, list("plant2", 8)), sign.WrongSite},
		{"that of another fleet", signed(t, thief, list("plant", 8)), sign.UnknownKey},
		{"one by a key of somebody else", protocol.Marshal(&protocol.SiteRevocations{V: 1, Statement: statement, KeySet: co.KeySet}), sign.UnknownKey},
		{"one that is not signed", unsigned(list("plant", 8)), sign.Unsigned},
		{"one that was altered", altered, sign.BadSignature},
		{"no list", []byte{1}, sign.Malformed},
	} {
		before := m.Refused()[c.want]
		if changed, err := m.Set(c.payload); sign.ReasonOf(err) != c.want || changed {
			t.Errorf("%s: %v, %v, want %s", c.what, changed, err, c.want)
		}
		if _, err := m.Set(c.payload); err == nil {
			t.Errorf("%s was taken the second time", c.what)
		}
		if n := m.Refused()[c.want]; n != before+2 {
			t.Errorf("%s: counted %d times", c.what, n-before)
		}
	}
	if changed, err := m.Set(nil); changed || err != nil {
		t.Errorf("a topic that was cleared: %v, %v", changed, err)
	}
	if len(m.refused) != 8 {
		t.Errorf("%d refusals were reported, want each once", len(m.refused))
	}
	want := []string{hex.EncodeToString(key("a")), hex.EncodeToString(key("b"))}
	if len(m.changed) != 2 || len(m.changed[0]) != 0 || !slices.Equal(m.changed[1], want) || !slices.Equal(m.Keys(), want) {
		t.Errorf("changes %v, want none at the start and then the list", m.changed)
	}
	// After a restart neither the list nor its number is lost, and keys that were rotated are followed.
	m = open(t, dir, co.Root())
	if !slices.Equal(m.Keys(), want) || !bytes.Equal(m.Payload(), good) || len(m.changed) != 1 {
		t.Errorf("after a restart: %v, changes %v", m.Keys(), m.changed)
	}
	if _, err := m.Set(signed(t, co, list("plant", 6))); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("an earlier list after a restart: %v", err)
	}
	former := *co
	co.Use(2, signtest.Signer(t, 3))
	if changed, err := m.Set(signed(t, co, list("plant", 7, "a", "b"))); err != nil || !changed {
		t.Errorf("the same list by the next key: %v, %v", changed, err)
	}
	if _, err := m.Set(signed(t, &former, list("plant", 8))); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("by a key that was retired: %v", err)
	}
	late := *co
	co.Use(3, signtest.Signer(t, 4))
	m.Follow(former.KeySet)
	m.Follow([]byte{1})
	m.Follow(co.KeySet)
	if _, err := m.Set(signed(t, &late, list("plant", 8))); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("by a key that was retired with a desired state: %v", err)
	}
	if changed, err := m.Set(signed(t, co, list("plant", 8))); err != nil || !changed || len(m.Keys()) != 0 {
		t.Errorf("an empty list: %v, %v, %v", changed, err, m.Keys())
	}
}

// TestWithoutRootKey checks that a machine without the root key takes what arrives, signed or not, and
// keeps it when it is given the root key.
func TestWithoutRootKey(t *testing.T) {
	t.Parallel()
	co, dir := signtest.New(t, 1), t.TempDir()
	m := open(t, dir, nil)
	for _, payload := range [][]byte{signed(t, co, list("plant", 3, "a")), unsigned(list("plant", 4, "a", "b"))} {
		if changed, err := m.Set(payload); err != nil || !changed {
			t.Errorf("%v, %v", changed, err)
		}
	}
	if _, err := m.Set(unsigned(list("plant", 3))); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("an earlier list: %v", err)
	}
	m = open(t, dir, co.Root())
	if len(m.Keys()) != 2 || m.damaged > 0 {
		t.Errorf("with the root key: %v, damaged %d", m.Keys(), m.damaged)
	}
	if changed, err := m.Set(signed(t, co, list("plant", 4, "a", "b"))); err != nil || !changed {
		t.Errorf("the same, signed: %v, %v", changed, err)
	}
}

// TestDamaged checks that a damaged file counts as none, is reported, and stops nothing.
func TestDamaged(t *testing.T) {
	t.Parallel()
	co, dir := signtest.New(t, 1), t.TempDir()
	good := signed(t, co, list("plant", 3, "a"))
	if _, err := open(t, dir, co.Root()).Set(good); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "revocations.cbor")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	m := open(t, dir, co.Root())
	if m.damaged != 1 || len(m.Keys()) != 0 || m.Number() != 0 {
		t.Errorf("damaged %d, keys %v", m.damaged, m.Keys())
	}
	if changed, err := m.Set(good); err != nil || !changed {
		t.Errorf("once more: %v, %v", changed, err)
	}
}

// TestHandOn hands on a list that could not be published the first time, and one that comes later, each once.
func TestHandOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := open(t, dir, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var published [][]byte
		fails := 0
		go m.HandOn(ctx, func(_ context.Context, payload []byte) error {
			if fails > 0 {
				fails--
				return errors.New("no room")
			}
			published = append(published, payload)
			return nil
		})
		want := func(lists ...[]byte) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if diff := cmp.Diff(lists, published); diff != "" {
				t.Errorf("handed on (-want +got):\n%s", diff)
			}
		}
		want()
		first, second := unsigned(list("plant", 7, "a")), unsigned(list("plant", 8, "a", "b"))
		fails = 3
		if _, err := m.Set(first); err != nil {
			t.Fatal(err)
		}
		want(first)
		if _, err := m.Set(second); err != nil {
			t.Fatal(err)
		}
		want(first, second)
		if _, err := m.Set(second); err != nil {
			t.Fatal(err)
		}
		want(first, second)
	})
}
