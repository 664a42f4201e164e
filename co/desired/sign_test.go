package desired

import (
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// newKeys returns the keys of a new directory, and the directory.
func newKeys(t *testing.T) (keys.Set, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(dir); err != nil {
		t.Fatal(err)
	}
	set, err := keys.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return set, dir
}

// TestSignedStates checks that a receiver with the root key believes what is published, small
// and large, and that a rotation signs the same state anew: nothing is compiled, and the
// position and what the message says stay.
func TestSignedStates(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{"whole": 64 << 10, "named by digest": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			set, dir := newKeys(t)
			var current atomic.Pointer[keys.Set]
			current.Store(&set)
			w.commit(map[string]string{"deployments/berlin/a/deployment.yaml": deployment("berlin", "a", "1.0.0")})
			w.start(func(o *Options) {
				o.MessageLimit = limit
				o.Sign = func(m *protocol.SiteDesired, earlier *sign.Signatures) error { return current.Load().Sign(m, earlier) }
			})
			believed := func() protocol.SiteDesired {
				t.Helper()
				m := w.next("berlin")
				payload := protocol.Marshal(&m.SiteDesired)
				if m.Digest != "" {
					if m.Head != nil || m.KeySet != nil {
						t.Error("a message that names the state by digest has the signatures as well")
					}
					w.store.set(func() { payload = w.store.sites["berlin"].body })
				}
				var whole protocol.SiteDesired
				if err := protocol.Unmarshal(payload, &whole); err != nil {
					t.Fatal(err)
				}
				trust, err := current.Load().Trust.Follow(whole.KeySet)
				if err == nil {
					whole, err = trust.Site(payload)
				}
				if err != nil {
					t.Fatal(err)
				}
				if len(whole.Deployments) != 1 {
					t.Fatalf("%+v", whole)
				}
				return whole
			}
			first := believed()
			if _, err := keys.Rotate(dir); err != nil {
				t.Fatal(err)
			}
			rotated, err := keys.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			current.Store(&rotated)
			w.loop.Republish()
			second := believed()
			if first.Held() != second.Held() || string(first.Head) == string(second.Head) || w.count("a") != 1 {
				t.Errorf("after the rotation: held %v, was %v; compiled %d times", second.Held(), first.Held(), w.count("a"))
			}
		})
	}
}

// TestSignerAway checks that what cannot be signed is not published, and is once it can be.
func TestSignerAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set, _ := newKeys(t)
	var tries atomic.Int32
	w.commit(map[string]string{"deployments/berlin/a/deployment.yaml": deployment("berlin", "a", "1.0.0")})
	w.start(func(o *Options) {
		o.Sign = func(m *protocol.SiteDesired, earlier *sign.Signatures) error {
			if tries.Add(1) < 3 {
				return errors.New("the key is away")
			}
			return set.Sign(m, earlier)
		}
	})
	if m := w.next("berlin"); m.Head == nil || tries.Load() < 3 {
		t.Errorf("published without a signature, after %d tries", tries.Load())
	}
}

// counting counts what a key signs.
type counting struct {
	ed25519.PrivateKey
	n *atomic.Int32
}

func (c counting) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	c.n.Add(1)
	return c.PrivateKey.Sign(random, digest, opts)
}

// TestSignsWhatChanged publishes a site of 100 deployments, changes one of them, and publishes
// it once more as it is: only what is new is signed, also after the record was read anew.
func TestSignsWhatChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var n atomic.Int32
	key, err := sign.NewSigner(counting{ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), &n})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	path := func(i int) (name, file string) {
		name = fmt.Sprintf("a%02d", i)
		return name, "deployments/berlin/" + name + "/deployment.yaml"
	}
	for i := range 100 {
		name, file := path(i)
		files[file] = deployment("berlin", name, "1.0.0")
	}
	w.commit(files)
	w.start(func(o *Options) {
		o.MessageLimit = 1 << 20
		o.Sign = key.Site
	})
	published := func(what string, signatures int32) {
		t.Helper()
		if m := w.next("berlin"); len(m.Deployments) != 100 || m.Head == nil {
			t.Fatalf("%s: %d deployments, head %x", what, len(m.Deployments), m.Head)
		}
		if got := n.Swap(0); got != signatures {
			t.Errorf("%s: %d signatures, want %d", what, got, signatures)
		}
	}
	published("first", 101)
	name, file := path(7)
	w.commit(map[string]string{file: deployment("berlin", name, "2.0.0")})
	w.loop.Notify()
	published("one deployment changed", 2)
	w.loop.Republish()
	published("nothing changed", 0)
	w.loop.Reread()
	w.loop.Republish()
	published("nothing changed, the record read anew", 0)
}
