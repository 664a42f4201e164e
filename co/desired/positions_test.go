package desired

import (
	"slices"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// TestSiteHoldsMoreThanIsRecorded connects sites that hold what the record does not know, as
// after the restore of a backup.
func TestSiteHoldsMoreThanIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	first := w.next("berlin")

	w.reports(fleet.SiteHeld{Site: "berlin", Held: first.Held()}) // that is known
	w.quiet()

	w.reports(fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 7}, Digest: "sha256:a"}})
	m := w.next("berlin")
	if want := (protocol.Position{Epoch: 2, Generation: 8}); m.Position != want || names(m) != "a" {
		t.Errorf("published %s with %q, want %s with a", m.Position, names(m), want)
	}
	w.reports(fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: m.Position, Digest: "sha256:b"}})
	other := w.next("berlin")
	if want := (protocol.Position{Epoch: 3, Generation: 9}); other.Position != want {
		t.Errorf("published %s where the site holds other content at %s, want %s", other.Position, m.Position, want)
	}
	w.commit(map[string]string{path("berlin", "b"): deployment("berlin", "b", "1.0.0")})
	if m = w.next("berlin"); !m.Position.After(other.Position) || names(m) != "a b" {
		t.Errorf("the next change is %s with %q, want a b after %s", m.Position, names(m), other.Position)
	}

	// An LO that has lost what it held knows only how far its nodes are.
	w.reports(fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: m.Position}})
	w.quiet()
	beyond := protocol.Position{Epoch: m.Position.Epoch, Generation: m.Position.Generation + 7}
	w.reports(fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: beyond}})
	if m = w.next("berlin"); !m.Position.After(beyond) || names(m) != "a b" {
		t.Errorf("published %s with %q where nodes follow %s, want a b after it", m.Position, names(m), beyond)
	}

	far := protocol.Held{Position: protocol.Position{Epoch: 5000, Generation: 1}, Digest: "sha256:c"}
	w.reports(fleet.SiteHeld{Site: "berlin", Held: far})
	w.until("the jump is reported", func() bool {
		reported := false
		w.store.set(func() {
			for _, n := range w.store.notices {
				reported = reported || strings.HasPrefix(n, fleet.DesiredPositionRefused+": site berlin gets no changes") &&
					strings.Contains(n, "colony site accept-position berlin")
			}
		})
		return reported
	})
	w.quiet()
}

// TestNewDatabaseGoesOnAboveTheSite begins with an empty record: the first message of a site
// that holds something is whole, and after that.
func TestNewDatabaseGoesOnAboveTheSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.add("berlin")
	w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: protocol.Position{Epoch: 3, Generation: 40}, Digest: "sha256:a"}}
	w.set(func() { w.gitAway = protocol.Errorf(protocol.Unavailable, "away") })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.start()
	w.quiet() // what the repo wants is not known yet
	w.set(func() { w.gitAway = nil })
	w.loop.Notify()
	if m := w.next("berlin"); m.Position.Epoch != 4 || m.Position.Generation <= 40 || names(m) != "a" || len(m.Removals) > 0 {
		t.Errorf("first message is %s with %q, removes %v; want a, in epoch 4", m.Position, names(m), m.Removals)
	}
}

// TestSiteThatLostWhatItHeld gives an LO without its disk what its nodes ran, and once only.
func TestSiteThatLostWhatItHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	first := w.next("berlin")
	w.reports(fleet.SiteHeld{Site: "berlin", Lost: true})
	m := w.next("berlin")
	if m.Position != first.Position || len(m.Running) != 1 || m.Running[0].Node != "press-1" || m.Held() != first.Held() {
		t.Errorf("published %s, running %v, digest equal %t; want %s, what press-1 ran, the same digest", m.Position, m.Running,
			m.Held() == first.Held(), first.Position)
	}
	w.quiet()
	w.reports(fleet.SiteHeld{Site: "berlin", Held: m.Held()})
	w.quiet()
	w.loop.Republish()
	if m = w.next("berlin"); m.Running != nil {
		t.Errorf("after the site has adopted it the message still says what ran: %v", m.Running)
	}
}

// TestRestoredRecordWaitsForTheRepo begins with the record of a backup, which removes what was
// deployed again since: a site that holds more is sent nothing of it before the repo was read.
func TestRestoredRecordWaitsForTheRepo(t *testing.T) {
	t.Parallel()
	at := func(generation uint64) protocol.Position { return protocol.Position{Epoch: 1, Generation: generation} }
	for name, later := range map[string]bool{"connected before": false, "connects while the repo is away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.store.add("berlin")
			r.message.Position = at(5)
			r.message.Removals = []protocol.Removal{{Deployment: "a", Position: at(4)}}
			unknown := fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: at(9), Digest: "sha256:a"}}
			w.set(func() { w.gitAway = protocol.Errorf(protocol.Unavailable, "away") })
			w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
			if !later {
				w.store.reports["berlin"] = unknown
			}
			w.start()
			if later {
				w.next("berlin") // it may hold nothing that is unknown
				w.reports(unknown)
			}
			w.quiet()
			w.set(func() { w.gitAway = nil })
			w.loop.Notify()
			m := w.next("berlin")
			if m.Position.Epoch != 2 || m.Position.Generation <= 9 || names(m) != "a" || len(m.Removals) > 0 {
				t.Errorf("published %s with %q, removes %v; want a alone, in epoch 2", m.Position, names(m), m.Removals)
			}
			w.quiet()
		})
	}
}

