package driver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// waiting is the outcome of a version that waits at its site, which says nothing of it.
const waiting lifecycle.State = "waits"

// TestASiteThatWaits is outside of its maintenance windows for longer than the strategy has patience: it has not failed. Once it waits no
// longer, its time begins.
func TestASiteThatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	const why = "the update waits: the site is outside of its maintenance windows until Sat 28 Nov 22:00 CET"
	w.outcome = func(id protocol.SiteID, version string) lifecycle.State {
		if id == "site-001" && version == "1.1.0" {
			return ""
		}
		return lifecycle.Installed
	}
	waits := func(list ...restriction.Wait) {
		t.Helper()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report(t.Context(), "site-001", w.sites["site-001"], protocol.NodeRestrictions, "gw", restriction.Report{V: 1, Waits: list})
	}
	overdue := func() {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = now() - interval '1 day', changed_at = now() - interval '1 day' where site = 'site-001'`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.Exec(t.Context(), `update rollouts set watched_since = now() - interval '1 day'`); err != nil {
			t.Fatal(err)
		}
	}
	where := func() string {
		list, err := w.rollouts.Members(t.Context(), "meter")
		if err != nil || len(list) != 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		return string(list[1].State) + " " + list[1].Reason
	}
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	waits(restriction.Wait{Deployment: "other", Why: "the node is held"}, restriction.Wait{Deployment: "meter", Why: why})
	w.set(file("1.1.0", all, ""))
	w.reaches(2, rollout.Running, "wave 1 of 1: 1 site on the way, 1 of them waiting for a maintenance window or a person")
	overdue()
	r := w.rollout()
	if counts, _, _, err := w.rollouts.Observe(t.Context(), &r, &rollout.Plan{}, time.Hour); err != nil || rollout.Total(counts).Held != 1 || rollout.Total(counts).Failed != 0 {
		t.Errorf("%+v, %v", counts, err)
	}
	if got := where(); got != "moving gw: "+why {
		t.Errorf("it is %q", got)
	}
	// The window begins, and the node is offline: that is no reason to wait for ever.
	waits(restriction.Wait{Deployment: "meter", Why: "the update waits: the node is offline", Offline: true}, restriction.Wait{Deployment: "other", Why: "the node is held"})
	w.eventually("it is on the way", func() bool { return where() == "moving " })
	overdue()
	w.reaches(2, rollout.Paused, "1 site failed")
	if got := where(); !strings.Contains(got, "not running the revision 1h0m0s after it could") {
		t.Errorf("it is %q", got)
	}
}

// TestANodeThatIsOffInEachWindow holds its wave up for no longer than the strategy has patience with the windows together, and the reason says
// what is wrong.
func TestANodeThatIsOffInEachWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	const why = "the update waits: the site is outside of its maintenance windows until Sat 28 Nov 22:00 CET"
	const off = "the update waits: the node is offline, and the site is updated in its maintenance windows alone"
	w.outcome = func(id protocol.SiteID, version string) lifecycle.State {
		if id == "site-001" && version == "1.1.0" {
			return ""
		}
		return lifecycle.Installed
	}
	where := func() string {
		list, err := w.rollouts.Members(t.Context(), "meter")
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		return string(list[1].State) + " " + list[1].Reason
	}
	window := func(open bool) {
		t.Helper()
		wait := restriction.Wait{Deployment: "meter", Why: why}
		if open {
			wait.Why, wait.Offline = off, true
		}
		w.mu.Lock()
		w.report(t.Context(), "site-001", w.sites["site-001"], protocol.NodeRestrictions, "gw", restriction.Report{V: 1, Waits: []restriction.Wait{wait}})
		w.mu.Unlock()
		want := "moving gw: " + why
		if open {
			want = "moving "
		}
		w.eventually("the window is noticed", func() bool { return where() == want })
	}
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.mu.Lock()
	w.report(t.Context(), "site-001", w.sites["site-001"], protocol.NodeRestrictions, "gw", restriction.Report{V: 1, Waits: []restriction.Wait{{Deployment: "meter", Why: why}}})
	w.mu.Unlock()
	w.set(file("1.1.0", all, ""))
	w.eventually("it waits", func() bool { return where() == "moving gw: "+why })
	shown := func() string {
		list, _, err := w.rollouts.Sites(t.Context(), "meter", "", fleet.Page{})
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[1].Reason
	}
	for range 2 { // windows of 25 minutes each, with a patience of an hour
		window(true)
		if got := shown(); got != "gw: "+off {
			t.Errorf("the reason that is shown is %q", got)
		}
		if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = now() - interval '25 minutes', changed_at = now() - interval '25 minutes' where site = 'site-001'`); err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.Exec(t.Context(), `update rollouts set watched_since = now() - interval '1 day'`); err != nil {
			t.Fatal(err)
		}
		window(false)
	}
	window(true)
	if _, err := w.db.Exec(t.Context(), `update rollout_sites set changed_at = now() - interval '11 minutes' where site = 'site-001'`); err != nil {
		t.Fatal(err)
	}
	w.reaches(2, rollout.Paused, "1 site failed")
	if got := where(); !strings.Contains(got, "gw: "+off+" (not running the revision 1h0m0s after it could)") {
		t.Errorf("it is %q", got)
	}
}

