package control

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var logger = testpart.Logger

// eventJournal is a real journal as a Site writes it.
type eventJournal struct{ *journal.Journal }

// Append implements Journal.
func (j eventJournal) Append(ctx context.Context, facts []nodes.Fact) (uint64, error) {
	entries := make([]journal.Entry, len(facts))
	for i, f := range facts {
		entries[i] = journal.Entry{Class: journal.Event, Body: protocol.Marshal(f.Event)}
		if f.Key != "" {
			entries[i].Class, entries[i].Key = journal.State, f.Key
		}
	}
	return j.Journal.Append(ctx, entries...)
}

// desiredState is a Desired of one desired state whose specs are inline.
type desiredState struct {
	m     protocol.SiteDesired
	offer error // what Offer returns
	// demands are what versions ask for.
	demands map[protocol.Digest]demand.Demand
}

// Current implements Desired.
func (d *desiredState) Current() (protocol.SiteDesired, bool) { return d.m, d.m.V != 0 }

// Spec implements Desired.
func (d *desiredState) Spec(digest protocol.Digest) (reconciler.Spec, bool) {
	for _, e := range d.m.Deployments {
		if e.Digest == digest {
			return reconciler.Spec{Bytes: e.Spec, Signature: e.Signature, App: "hello", AppVersion: "1"}, true
		}
	}
	return reconciler.Spec{}, false
}

// Demand implements Desired.
func (d *desiredState) Demand(digest protocol.Digest) demand.Demand { return d.demands[digest] }

// Offer implements Desired.
func (d *desiredState) Offer(_ context.Context, payload []byte) (bool, error) {
	if d.offer != nil {
		return false, d.offer
	}
	return true, protocol.Unmarshal(payload, &d.m)
}

// Keep implements Desired.
func (d *desiredState) Keep([]protocol.Digest) error { return nil }

// desired is a desired state of deployments on every node.
func desired(generation uint64, names ...protocol.DeploymentName) protocol.SiteDesired {
	m := protocol.SiteDesired{V: protocol.Version, Site: "s1", Position: protocol.Position{Epoch: 1, Generation: generation}, Commit: "c1"}
	for _, name := range names {
		b := []byte("spec of " + name)
		m.Deployments = append(m.Deployments, protocol.SiteEntry{Deployment: name, Digest: protocol.DigestOf(b), Size: uint64(len(b)), Spec: b})
	}
	return m
}

func openJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(disk.OS, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openSite opens a Site, as a start of the LO does.
func openSite(t *testing.T, j *journal.Journal, s Store, d Desired, change ...func(*Options)) *Site {
	t.Helper()
	o := Options{
		Site: "s1", Version: "v1", Journal: eventJournal{j}, Store: s, Desired: d,
		NodeLostAfter: time.Minute, PresenceGrace: time.Hour, Logger: logger(t),
	}
	for _, c := range change {
		c(&o)
	}
	site, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return site
}

// announce has a node come online with its inventory and a report of what it holds.
func announce(t *testing.T, s *Site, id protocol.NodeID, statuses ...protocol.DeploymentStatus) {
	t.Helper()
	connect(t, s, id)
	reportAll(t, s, id, protocol.Held{}, statuses...)
}

// reportAll has a node report everything that it holds.
func reportAll(t *testing.T, s *Site, id protocol.NodeID, held protocol.Held, statuses ...protocol.DeploymentStatus) {
	t.Helper()
	m := protocol.NodeReport{V: protocol.Version, Node: id, Agent: "agent-" + string(id), Seq: 1000, Held: held, Statuses: statuses}
	if err := s.acceptNodeReport(t.Context(), m, s.opts.Now()); err != nil {
		t.Fatal(err)
	}
}

// connect has a node come online with its inventory.
func connect(t *testing.T, s *Site, id protocol.NodeID) {
	t.Helper()
	now := s.opts.Now()
	if err := s.acceptPresence(t.Context(), id, protocol.Presence{Online: true, Session: "1", Agent: "agent-" + string(id)}, now); err != nil {
		t.Fatal(err)
	}
	if err := s.acceptInventory(t.Context(), id, protocol.Inventory{V: protocol.Version, Node: id, Architecture: "amd64", Cores: 4}, now); err != nil {
		t.Fatal(err)
	}
}

// events returns the journal's events of one kind.
func events(t *testing.T, j *journal.Journal, kind protocol.EventKind) []protocol.Event {
	t.Helper()
	_, bodies, err := j.Bodies(0, 10_000, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []protocol.Event
	for _, b := range bodies {
		var e protocol.Event
		if err := protocol.Unmarshal(b, &e); err != nil {
			t.Fatal(err)
		}
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}
