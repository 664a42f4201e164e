package driver_test

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/protocol"
)

// TestTimeOfflineDoesNotBake has a site, and then its node, go offline after it ran the revision, for longer than the wave is watched: the next
// wave does not begin, and the reason names the site. The time counts on once the site is back; a person goes on without it.
func TestTimeOfflineDoesNotBake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	w.set(file("1.0.0", all, ""))
	w.reaches(1, rollout.Done, "")
	w.set(file("1.1.0", all, "    waves: [{percent: 10, bake: 1h}, {percent: 100}]\n"))
	w.reaches(2, rollout.Running, "watched until")
	var first rollout.Member
	list, err := w.rollouts.Members(t.Context(), "meter")
	for _, m := range list {
		if m.Revision == 2 {
			first = m
		}
	}
	if err != nil || first.State != rollout.SiteHealthy {
		t.Fatalf("%+v, %v", list, err)
	}
	passes := func(interval string) {
		t.Helper()
		if _, err := w.db.Exec(t.Context(), `update rollouts set settled_at = settled_at - $1::interval, changed_at = changed_at - $1::interval, watched_since = watched_since - $1::interval where revision = 2`, interval); err != nil {
			t.Fatal(err)
		}
	}
	node := func(online bool) {
		kind := protocol.NodeOfflineEvent
		if online {
			kind = protocol.NodeOnlineEvent
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report(t.Context(), first.Site, w.sites[first.Site], kind, "gw", protocol.Presence{V: 1, Online: online})
	}
	reason := func() string {
		list, err := w.rollouts.Members(t.Context(), "meter")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if m.Site == first.Site {
				if m.State != rollout.SiteHealthy || !m.Changed.Equal(first.Changed) {
					t.Errorf("it is %s since %s, want %s since %s", m.State, m.Changed, first.State, first.Changed)
				}
				return m.Reason
			}
		}
		return ""
	}
	held := "wave 1 of 2 is watched no longer while nothing is known of 1 site that ran the revision (" + string(first.Site) + ")"
	for name, offline := range map[string]func(bool){"site": func(off bool) { w.online(first.Site, !off) }, "node": func(off bool) { node(!off) }} {
		offline(true)
		w.reaches(2, rollout.Running, held)
		if got := reason(); name == "site" && !strings.HasPrefix(got, "offline since 20") || name == "node" && got != "node gw is offline" {
			t.Errorf("%s: the reason is %q", name, got)
		}
		passes("2 hours")
		for range 3 {
			if err := w.driver.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.reaches(2, rollout.Running, held)
		offline(false)
		w.reaches(2, rollout.Running, "watched until")
	}
	passes("50 minutes")
	w.online(first.Site, false)
	w.reaches(2, rollout.Running, held)
	w.act(rollout.Promote)
	passes("11 minutes")
	w.reaches(2, rollout.Done, "")
	if got := reason(); got != "" {
		t.Errorf("the rollout is done, and the site has the reason %q", got)
	}
}