// TestAMoveThatWaits has a revision change the placement alone, so that the version is INSTALLED at the site as before, and the move wait for
// a window: the site has not got the revision until it is done, whether it is online or not.
func TestAMoveThatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	const why = "the removal waits: the site is outside of its maintenance windows until Sat 28 Nov 22:00 CET"
	waits := func(list ...restriction.Wait) {
		t.Helper()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report(t.Context(), "site-001", w.sites["site-001"], protocol.NodeRestrictions, "gw", restriction.Report{V: 1, Waits: list})
	}
	where := func() string {
		list, err := w.rollouts.Members(t.Context(), "meter")
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		return string(list[1].State) + " " + list[1].Reason
	}
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	waits(restriction.Wait{Deployment: "meter", Why: why})
	w.set(file("1.1.0", all, ""))
	w.reaches(2, rollout.Running, "wave 1 of 1: 1 site on the way, 1 of them waiting for a maintenance window or a person")
	w.online("site-001", false)
	w.eventually("it is away", func() bool { return where() == "away gw: "+why })
	w.online("site-001", true)
	w.eventually("it waits there", func() bool { return where() == "moving gw: "+why })
	waits()
	w.eventually("it has the revision", func() bool { return where() == "healthy " })
	w.reaches(2, rollout.Done, "")
}

// TestWhatWaitsIsTakenBack has a site fail and a person stop the rollout while the change waits at others: these have what they had before,
// but for one that has begun on another node, and get the change once the rollout goes on. One that loses its link meanwhile has not failed.
func TestWhatWaitsIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*world){
		"it fails elsewhere": func(w *world) {},
		"it is paused":       func(w *world) { w.act(rollout.Pause) },
		"it is aborted":      func(w *world) { w.act(rollout.Abort) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 4)
			const why = "the update waits: the site is outside of its maintenance windows until Sat 28 Nov 22:00 CET"
			fails := name == "it fails elsewhere"
			w.outcome = func(id protocol.SiteID, version string) lifecycle.State {
				switch {
				case version == "1.0.0":
					return lifecycle.Installed
				case id == "site-000" && fails:
					return lifecycle.Failed
				case id == "site-001" || id == "site-003":
					return waiting
				}
				return "" // it has begun
			}
			w.set(file("1.0.0", all, ""))
			w.reaches(1, rollout.Done, "")
			w.mu.Lock()
			for _, id := range []protocol.SiteID{"site-001", "site-002", "site-003"} {
				w.report(t.Context(), id, w.sites[id], protocol.NodeRestrictions, "gw", restriction.Report{V: 1, Waits: []restriction.Wait{{Deployment: "meter", Why: why}}})
			}
			w.mu.Unlock()
			w.set(file("1.1.0", all, ""))
			where := func(i int) string {
				list, err := w.rollouts.Members(t.Context(), "meter")
				if err != nil || len(list) != 4 {
					t.Fatalf("%+v, %v", list, err)
				}
				return string(list[i].State) + " " + list[i].Reason
			}
			if !fails {
				w.eventually("it waits there", func() bool { return where(1) == "moving gw: "+why })
				w.online("site-003", false)
				w.eventually("one that waits and is offline is away", func() bool { return where(3) == "away gw: "+why })
				if _, err := w.db.Exec(t.Context(), `update sites set changed_at = now() - interval '1 hour' where id = 'site-003'`); err != nil {
					t.Fatal(err)
				}
				if _, err := w.db.Exec(t.Context(), `update rollout_sites set admitted_at = now() - interval '1 day' where site = 'site-003'`); err != nil {
					t.Fatal(err)
				}
				w.reaches(2, rollout.Running, "of them waiting for a maintenance window or a person")
			}
			stop(w)
			w.eventually("it has what it had before", func() bool {
				given := w.given()
				return strings.HasPrefix(where(2), "moving") && strings.HasPrefix(where(3), "waiting") && strings.HasPrefix(where(1), "waiting the change waited there when the rollout stopped") && given["1.0.0"] >= 1
			})
		})
	}
}

// TestNodesThatAreOffline has a person stop a rollout while the nodes of a site are offline whose LO is online: it has what it had before, so
// that no node begins the revision when it returns. A site whose node is online goes on.
func TestNodesThatAreOffline(t *testing.T) {
	t.Parallel()
	for _, action := range []rollout.Action{rollout.Pause, rollout.Abort} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.outcome = func(_ protocol.SiteID, version string) lifecycle.State {
				if version == "1.0.0" {
					return lifecycle.Installed
				}
				return waiting // nothing is reported
			}
			w.set(file("1.0.0", all, ""))
			w.reaches(1, rollout.Done, "")
			w.mu.Lock()
			w.report(t.Context(), "site-001", w.sites["site-001"], protocol.NodeOfflineEvent, "gw", protocol.Presence{V: 1})
			w.mu.Unlock()
			w.set(file("1.1.0", all, ""))
			w.eventually("both are on the way", func() bool { return w.given()["1.1.0"] == 2 })
			w.act(action)
			w.eventually("it has what it had before", func() bool {
				list, err := w.rollouts.Members(t.Context(), "meter")
				if err != nil || len(list) != 2 {
					t.Fatalf("%+v, %v", list, err)
				}
				given := w.given()
				return list[0].State == rollout.SiteMoving && list[1].State == rollout.SiteWaiting && strings.HasPrefix(list[1].Reason, "its nodes were offline") && given["1.0.0"] == 1 && given["1.1.0"] == 1
			})
		})
	}
}
