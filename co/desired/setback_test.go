package desired

import (
	"testing"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/protocol"
)

// restoredSite is a world whose record of berlin runs a, b and c, and in whose repo a later commit has removed a, and says so itself.
func restoredSite(t *testing.T) (w *world, last message) {
	t.Helper()
	w, before := fourDeployments(t)
	w.stop()
	w.set(func() { w.trailers = []string{"Colony-Confirm: berlin/a"} })
	w.commit(map[string]string{path("berlin", "a"): ""})
	w.set(func() { w.trailers = nil })
	return w, before[0]
}

// TestRestoredWithTheRepo has a site that went on since the backup, and a repo in which a file is missing. Where the repo was set back, too, what runs may be of
// later than the commit that removed the file: it stays until that is confirmed.
func TestRestoredWithTheRepo(t *testing.T) {
	t.Parallel()
	at := protocol.Position{Epoch: 1, Generation: 30}
	for name, c := range map[string]struct {
		held  protocol.Held
		cause proposal.Cause // empty: it is removed
	}{
		"the repo was set back, too":            {protocol.Held{Position: at, Digest: "sha256:x", Commit: "f00d"}, proposal.SetBack},
		"the repo has what the site holds":      {protocol.Held{Position: at, Digest: "sha256:x", Commit: hash(2)}, ""},
		"the site holds what was before that":   {protocol.Held{Position: at, Digest: "sha256:x", Commit: hash(1)}, ""},
		"an LO of an earlier release":           {protocol.Held{Position: at, Digest: "sha256:x"}, ""},
		"nodes alone know how far the site was": {protocol.Held{Position: at}, proposal.Forgotten},
		"its LO has lost what it held":          {protocol.Held{}, proposal.Forgotten},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, last := restoredSite(t)
			w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Beyond: true, Lost: c.held.Position.IsZero(), Held: c.held}
			w.start()
			w.next("munich")
			m := w.next("berlin")
			if !m.Position.After(last.Position) || m.Position.Epoch != 2 {
				t.Errorf("published %s, want it in epoch 2", m.Position)
			}
			if c.cause == "" {
				w.held()
				if names(m) != "b c" {
					t.Errorf("berlin is to run %q, want b c", names(m))
				}
				return
			}
			w.held(because(c.cause, "berlin/a")...)
			w.store.set(func() {
				if p := w.store.held[deploymentKey{"berlin", "a"}].Proposal; p != proposal.ID(proposal.Removals, hash(2), 0) {
					t.Errorf("it is held by %s, want a proposal of the head", p)
				}
				w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Held: m.Held()}
			})
			w.loop.Reported("berlin")
			w.commit(map[string]string{"README.md": "x"})
			w.quiet() // the site holds what the repo has by now, and it is held all the same
			w.held(because(c.cause, "berlin/a")...)
			if _, err := w.store.Confirm(t.Context(), proposal.ID(proposal.Removals, hash(2), 0), ""); err != nil {
				t.Fatal(err)
			}
			w.loop.Notify()
			if m := w.next("berlin"); names(m) != "b c" {
				t.Errorf("once it is confirmed berlin is to run %q, want b c", names(m))
			}
		})
	}
}

// TestRestoredAndNotHeardOf holds what is missing with the first look at the repo after a restore until the site says what it holds. What is removed later is
// meant.
func TestRestoredAndNotHeardOf(t *testing.T) {
	t.Parallel()
	at := protocol.Position{Epoch: 1, Generation: 30}
	for name, c := range map[string]struct {
		report fleet.SiteHeld
		cause  proposal.Cause // afterwards; empty: it is removed
	}{
		"it holds what the backup has": {fleet.SiteHeld{}, ""},
		"it went on with the repo":     {fleet.SiteHeld{Site: "berlin", Beyond: true, Held: protocol.Held{Position: at, Digest: "sha256:x", Commit: hash(2)}}, ""},
		"the repo was set back, too":   {fleet.SiteHeld{Site: "berlin", Beyond: true, Held: protocol.Held{Position: at, Digest: "sha256:x", Commit: "f00d"}}, proposal.SetBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := restoredSite(t)
			w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Awaited: true}
			w.start()
			w.next("munich")
			w.held(because(proposal.Unheard, "berlin/a")...)
			w.set(func() { w.trailers = []string{"Colony-Confirm: berlin/b"} })
			w.commit(map[string]string{path("berlin", "b"): ""})
			w.until("b is removed from the record", func() bool {
				removed := false
				w.store.set(func() { removed = len(w.store.sites["berlin"].desired) == 2 })
				return removed
			})
			w.held(because(proposal.Unheard, "berlin/a")...)
			if c.report.Beyond {
				w.reports(c.report)
			} else {
				w.store.set(func() { delete(w.store.reports, "berlin") })
				w.loop.Reported("berlin")
			}
			if c.cause != "" {
				w.held(because(c.cause, "berlin/a")...)
				w.loop.Notify()
				w.next("berlin")
				w.quiet()
				w.held(because(c.cause, "berlin/a")...)
				return
			}
			w.held()
			w.until("a is removed", func() bool { return names(w.next("berlin")) == "c" })
		})
	}
}

// TestRemovalOfARestoredSite removes a site of which a removal is held since a restore: it is asked for by name, and changes nothing at the gateways.
func TestRemovalOfARestoredSite(t *testing.T) {
	t.Parallel()
	w, _ := restoredSite(t)
	w.store.reports["berlin"] = fleet.SiteHeld{Site: "berlin", Awaited: true}
	w.start()
	w.held(because(proposal.Unheard, "berlin/a")...)
	w.store.set(func() {
		w.store.requested, w.store.unwanted = map[protocol.SiteID]bool{"berlin": true}, []protocol.SiteID{"berlin"}
	})
	w.set(func() { w.trailers = []string{proposal.SiteLine("berlin")} })
	w.commit(map[string]string{path("berlin", "b"): "", path("berlin", "c"): ""})
	w.untilForgotten("berlin")
}
