package control

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/topic"
)

// fullStore is a store whose disk is full while full is set.
type fullStore struct {
	*store.Store
	full  atomic.Bool
	saved atomic.Int64 // records
}

// SaveNode implements Store.
func (s *fullStore) SaveNode(r *nodes.Record) error {
	if s.full.Load() {
		return syscall.ENOSPC
	}
	s.saved.Add(1)
	return s.Store.SaveNode(r)
}

// TestDiskFullBetweenJournalAndRecord fills the disk after the journal has the events of a
// message and before the record of its node is stored. When space is back, the Loop stores
// the record and assigns what the message calls for, whether the node repeats it or not.
func TestDiskFullBetweenJournalAndRecord(t *testing.T) {
	t.Parallel()
	for _, repeats := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &fullStore{Store: openStore(t)}
			j := openJournal(t)
			site := openSite(t, j, s, &desiredState{m: desired(1, "web")})
			published := make(chan string, 16)
			l := NewLoop(site, func(_ context.Context, topic string, _ []byte) error {
				published <- topic
				return nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); l.Run(ctx) }()
			defer func() { cancel(); <-done }()

			online := protocol.Presence{Online: true, Session: "1", Agent: "agent-n1"}
			if err := site.acceptPresence(ctx, "n1", online, time.Now()); err != nil {
				t.Fatal(err)
			}
			reportAll(t, site, "n1", protocol.Held{})
			synctest.Wait()
			s.full.Store(true)
			inventory := protocol.Inventory{V: protocol.Version, Node: "n1", Architecture: "amd64", Cores: 4}
			if err := site.acceptInventory(ctx, "n1", inventory, time.Now()); protocol.KindOf(err) != protocol.Unavailable {
				t.Fatalf("inventory on a full disk: %v, want an error of kind unavailable", err)
			}
			<-time.After(time.Minute)
			if n := len(published); n != 0 {
				t.Errorf("%d desired states published on a full disk, want none before the record is stored", n)
			}
			s.full.Store(false)
			if repeats {
				if err := site.acceptInventory(ctx, "n1", inventory, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(2 * retryDelay)
			synctest.Wait()
			if s.saved.Load() == 0 {
				t.Error("the record is not stored after space is back")
			}
			var topics []string
			for len(published) > 0 {
				topics = append(topics, <-published)
			}
			if diff := cmp.Diff([]string{topic.ForNode(topic.NodeDesired, "s1", "n1")}, topics); diff != "" {
				t.Errorf("repeats %t: topics published (-want +got):\n%s", repeats, diff)
			}
		})
	}
}

// TestDiskFullAtAReport has the disk full when a node reports, and free when it repeats
// the report: the Loop reconciles the node once the record is stored.
func TestDiskFullAtAReport(t *testing.T) {
	t.Parallel()
	s := &fullStore{Store: openStore(t)}
	site := openSite(t, openJournal(t), s, &desiredState{m: desired(1, "web")})
	announce(t, site, "n1")
	l := NewLoop(site, func(context.Context, string, []byte) error { return nil })
	now := time.Now()
	l.Reconcile(t.Context(), now)
	site.pending()
	s.full.Store(true)
	n := site.node("n1")
	n.unsaved = true // so that the report stores the record
	status := protocol.DeploymentStatus{V: protocol.Version, Node: "n1", Deployment: "other", State: "INSTALLED", Actor: "EN", Seq: 1}
	if err := site.acceptReport(t.Context(), status, now); protocol.KindOf(err) != protocol.Unavailable {
		t.Fatalf("report on a full disk: %v, want an error of kind unavailable", err)
	}
	if all, dirty := site.pending(); !all && len(dirty) == 0 {
		t.Error("nothing is left for the Loop after a report whose record could not be stored")
	}
}

// TestDiskFullAtADecision has the disk full when the Loop decides about a node, after the
// journal has the decision: it is published once the record is stored.
func TestDiskFullAtADecision(t *testing.T) {
	t.Parallel()
	removed := desired(2)
	removed.Removals = []protocol.Removal{{Deployment: "web", Position: removed.Position}}
	for _, c := range []struct {
		name string
		next protocol.SiteDesired
	}{
		{"one more", desired(2, "web", "web2")},
		{"a removal", removed},
	} {
		s := &fullStore{Store: openStore(t)}
		d := &desiredState{m: desired(1, "web")}
		site := openSite(t, openJournal(t), s, d)
		var last protocol.NodeDesired
		l := NewLoop(site, func(_ context.Context, _ string, payload []byte) error {
			return protocol.Unmarshal(payload, &last)
		})
		announce(t, site, "n1")
		now := time.Now()
		l.Reconcile(t.Context(), now)
		before := last.Position
		if before.IsZero() {
			t.Fatalf("%s: nothing was published to begin with", c.name)
		}
		d.m = c.next
		site.reconcileAll()
		s.full.Store(true)
		l.Reconcile(t.Context(), now)
		if last.Position != before {
			t.Errorf("%s: %s was published before its record was stored", c.name, last.Position)
		}
		s.full.Store(false)
		l.Reconcile(t.Context(), now.Add(retryDelay))
		if want := site.node("n1").record().Position; last.Position != want || want == before {
			t.Errorf("%s: published last is %s, the record is at %s, and both were at %s before: want them equal and later", c.name, last.Position, want, before)
		}
	}
}
