package identity_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	enidentity "github.com/colonyfleet/colony/en/identity"
	"github.com/colonyfleet/colony/en/plan/trust"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/identitytest"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/sign/signtest"
)

func open(t *testing.T, co *signtest.CO, dir string) *enidentity.Identity {
	t.Helper()
	i, err := enidentity.Open(t.Context(), enidentity.Options{
		Site: "plant", Node: "n1", TokenFile: dir + "/token", Dir: dir, Disk: disk.OS, Root: co.Root(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// list is an empty list of revoked keys, as the CO sends it.
func list(t *testing.T, c *signtest.CO, number uint64) []byte {
	t.Helper()
	statement, err := c.Key.Revocations(protocol.Revocations{V: 1, Site: "plant", Number: number})
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Marshal(&protocol.SiteRevocations{V: 1, Statement: statement, KeySet: c.KeySet})
}

// TestOnlyWhatIsSavedIsFollowed saves a key set without the key of before, on a disk that is full
// at first: lists by that key count until the key set is saved.
func TestOnlyWhatIsSavedIsFollowed(t *testing.T) {
	t.Parallel()
	co, full := signtest.New(t, 1), errors.New("no space left")
	i := open(t, co, t.TempDir())
	i.Follow(co.KeySet)
	retired := *co
	co.Use(2, signtest.Signer(t, 5))
	var failure error
	save := i.Following(func(trust.State) error { return failure })

	failure = full
	if err := save(trust.State{KeySet: co.KeySet}); !errors.Is(err, full) {
		t.Errorf("error %v, want that of the disk", err)
	}
	if err := i.SetRevocations(list(t, &retired, 1)); err != nil {
		t.Errorf("a list by the key in force: %v", err)
	}
	failure = nil
	if err := save(trust.State{KeySet: co.KeySet}); err != nil {
		t.Error(err)
	}
	if err := i.SetRevocations(list(t, &retired, 2)); sign.ReasonOf(err) != sign.Stale {
		t.Errorf("a list by the key that was retired: %v, want it refused as stale", err)
	}
	if number, ok := i.Listed(); number != 1 || !ok {
		t.Errorf("list %d in force (%v), want 1", number, ok)
	}
	if got := i.Refused()[sign.Stale]; got != 1 {
		t.Errorf("%d lists counted as stale, want 1", got)
	}
}

// link counts what it is asked for.
type link struct{ reconnected, rechecked atomic.Int32 }

func (l *link) Reconnect() { l.reconnected.Add(1) }
func (l *link) Recheck()   { l.rechecked.Add(1) }

// TestRevocationReachesTheLink checks that each list has the link look at its connection, also one
// that arrives before Run.
func TestRevocationReachesTheLink(t *testing.T) {
	t.Parallel()
	co, dir := signtest.New(t, 1), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i, l := open(t, co, dir), &link{}
		if err := i.SetRevocations(list(t, co, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go i.Run(ctx, l)
		synctest.Wait()
		if got := l.rechecked.Load(); got != 1 {
			t.Errorf("checked %d times after the first list, want once", got)
		}
		if err := i.SetRevocations(list(t, co, 2)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.rechecked.Load(); got != 2 {
			t.Errorf("checked %d times after the second list, want twice", got)
		}
		if got := l.reconnected.Load(); got != 0 {
			t.Errorf("connected anew %d times without another certificate", got)
		}
	})
}

// TestDevelopment checks what a node that proves nothing answers.
func TestDevelopment(t *testing.T) {
	t.Parallel()
	var i *enidentity.Identity
	i.Follow([]byte{1})
	if err := i.Following(func(trust.State) error { return fs.ErrClosed })(trust.State{}); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("error %v, want that of the disk", err)
	}
	if number, ok := i.Listed(); number != 0 || ok {
		t.Errorf("list %d in force (%v), want none", number, ok)
	}
	if got := i.Refused(); len(got) != 0 {
		t.Errorf("refused: %v, want nothing", got)
	}
}

// TestKeyOfTheLO shows a node certificates that come with what its LO signed: those of the LO of its site count, as
// long as they have not ended and their key was not revoked, and those of no other issuer.
func TestKeyOfTheLO(t *testing.T) {
	t.Parallel()
	now := time.Now()
	root, dir, co := identitytest.Root(t, now.AddDate(-2, 0, 0)), t.TempDir(), signtest.New(t, 1)
	site, _ := identitytest.Site(t, root, "plant", now)
	files, err := store.Open(disk.OS, dir)
	if err == nil {
		err = files.Save(store.Machine, identitytest.Issue(t, site, root, identity.OfNode("plant", "n1"), now))
	}
	if err != nil {
		t.Fatal(err)
	}
	i := open(t, co, dir)
	i.Follow(co.KeySet)
	other := identitytest.Root(t, now)
	lo := identitytest.Issue(t, root, root, identity.OfLO("plant"), now)
	for what, c := range map[string]*identity.Credential{
		"the LO of another site":  identitytest.Issue(t, root, root, identity.OfLO("quay"), now),
		"the CO":                  identitytest.Issue(t, root, root, identity.OfCO(), now),
		"a node":                  identitytest.Issue(t, root, root, identity.OfNode("plant", "n2"), now),
		"a node of the authority": identitytest.Issue(t, site, root, identity.OfNode("plant", "n2"), now),
		"the LO of another fleet": identitytest.Issue(t, other, other, identity.OfLO("plant"), now),
		"the LO, too long ago":    identitytest.Issue(t, root, root, identity.OfLO("plant"), now.AddDate(-1, 0, 0)),
	} {
		if _, err := i.LOKey(c.Raw()); protocol.KindOf(err) != protocol.Denied {
			t.Errorf("%s: %v, want it denied", what, err)
		}
	}
	for what, raw := range map[string][][]byte{"nothing": nil, "no certificate": {{1}}} {
		if _, err := i.LOKey(raw); err == nil {
			t.Errorf("%s counts", what)
		}
	}
	key, err := i.LOKey(lo.Raw())
	if err != nil || identity.KeySum(key) != identity.KeySum(lo.Key.Public()) {
		t.Fatalf("the LO: key %v, %v", key, err)
	}
	sum := identity.KeySum(lo.Key.Public())
	statement, err := co.Key.Revocations(protocol.Revocations{V: 1, Site: "plant", Number: 1, Keys: []protocol.RevokedKey{{Key: sum[:], EndMillis: now.AddDate(1, 0, 0).UnixMilli()}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.SetRevocations(protocol.Marshal(&protocol.SiteRevocations{V: 1, Statement: statement, KeySet: co.KeySet})); err != nil {
		t.Fatal(err)
	}
	if _, err := i.LOKey(lo.Raw()); protocol.KindOf(err) != protocol.Denied {
		t.Errorf("the LO, revoked: %v, want it denied", err)
	}
}
