package identity

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/colonyfleet/colony/cli"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
)

// colony runs a command until it succeeds: what it names may be on its way to the CO.
func (f *fleet) colony(args ...string) {
	f.t.Helper()
	f.eventually(strings.Join(args, " "), func() error {
		if code := cli.Main(f.t.Context(), "test", append([]string{"--url", "http://" + f.co.HTTPAddr()}, args...)); code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
}

// hears waits until the CO has an event of a kind about a node, "" for the site.
func (f *fleet) hears(kind, node string) {
	f.t.Helper()
	f.eventually("event "+kind+" of "+node, func() error {
		var out struct {
			Items []struct{ Kind, Node, Message string }
		}
		if err := get(f.apiBase+"/events?limit=200&kind="+kind, &out); err != nil {
			return err
		}
		for _, e := range out.Items {
			if e.Kind == kind && e.Node == node {
				return nil
			}
		}
		return fmt.Errorf("events %v", out.Items)
	})
}

func (f *fleet) offline(name string) func() error {
	return func() error {
		all, err := f.nodes()
		if err == nil && all[name] {
			err = fmt.Errorf("nodes %v", all)
		}
		return err
	}
}

// cut is how many connections the LO has ended for their keys.
func (f *fleet) cut(want int) func() error {
	return func() error {
		if got := f.metric(`colony_broker_disconnects_total{broker="lo",reason="0x87"}`); len(got) != 1 || !strings.HasSuffix(got[0], fmt.Sprint(" ", want)) {
			return fmt.Errorf("ended: %v, want %d", got, want)
		}
		return nil
	}
}

// TestRevocation revokes a node: its open connection ends, the other node's goes on, and what happens is
// among the CO's events. Without the CO a gateway takes the place of another one, whose open connection
// ends, too.
func TestRevocation(t *testing.T) {
	t.Parallel()
	f := newFleet(t, pgtest.New(t))
	shared := f.token("node-tokens", map[string]any{"uses": 2})
	instead := f.token("node-tokens", map[string]any{"replace": true})
	f.node("g1", shared)
	f.node("g2", shared)
	f.eventually("g1 is online", f.online("g1"))
	f.eventually("g2 is online", f.online("g2"))
	f.hears("machine_enrolled", "g1")
	f.hears("machine_enrolled", "g2")
	f.colony("node", "revoke", "plant1/g1")
	f.eventually("the connection of g1 ends", f.cut(1))
	f.eventually("g1 is offline", f.offline("g1"))
	f.hears("machine_revoked", "g1")
	f.hears("revocations_adopted", "")
	f.hears("machine_refused", "g1") // it asks for another certificate
	f.eventually("g2 is online all the time", f.online("g2"))

	f.stopCO()
	f.node("g2", instead)
	f.eventually("the connection of the former g2 ends", f.cut(2))
	f.eventually("the new g2 is online", f.online("g2"))
}

// TestStolenLO replaces the LO of a site, whose machine was stolen: the nodes come to the new one by
// themselves, get the list, and never connect to the stolen one again.
func TestStolenLO(t *testing.T) {
	t.Parallel()
	f := newFleet(t, pgtest.New(t))
	g1 := f.certifiedEN("g1", f.token("node-tokens", map[string]any{}))
	var dialled atomic.Int64
	g1.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	stop := f.startEN(g1)
	f.eventually("g1 is online", f.online("g1"))
	f.hears("machine_enrolled", "g1")
	machines, enrol, stolen := f.lo.MachineAddr(), f.lo.EnrolAddr(), f.site
	f.stopLO()

	next := f.site
	next.StateDir, next.Logger = filepath.Join(f.dir, "lo2"), logger(t, "lo2")
	next.Identity = lo.IdentityOptions{TokenFile: filepath.Join(f.dir, "lo2.token"), MQTT: machines, Enrol: enrol}
	next.Registerer = nil
	f.write(next.Identity.TokenFile, f.token("join-tokens", map[string]any{"replace": true}))
	f.startLO(next)
	f.eventually("g1 is online at the new LO", f.online("g1"))
	f.hears("revocations_adopted", "")
	f.eventually("g1 has the list", func() error {
		_, err := os.Stat(filepath.Join(store.Dir(g1.StateDir), "revocations.cbor"))
		return err
	})

	// The thief starts what he has, and g1 finds no other.
	stop()
	stolen.Registerer, stolen.Identity.MQTT, stolen.Identity.Enrol = nil, "127.0.0.1:0", "127.0.0.1:0"
	thief, err := lo.New(stolen)
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, thief)
	f.lo = thief
	g1.LO.MQTT, g1.LO.Enrol = []string{"tls://" + thief.MachineAddr()}, []string{thief.EnrolAddr()}
	before := dialled.Load()
	f.startEN(g1)
	f.eventually("g1 has tried three times", func() error {
		if n := dialled.Load() - before; n < 4 { // each one has ended when the next begins
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
	if got := f.metric(`colony_broker_connects_total{broker="lo"}`); len(got) != 1 || !strings.HasSuffix(got[0], " 0") {
		t.Errorf("g1 was connected to the stolen LO: %v", got)
	}

	f.colony("site", "revoke", "plant1")
	f.eventually("the connection of the LO ends", func() error {
		var site struct{ Online bool }
		if err := get(f.apiBase+"/sites/plant1", &site); err != nil || site.Online {
			return fmt.Errorf("online %v: %w", site.Online, err)
		}
		return nil
	})
}
