package desired

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/disk/simdisk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

// openChecking opens a Store that checks signatures by a root key.
func openChecking(t *testing.T, dir string, root ed25519.PublicKey, fetch Fetch) *Store {
	t.Helper()
	s, err := Open(Options{Disk: disk.OS, Dir: dir, Site: "s1", Fetch: fetch, Root: root, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rich is a state with each part that is signed.
func rich(generation uint64) protocol.SiteDesired {
	m := state(generation, entry("a", "1"), entry("b", "1"))
	at := protocol.Position{Epoch: 1, Generation: generation}
	m.Removals = []protocol.Removal{{Deployment: "old", Position: at}}
	m.Purges = []protocol.Purge{{Node: "n1", Deployment: "older", Position: at}}
	return m
}

// TestOnlySigned checks that only what the CO signed for this site is adopted, that a refusal
// leaves what is in force, and that the statements about the parts are kept over a restart.
func TestOnlySigned(t *testing.T) {
	t.Parallel()
	dir, co, stranger := t.TempDir(), signtest.New(t, 1), signtest.New(t, 9)
	s := openChecking(t, dir, co.Root(), none)
	if adopted, err := offer(t, s, co.Sign(rich(5))); !adopted || err != nil {
		t.Fatalf("adopted %t, %v", adopted, err)
	}
	changed := co.Sign(rich(6))
	changed.Deployments[0].Placement.Node = "n2"
	elsewhere := rich(6)
	elsewhere.Site = "s2"
	elsewhere = co.Sign(elsewhere)
	elsewhere.Site = "s1"
	mixed := co.Sign(rich(6))
	mixed.Deployments = mixed.Deployments[:1]
	empty := co.Sign(rich(6))
	empty.Deployments, empty.Removals = nil, []protocol.Removal{{Deployment: "a", Position: empty.Position}, {Deployment: "b", Position: empty.Position}}
	ownKeys := stranger.Sign(rich(6))
	foreignSet := co.Sign(rich(6))
	foreignSet.KeySet = stranger.KeySet
	for name, tt := range map[string]struct {
		m    protocol.SiteDesired
		want sign.Reason
	}{
		"not signed":                  {rich(6), sign.Unsigned},
		"a placement changed":         {changed, sign.Mismatch},
		"for another site":            {elsewhere, sign.WrongSite},
		"an entry left out":           {mixed, sign.Mismatch},
		"removal of everything":       {empty, sign.Mismatch},
		"by keys of its own":          {ownKeys, sign.UnknownKey},
		"with a key set of its own":   {foreignSet, sign.UnknownKey},
		"a later position of the old": {later(co.Sign(rich(5)), 7), sign.Mismatch},
	} {
		if adopted, err := offer(t, s, tt.m); adopted || sign.ReasonOf(err) != tt.want || protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%s: adopted %t, %v; want %s", name, adopted, err, tt.want)
		}
	}
	if adopted, err := offer(t, s, co.Sign(rich(4))); adopted || protocol.KindOf(err) != protocol.Conflict {
		t.Errorf("an old state, replayed: adopted %t, %v", adopted, err)
	}
	for _, s := range []*Store{s, openChecking(t, dir, co.Root(), none)} {
		m, held := s.Current()
		if !held || m.Position.Generation != 5 || !s.Checked() {
			t.Fatalf("in force is %v, held %t, checked %t", m.Position, held, s.Checked())
		}
		believesParts(t, s, co, m)
	}
}

func later(m protocol.SiteDesired, generation uint64) protocol.SiteDesired {
	m.Position.Generation = generation
	return m
}

// believesParts checks the statements that a Store keeps, as a node does.
func believesParts(t *testing.T, s *Store, co *signtest.CO, m protocol.SiteDesired) {
	t.Helper()
	trust, err := sign.NewTrust(co.Root())
	if err == nil {
		trust, err = trust.Follow(m.KeySet)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range m.Deployments {
		spec, _ := s.Spec(e.Digest)
		if got, err := trust.Entry("s1", spec.Signature); err != nil || got.Deployment != e.Deployment || got.Digest != e.Digest {
			t.Errorf("entry of %s: %+v, %v", e.Deployment, got, err)
		}
	}
	if _, err := trust.Tombstone("s1", m.Removals[0].Signature); err != nil {
		t.Error(err)
	}
	if _, err := trust.Purge("s1", m.Purges[0].Signature); err != nil {
		t.Error(err)
	}
}

// TestRotatedKey has the CO sign the state in force with a new key: the statements are
// replaced, and an old key set is not followed any more.
func TestRotatedKey(t *testing.T) {
	t.Parallel()
	dir, co := t.TempDir(), signtest.New(t, 1)
	s := openChecking(t, dir, co.Root(), none)
	first := co.Sign(rich(5))
	if adopted, err := offer(t, s, first); !adopted || err != nil {
		t.Fatal(adopted, err)
	}
	co.Use(2, signtest.Signer(t, 3))
	if adopted, err := offer(t, s, co.Sign(rich(5))); !adopted || err != nil {
		t.Fatalf("signed anew: adopted %t, %v", adopted, err)
	}
	for _, s := range []*Store{s, openChecking(t, dir, co.Root(), none)} {
		m, _ := s.Current()
		believesParts(t, s, co, m)
		if adopted, err := offer(t, s, co.Sign(rich(5))); adopted || err != nil {
			t.Errorf("the same once more: adopted %t, %v", adopted, err)
		}
		if _, err := offer(t, s, first); sign.ReasonOf(err) != sign.Stale {
			t.Errorf("with the former key set: %v", err)
		}
	}
}

// TestLargeSigned has a signed state named by digest: it is fetched once, and not again
// after a restart.
func TestLargeSigned(t *testing.T) {
	t.Parallel()
	dir, co, fetched := t.TempDir(), signtest.New(t, 1), 0
	body := co.Sign(rich(5))
	encoded := protocol.Marshal(&body)
	fetch := func(_ context.Context, w Want) ([]byte, error) {
		d := w.Digest
		if d != protocol.DigestOf(encoded) {
			return nil, protocol.Errorf(protocol.NotFound, "no %s", d)
		}
		fetched++
		return encoded, nil
	}
	pointer := protocol.SiteDesired{V: 1, Site: "s1", Position: body.Position, Content: body.Content, Digest: protocol.DigestOf(encoded), Size: uint64(len(encoded))}
	s := openChecking(t, dir, co.Root(), fetch)
	if adopted, err := offer(t, s, pointer); !adopted || err != nil {
		t.Fatal(adopted, err)
	}
	for _, s := range []*Store{s, openChecking(t, dir, co.Root(), fetch)} {
		if adopted, err := offer(t, s, pointer); adopted || err != nil || fetched != 1 {
			t.Errorf("once more: adopted %t, %v, fetched %d times", adopted, err, fetched)
		}
	}
	forged := rich(6)
	encoded = protocol.Marshal(&forged)
	pointer.Position, pointer.Digest, pointer.Size = forged.Position, protocol.DigestOf(encoded), uint64(len(encoded))
	if _, err := offer(t, s, pointer); sign.ReasonOf(err) != sign.Unsigned {
		t.Errorf("a state by digest that nobody signed: %v", err)
	}
}

// TestKeysComeLater gives an LO that has adopted a state without a check the root key: what is
// in force goes on, and the signatures of the same state are taken up and checked.
func TestKeysComeLater(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*signtest.CO) protocol.SiteDesired{
		"of a CO that did not sign": func(*signtest.CO) protocol.SiteDesired { return rich(5) },
		"of a CO that signed":       func(co *signtest.CO) protocol.SiteDesired { return co.Sign(rich(5)) },
	} {
		dir, co := t.TempDir(), signtest.New(t, 1)
		if adopted, err := offer(t, open(t, dir, none), first(co)); !adopted || err != nil {
			t.Fatal(adopted, err)
		}
		s := openChecking(t, dir, co.Root(), none)
		if m, held := s.Current(); !held || len(m.Deployments) != 2 || s.Checked() {
			t.Fatalf("%s: held %t, %d deployments, checked %t", name, held, len(m.Deployments), s.Checked())
		}
		if adopted, err := offer(t, s, co.Sign(rich(5))); !adopted || err != nil || !s.Checked() {
			t.Errorf("%s: adopted %t, %v, checked %t", name, adopted, err, s.Checked())
		}
		m, _ := s.Current()
		believesParts(t, s, co, m)
	}
}

// TestNotChecking has an LO without the root key keep the statements for the nodes.
func TestNotChecking(t *testing.T) {
	t.Parallel()
	co := signtest.New(t, 1)
	s := open(t, t.TempDir(), none)
	if adopted, err := offer(t, s, co.Sign(rich(5))); !adopted || err != nil || s.Checked() {
		t.Fatal(adopted, err, s.Checked())
	}
	m, _ := s.Current()
	believesParts(t, s, co, m)
}

// TestOtherRootKey gives an LO the root key of another fleet: what is in force goes on, and what
// the former CO signs is refused.
func TestOtherRootKey(t *testing.T) {
	t.Parallel()
	dir, co, other := t.TempDir(), signtest.New(t, 1), signtest.New(t, 9)
	if adopted, err := offer(t, openChecking(t, dir, co.Root(), none), co.Sign(rich(5))); !adopted || err != nil {
		t.Fatal(adopted, err)
	}
	s := openChecking(t, dir, other.Root(), none)
	if _, held := s.Current(); !held || s.Checked() {
		t.Errorf("held %t, checked %t", held, s.Checked())
	}
	if _, err := offer(t, s, co.Sign(rich(6))); sign.ReasonOf(err) != sign.UnknownKey {
		t.Errorf("the former CO: %v", err)
	}
	if adopted, err := offer(t, s, other.Sign(rich(6))); !adopted || err != nil || !s.Checked() {
		t.Errorf("the new CO: adopted %t, %v, checked %t", adopted, err, s.Checked())
	}
}

// TestKeysComeLaterToLarge is TestKeysComeLater for a state that is named by digest: it is fetched
// once more, as it was not checked.
func TestKeysComeLaterToLarge(t *testing.T) {
	t.Parallel()
	dir, co := t.TempDir(), signtest.New(t, 1)
	body := co.Sign(rich(5))
	encoded := protocol.Marshal(&body)
	fetch := func(context.Context, Want) ([]byte, error) { return encoded, nil }
	pointer := protocol.SiteDesired{V: 1, Site: "s1", Position: body.Position, Content: body.Content, Digest: protocol.DigestOf(encoded), Size: uint64(len(encoded))}
	if adopted, err := offer(t, open(t, dir, fetch), pointer); !adopted || err != nil {
		t.Fatal(adopted, err)
	}
	s := openChecking(t, dir, co.Root(), fetch)
	if _, err := offer(t, s, pointer); err != nil || !s.Checked() {
		t.Errorf("%v, checked %t", err, s.Checked())
	}
}

// TestStatementsOfTheStateInForce has the disk take the statements of a later state and not that
// state: what is in force keeps its own, over a restart as well.
func TestStatementsOfTheStateInForce(t *testing.T) {
	t.Parallel()
	sim, co := simdisk.New(1), signtest.New(t, 1)
	open := func() *Store {
		t.Helper()
		s, err := Open(Options{Disk: sim, Dir: "/lo", Site: "s1", Fetch: none, Root: co.Root(), Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if adopted, err := offer(t, s, co.Sign(rich(5))); !adopted || err != nil {
		t.Fatal(adopted, err)
	}
	sim.Fail(func(_, path string) error {
		if strings.Contains(path, "desired.cbor") {
			return syscall.ENOSPC
		}
		return nil
	})
	later := rich(6)
	for i := range later.Deployments {
		later.Deployments[i].Position = later.Position
	}
	if _, err := offer(t, s, co.Sign(later)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	sim.Fail(nil)
	want := co.Attached(rich(5)).Deployments
	for _, s := range []*Store{s, open()} {
		m, ok := s.Current()
		if !ok || m.Position.Generation != 5 {
			t.Fatalf("in force is %s", m.Position)
		}
		for i, e := range m.Deployments {
			if !bytes.Equal(e.Signature, want[i].Signature) {
				t.Errorf("deployment %s has the statement of another state", e.Deployment)
			}
		}
	}
}

// TestLargeStateCanBeReadBack checks that statements do not make a state too large to be read.
func TestLargeStateCanBeReadBack(t *testing.T) {
	t.Parallel()
	m := state(5, entry("a", "1"), entry("b", "1"))
	for i := range m.Deployments {
		m.Deployments[i].Signature = make([]byte, protocol.MaxMessage/2)
	}
	var back protocol.SiteDesired
	if err := protocol.Unmarshal(protocol.Marshal(strip(m)), &back); err != nil || len(back.Deployments) != 2 {
		t.Errorf("%d deployments, %v", len(back.Deployments), err)
	}
}
