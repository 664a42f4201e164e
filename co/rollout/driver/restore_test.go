package driver_test

import (
	"slices"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// later is a version that a site runs, and that the record does not know.
const later = protocol.Digest("sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee")

// restored stops the CO, and has all sites hold and run what is of after the record.
func (w *world) restored() {
	w.t.Helper()
	w.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.sites {
		s.digests["meter"] = later
		w.report(w.t.Context(), id, s, protocol.StatusEvent, "gw", protocol.DeploymentStatus{
			V: 1, Node: "gw", Deployment: "meter", State: lifecycle.Installed, Actor: lifecycle.EN, App: "meter", AppVersion: "1.1.0", Digest: later,
		})
		held := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 50}, Digest: later}
		if err := w.store.SetSitePresence(w.t.Context(), id, protocol.Presence{V: 1, Online: true, Session: "2", Held: held}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// raised waits until the CO has gone on above what each site holds.
func (w *world) raised() {
	w.t.Helper()
	w.eventually("the CO goes on above what the sites hold", func() bool {
		var n int
		if err := w.db.QueryRow(w.t.Context(), `select count(*) from sites where epoch > 1 and (adopted_epoch, adopted) >= (epoch, generation)`).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		return n == len(w.sites)
	})
}

// lasts returns the version that each site was given last, by their names.
func (w *world) lasts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for i := range len(w.sites) {
		s := w.sites[siteName(i)]
		last := s.versions[len(s.versions)-1]
		if s.digests["meter"] == later {
			last = "later"
		}
		out = append(out, last)
	}
	return out
}

// TestRestoredRecordSetsNoSiteBack has a record of before a revision, which all sites run: each keeps what it runs until the rollout of that
// revision reaches it, over a restart of the CO, and says so.
func TestRestoredRecordSetsNoSiteBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.restored()
	w.set(file("1.1.0", all, "    waves: [{percent: 50, approval: true}, {percent: 100}]\n"))
	w.start()
	w.raised()
	w.eventually("two sites have the revision", func() bool { return w.given()["1.1.0"] == 2 })
	w.stop()
	w.start()
	w.looks.Store(0)
	w.eventually("the driver has looked some times", func() bool { return w.looks.Load() > 10 })
	counts := map[string]int{}
	for _, v := range w.lasts() {
		counts[v]++
	}
	if counts["later"] != 2 || counts["1.1.0"] != 2 {
		t.Fatalf("sites have %v, want the revision at two, and what ran at two", counts)
	}
	kept := siteName(slices.Index(w.lasts(), "later"))
	d, err := w.store.Deployment(t.Context(), kept, "meter")
	if err != nil || d.Problem == "" || d.State == lifecycle.Installed {
		t.Errorf("it is %s, %q, %v", d.State, d.Problem, err)
	}
	w.act(rollout.Promote)
	w.reaches(2, rollout.Done, "")
	if got := w.given()["1.1.0"]; got != 4 {
		t.Errorf("%d sites have the revision", got)
	}
	if d, err = w.store.Deployment(t.Context(), kept, "meter"); err != nil || d.Problem != "" || d.State != lifecycle.Installed {
		t.Errorf("it is %s, %q, %v", d.State, d.Problem, err)
	}
}

// TestRestoredRecordWithoutALaterRevision has a record, and a deployments repo, of before what the sites run: nothing else is desired, so that they
// return to it.
func TestRestoredRecordWithoutALaterRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.restored()
	w.start()
	w.raised()
	w.eventually("they have what the repo says", func() bool { return slices.Equal(w.lasts(), []string{"1.0.0", "1.0.0"}) })
	events, err := w.store.Events(t.Context(), fleet.EventFilter{Kinds: []string{fleet.DesiredEpochRaised}, Limit: 10})
	if err != nil || len(events) != 2 {
		t.Errorf("%d events, %v", len(events), err)
	}
}
