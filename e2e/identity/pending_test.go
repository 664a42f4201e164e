package identity

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	cofleet "github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/pgtest"
)

// imaged returns the options of an agent that has no token, and knows the fleet by its root, as all gateways with
// one image do.
func (f *fleet) imaged(name string) en.Options {
	f.t.Helper()
	root, err := store.At(nil, store.Dir(f.options.StateDir)).OpenRoot()
	if err != nil {
		f.t.Fatal(err)
	}
	o := f.certifiedEN(name, "")
	if err := os.Remove(o.Identity.TokenFile); err != nil {
		f.t.Fatal(err)
	}
	sum := identity.KeySum(root.Root().PublicKey)
	o.Identity.Root = hex.EncodeToString(sum[:])
	return o
}

// keyOf waits until a node has a key, and returns its name.
func (f *fleet) keyOf(o en.Options) (name string) {
	f.t.Helper()
	f.eventually("key of "+string(o.Node), func() (err error) {
		name, err = store.At(nil, store.Dir(o.StateDir)).KeyName(store.Machine)
		return err
	})
	return name
}

// waits checks that the CO has exactly these keys as those that wait.
func (f *fleet) waits(keys ...string) func() error {
	return func() error {
		var list struct{ Items []cofleet.PendingNode }
		if err := get(f.apiBase+"/pending-nodes", &list); err != nil {
			return err
		}
		got := map[string]bool{}
		for _, p := range list.Items {
			got[p.Key] = true
		}
		if len(got) != len(keys) {
			return fmt.Errorf("%d nodes wait: %+v, want %q", len(got), list.Items, keys)
		}
		for _, k := range keys {
			if !got[k] {
				return fmt.Errorf("%+v wait, want %q", list.Items, keys)
			}
		}
		return nil
	}
}

// TestPending has two gateways with one image and one name come without a token: both wait, over a restart of the LO.
// One key is approved while the LO is away, and enrols; the other does not, and is rejected.
func TestPending(t *testing.T) {
	t.Parallel()
	f, o := prepare(t, pgtest.New(t))
	f.startCO(o)
	f.site = f.certifiedLO()
	f.site.Identity.Pending.Most = 16
	f.startLO(f.site)
	f.write(f.site.Identity.TokenFile, f.token("join-tokens", map[string]any{}))
	mine, other := f.imaged("g1"), f.imaged("g1")
	f.startEN(mine)
	key := f.keyOf(mine)
	f.hears("machine_pending", "g1")
	f.eventually("the gateway waits", f.waits(key))
	if online, err := f.nodes(); err != nil || online["g1"] {
		t.Errorf("online before it is approved: %v, %v", online, err)
	}

	f.site.Identity.MQTT, f.site.Identity.Enrol = f.lo.MachineAddr(), f.lo.EnrolAddr()
	f.stopLO()
	f.colony("node", "approve", "plant1/g1", key[:16])
	f.startEN(other)
	f.startLO(f.site)
	f.eventually("g1 is online at the CO", f.known("g1"))
	f.hears("machine_approved", "g1")
	f.hears("machine_enrolled", "g1")
	second := f.keyOf(other)
	f.eventually("the second gateway of that name waits", f.waits(second))
	f.colony("node", "pending", "plant1")
	f.colony("node", "reject", "plant1/g1", second)
	f.eventually("it is refused", func() error {
		if got := f.metric(`colony_lo_enrolments_refused_total{code="rejected"}`); len(got) == 0 {
			return fmt.Errorf("refused: %v", f.metric("colony_lo_enrolments_refused"))
		}
		return nil
	})
	if got := f.metric("colony_lo_pending_nodes"); len(got) != 1 || !strings.HasSuffix(got[0], " 0") {
		t.Errorf("nodes that wait at the end: %v", got)
	}
	if err := f.online("g1")(); err != nil {
		t.Errorf("g1, whose key was approved: %v", err)
	}
}