// TestRestoredRecordWaitsForTheSite restores a record from a backup: a site is sent nothing before it has reported, and then what is above all that it was
// sent before the restore, also where the record has overtaken that.
func TestRestoredRecordWaitsForTheSite(t *testing.T) {
	t.Parallel()
	for name, report := range map[string]fleet.SiteHeld{
		"went on since the backup":  {Site: "berlin", Beyond: true, Held: protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 6}, Digest: "sha256:a"}},
		"has lost what it held":     {Site: "berlin", Beyond: true, Lost: true},
		"holds what the backup has": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.store.add("berlin").message.Position = protocol.Position{Epoch: 1, Generation: 5}
			w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Awaited: true}
			w.start()
			for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
				w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", version)})
				w.quiet()
			}
			if report.Beyond {
				w.reports(report)
			} else {
				w.store.set(func() { delete(w.store.reports, "berlin") })
				w.loop.Reported("berlin")
			}
			want := protocol.Position{Epoch: 1, Generation: 8}
			if report.Beyond {
				want = protocol.Position{Epoch: 2, Generation: 9}
			}
			if m := w.next("berlin"); m.Position != want || names(m) != "a" || len(m.Running) > 0 != report.Lost {
				t.Errorf("published %s with %q, running %v, want a at %s", m.Position, names(m), m.Running, want)
			}
			w.quiet()
		})
	}
}

// TestCrashAfterTheRaise kills the CO after it went on above what a site holds, and before it
// recorded what the repo says: the record of the backup is not published by the next one.
func TestCrashAfterTheRaise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.store.add("berlin")
	r.message.Position = protocol.Position{Epoch: 1, Generation: 5}
	r.message.Deployments = []protocol.SiteEntry{{Deployment: "old", Digest: "sha256:o"}}
	held := protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 9}, Digest: "sha256:a"}
	w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Held: held}
	if m, err := w.store.Raise(t.Context(), "berlin", held, fleet.Raise{}); err != nil || m.Position.Epoch != 2 {
		t.Fatalf("raised to %s: %v", m.Position, err)
	}
	w.set(func() { w.gitAway = protocol.Errorf(protocol.Unavailable, "away") })
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.start()
	w.quiet()
	w.set(func() { w.gitAway = nil })
	w.loop.Notify()
	if m := w.next("berlin"); m.Position.Epoch != 2 || names(m) != "a" {
		t.Errorf("published %s with %q, want a in epoch 2", m.Position, names(m))
	}
	w.store.set(func() {
		if w.store.reports["berlin"].Unfollowed {
			t.Error("the site is unfollowed although the repo was read")
		}
	})
}

// TestCommittedRefusal checks that an event which says that a desired state was refused has the
// loop compare what its site holds, and that others do not.
func TestCommittedRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.next("berlin")
	w.store.set(func() {
		w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Held: protocol.Held{Position: protocol.Position{Epoch: 1, Generation: 7}, Digest: "sha256:a"}}
	})
	w.loop.Committed("berlin", []protocol.Event{{Kind: protocol.DesiredAdopted}})
	if len(w.loop.asked.C()) != 0 {
		t.Error("the loop is to look at the site after an event of another kind")
	}
	w.loop.Committed("berlin", []protocol.Event{{Kind: protocol.DesiredAdopted}, {Kind: protocol.DesiredRefused}})
	if m, want := w.next("berlin"), (protocol.Position{Epoch: 2, Generation: 8}); m.Position != want {
		t.Errorf("published %s, want %s, after what the site holds", m.Position, want)
	}
}

// TestOutcomes removes a site: its rules may have changed with each message, and its removal is
// reported once the record has forgotten it.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.commit(map[string]string{path("berlin", "a"): deployment("berlin", "a", "1.0.0")})
	w.next("berlin")
	w.set(func() {
		if !slices.Equal(w.changing, []protocol.SiteID{"berlin"}) || len(w.forgotten) != 0 {
			t.Errorf("rules of %q may have changed, and %q were removed; want those of berlin, and none", w.changing, w.forgotten)
		}
	})
	w.store.set(func() {
		w.store.requested, w.store.unwanted = map[protocol.SiteID]bool{"berlin": true}, []protocol.SiteID{"berlin"}
	})
	w.commit(map[string]string{path("berlin", "a"): ""})
	w.untilForgotten("berlin")
}
