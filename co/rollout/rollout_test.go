package rollout

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/colonyfleet/colony/protocol"
)

var start = time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)

func fleetOf(n int) []Site {
	list := make([]Site, n)
	for i := range list {
		list[i] = Site{ID: protocol.SiteID(fmt.Sprintf("site-%05d", i))}
	}
	return list
}

func sizes(waves map[protocol.SiteID]int) map[int]int {
	out := map[int]int{}
	for _, w := range waves {
		out[w]++
	}
	return out
}

func TestAssignShares(t *testing.T) {
	t.Parallel()
	waves := []Wave{{Percent: 1}, {Percent: 10}, {Percent: 100}}
	list := fleetOf(10_000)
	got := Assign("id", waves, list)
	if want := map[int]int{0: 100, 1: 900, 2: 9000}; !maps.Equal(sizes(got), want) {
		t.Errorf("sites by wave: %v, want %v", sizes(got), want)
	}
	if again := Assign("id", waves, list[5000:]); again[list[5000].ID] > got[list[5000].ID] {
		t.Errorf("a site moves to a later wave where there are fewer sites: %d, before %d", again[list[5000].ID], got[list[5000].ID])
	}
	other := Assign("another", waves, list)
	same := 0
	for s, w := range got {
		if w == 0 && other[s] == 0 {
			same++
		}
	}
	if same > 20 {
		t.Errorf("%d of 100 sites are the first ones of two fleet deployments", same)
	}
	if got := sizes(Assign("id", waves, fleetOf(1))); got[0] != 1 {
		t.Errorf("the only site is in %v, want the first wave", got)
	}
	if got := sizes(Assign("id", nil, fleetOf(3))); got[0] != 3 {
		t.Errorf("without waves: %v", got)
	}
}

func TestAssignGroups(t *testing.T) {
	t.Parallel()
	list := []Site{{"a", []string{"canary"}}, {"b", nil}, {"c", []string{"north", "canary"}}, {"d", []string{"north"}}}
	got := Assign("id", []Wave{{Group: "canary"}, {Group: "north"}, {Percent: 100}}, list)
	if want := map[protocol.SiteID]int{"a": 0, "c": 0, "d": 1, "b": 2}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A fleetSim has sites that do what a test says, and a clock that it moves.
type fleetSim struct {
	t    *testing.T
	plan Plan
	g    Progress
	now  time.Time
	last Decision
}

func simulate(t *testing.T, plan Plan, sites ...int) *fleetSim {
	s := &fleetSim{t: t, plan: plan, now: start, g: Progress{State: Running, Counts: make([]Counts, len(sites))}}
	for i, n := range sites {
		s.g.Counts[i].Waiting = n
	}
	return s
}

// step decides, and has the sites that are admitted be on their way.
func (s *fleetSim) step() Decision {
	s.last = Decide(s.plan, s.g, s.now)
	if s.last.Reason != s.g.Reason || s.last.State != s.g.State || s.last.Wave != s.g.Wave {
		s.g.Reason, s.g.Changed = s.last.Reason, s.now
	}
	s.g.State, s.g.Wave, s.g.Settled = s.last.State, s.last.Wave, s.last.Settled
	c := &s.g.Counts[s.last.Wave]
	c.Waiting -= s.last.Admit
	c.Moving += s.last.Admit
	return s.last
}

func (s *fleetSim) after(d time.Duration) *fleetSim { s.now = s.now.Add(d); return s }

func (s *fleetSim) become(wave int, f func(*Counts)) { f(&s.g.Counts[wave]) }

func (s *fleetSim) want(state State, wave, admit int, reason string) {
	s.t.Helper()
	d := s.step()
	if d.State != state || d.Wave != wave || d.Admit != admit || !strings.Contains(d.Reason, reason) {
		s.t.Fatalf("at %s: %s in wave %d admits %d (%q), want %s in wave %d, %d, %q", s.now.Sub(start), d.State, d.Wave, d.Admit, d.Reason, state, wave, admit, reason)
	}
}

func healthy(c *Counts) { c.Healthy, c.Moving = c.Healthy+c.Moving, 0 }

func failed(c *Counts) { c.Failed, c.Moving = c.Failed+c.Moving, 0 }

func TestWavesFollowEachOther(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 1, Bake: 30 * time.Minute}, {Percent: 10, Bake: time.Hour, Approval: true}, {Percent: 100}}}, 1, 9, 90)
	s.want(Running, 0, 1, "to be admitted")
	s.want(Running, 0, 0, "1 site on the way")
	s.become(0, healthy)
	s.want(Running, 0, 0, "watched until 2026-11-26T09:30:00Z")
	s.after(29*time.Minute).want(Running, 0, 0, "watched")
	s.after(time.Minute).want(Running, 1, 9, "9 sites to be admitted")
	s.become(1, healthy)
	s.want(Running, 1, 0, "watched")
	s.after(time.Hour).want(Running, 1, 0, "promote to begin")
	s.after(24*time.Hour).want(Running, 1, 0, "promote to begin")
	s.g.Promoted = 2
	s.want(Running, 2, 90, "90 sites to be admitted")
	s.become(2, healthy)
	s.want(Done, 2, 0, "all waves are through")
}

func TestTheFirstFailureStopsIt(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 1, Bake: time.Hour}, {Percent: 100}}}, 1, 99)
	s.want(Running, 0, 1, "")
	s.become(0, failed)
	s.want(Paused, 0, 0, "1 site failed, and 0 may")
	s.after(24*time.Hour).want(Paused, 0, 0, "")
	if s.g.Counts[1].Waiting != 99 {
		t.Errorf("%d of 99 sites of the second wave wait", s.g.Counts[1].Waiting)
	}
	s.g.State, s.g.Counts[0].Accepted = Running, 1
	s.want(Running, 0, 0, "watched")
	s.after(time.Hour).want(Running, 1, 99, "")
}

func TestAFailureWhileItIsWatchedStopsIt(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 50, Bake: time.Hour}, {Percent: 100}}, MaxFailed: 1}, 5, 5)
	s.want(Running, 0, 5, "")
	s.become(0, healthy)
	s.want(Running, 0, 0, "watched")
	s.become(0, func(c *Counts) { c.Healthy, c.Failed = 4, 1 })
	s.after(30*time.Minute).want(Running, 0, 0, "watched")
	s.become(0, func(c *Counts) { c.Healthy, c.Failed = 3, 2 })
	s.after(time.Minute).want(Paused, 0, 0, "2 sites failed, and 1 may")
}

// A wave of which nothing works pauses the rollout, however many may fail; a person may go on all the same.
func TestAWaveThatWorksNowherePauses(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 1}, {Percent: 100}}, MaxFailed: 5}, 2, 98)
	s.want(Running, 0, 2, "")
	s.become(0, failed)
	s.want(Paused, 0, 0, "works at none of its sites, and 2 sites failed")
	s.g.State, s.g.Counts[0].Accepted = Running, 2
	s.want(Running, 1, 98, "")
}

func TestAShareMayFail(t *testing.T) {
	t.Parallel()
	plan := Plan{Waves: []Wave{{Percent: 100}}, MaxFailedPercent: 5}
	g := Progress{State: Running, Counts: []Counts{{Healthy: 95, Failed: 5}}}
	if d := Decide(plan, g, start); d.State != Done || !strings.Contains(d.Reason, "5 sites failed") {
		t.Errorf("5 of 100: %+v", d)
	}
	g.Counts[0] = Counts{Healthy: 94, Failed: 6}
	if d := Decide(plan, g, start); d.State != Paused {
		t.Errorf("6 of 100: %+v", d)
	}
	g.Counts[0] = Counts{Waiting: 80, Failed: 2, Healthy: 18} // of those that were admitted
	if d := Decide(plan, g, start); d.State != Paused {
		t.Errorf("2 of 20: %+v", d)
	}
}

func TestSitesThatAreOfflineHoldNobodyUp(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 10, Bake: time.Hour}, {Percent: 100}}}, 3, 7)
	s.want(Running, 0, 3, "")
	s.become(0, func(c *Counts) { c.Moving, c.Away = 0, 3 })
	s.after(24*time.Hour).want(Running, 0, 0, "offline")
	s.become(0, func(c *Counts) { c.Away, c.Healthy = 2, 1 })
	s.want(Running, 0, 0, "watched")
	s.after(time.Hour).want(Running, 1, 7, "")
	s.become(1, healthy)
	s.want(Done, 1, 0, "2 sites offline")
}

func TestTimeOfflineIsNotWatched(t *testing.T) {
	t.Parallel()
	offline := func(n int, names ...protocol.SiteID) func(*Counts) {
		return func(c *Counts) { c.Offline, c.OfflineSites = n, names }
	}
	watched := func(plan Plan) *fleetSim {
		plan.Waves = []Wave{{Percent: 10, Bake: time.Hour, Approval: plan.Waves != nil}, {Percent: 100}}
		s := simulate(t, plan, 3, 7)
		s.want(Running, 0, 3, "")
		s.become(0, healthy)
		s.want(Running, 0, 0, "watched until 2026-11-26T10:00:00Z")
		return s
	}
	s := watched(Plan{})
	s.become(0, offline(1, "plant-1"))
	s.after(10*time.Minute).want(Running, 0, 0, "wave 1 of 2 is watched no longer while nothing is known of 1 site that ran the revision (plant-1): wait, or promote to begin the next one")
	s.after(2*time.Hour).want(Running, 0, 0, "(plant-1)")
	s.become(0, offline(2, "plant-1"))
	s.after(time.Hour).want(Running, 0, 0, "2 sites that ran the revision (plant-1, 1 more)")
	s.become(0, offline(0))
	s.after(time.Hour).want(Running, 0, 0, "watched until 2026-11-26T14:00:00Z")
	s.after(49*time.Minute).want(Running, 0, 0, "watched")
	s.after(time.Minute).want(Running, 1, 7, "")

	s = watched(Plan{}) // a person goes on all the same
	s.become(0, offline(3, "plant-1"))
	s.want(Running, 0, 0, "promote")
	s.after(2*time.Hour).want(Running, 0, 0, "promote")
	s.g.Promoted = 1
	s.want(Running, 1, 7, "")

	s = watched(Plan{MaxFailed: 2}) // as many as may fail, but not all
	s.become(0, offline(2, "plant-1"))
	s.after(30*time.Minute).want(Running, 0, 0, "watched until 2026-11-26T10:00:00Z")
	s.become(0, func(c *Counts) { c.Healthy, c.Failed = 2, 1 })
	s.want(Running, 0, 0, "nothing is known of 2 sites")
	s.become(0, func(c *Counts) { c.Offline = 1 })
	s.after(30*time.Minute).want(Running, 0, 0, "watched until 2026-11-26T10:30:00Z")
	s.after(30*time.Minute).want(Running, 1, 7, "")

	s = watched(Plan{MaxFailed: 3})
	s.become(0, offline(3, "plant-1"))
	s.after(time.Hour-time.Second).want(Running, 0, 0, "nothing is known of 3 sites")

	s = watched(Plan{Waves: []Wave{}}) // what was watched long enough stays so
	s.after(time.Hour).want(Running, 0, 0, "promote to begin")
	s.become(0, offline(3, "plant-1"))
	s.after(time.Hour).want(Running, 0, 0, "wave 1 of 2 works: promote to begin")

	s = watched(Plan{}) // a gate without an answer lets no time count in which a site is offline
	s.plan.Gates = []Gate{{Name: "load"}}
	s.become(0, offline(1, "plant-1"))
	s.after(time.Minute).want(Running, 0, 0, "held by gate load")
	s.plan.Gates = nil
	s.become(0, offline(0))
	s.after(time.Hour).want(Running, 0, 0, "watched until 2026-11-26T11:01:00Z")
}

// A person goes on although all of a first wave is offline.
func TestAWaveThatIsAwayMayBePromoted(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 10}, {Percent: 100}}}, 1, 9)
	s.want(Running, 0, 1, "")
	s.become(0, func(c *Counts) { c.Moving, c.Away = 0, 1 })
	s.after(24*time.Hour).want(Running, 0, 0, "promote to begin the next one")
	s.g.Promoted = 1
	s.want(Running, 1, 9, "")
}

func TestRateAndNumberAtOnce(t *testing.T) {
	t.Parallel()
	g := Progress{State: Running, Counts: []Counts{{Waiting: 100, Moving: 3}}}
	for _, c := range []struct {
		plan   Plan
		recent int
		want   int
	}{
		{Plan{}, 0, 100},
		{Plan{AtOnce: 10}, 0, 7},
		{Plan{AtOnce: 2}, 0, 0},
		{Plan{SitesPerMinute: 20}, 0, 20},
		{Plan{SitesPerMinute: 20}, 15, 5},
		{Plan{SitesPerMinute: 20}, 20, 0},
		{Plan{SitesPerMinute: 20, AtOnce: 4}, 0, 1},
	} {
		g.Recent = c.recent
		if d := Decide(c.plan, g, start); d.Admit != c.want {
			t.Errorf("%+v with %d in the last minute admits %d, want %d", c.plan, c.recent, d.Admit, c.want)
		}
	}
}

func TestASiteThatMovesAgainEndsTheWatch(t *testing.T) {
	t.Parallel()
	s := simulate(t, Plan{Waves: []Wave{{Percent: 50, Bake: time.Hour}, {Percent: 100}}}, 2, 2)
	s.want(Running, 0, 2, "")
	s.become(0, healthy)
	s.want(Running, 0, 0, "watched")
	s.become(0, func(c *Counts) { c.Healthy, c.Moving = 1, 1 })
	s.after(59*time.Minute).want(Running, 0, 0, "on the way")
	s.become(0, healthy)
	s.after(time.Minute).want(Running, 0, 0, "watched until 2026-11-26T11:00:00Z")
}

// TestNoWaveBeforeItsTurn has sites succeed, fail, leave and come back at random: a site of a wave is admitted only
// while all waves before it are settled, and never while more have failed than may.
func TestNoWaveBeforeItsTurn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "waves")
		plan := Plan{MaxFailed: rapid.IntRange(0, 3).Draw(t, "mayFail"), AtOnce: rapid.IntRange(0, 5).Draw(t, "atOnce")}
		g := Progress{State: Running, Counts: make([]Counts, n)}
		for i := range n {
			plan.Waves = append(plan.Waves, Wave{Percent: 100 * (i + 1) / n, Bake: time.Minute})
			g.Counts[i].Waiting = rapid.IntRange(0, 10).Draw(t, "sites")
		}
		now := start
		for range 60 {
			d := Decide(plan, g, now)
			all := Total(g.Counts)
			if d.Wave < g.Wave || d.Admit < 0 || d.Admit > g.Counts[d.Wave].Waiting {
				t.Fatalf("%+v of %+v", d, g)
			}
			if d.Admit > 0 {
				if all.Failed > plan.MaxFailed {
					t.Fatalf("admits %d with %d failed, of which %d may", d.Admit, all.Failed, plan.MaxFailed)
				}
				for i := range d.Wave {
					if g.Counts[i].Waiting > 0 {
						t.Fatalf("admits in wave %d while %+v wait in wave %d", d.Wave, g.Counts[i], i)
					}
				}
			}
			g.State, g.Wave, g.Settled = d.State, d.Wave, d.Settled
			c := &g.Counts[d.Wave]
			c.Waiting, c.Moving = c.Waiting-d.Admit, c.Moving+d.Admit
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			shuffle(t, &g.Counts[rapid.IntRange(0, n-1).Draw(t, "wave")])
		}
	})
}

// shuffle moves sites of a wave that were admitted from one count to another.
func shuffle(t *rapid.T, c *Counts) {
	of := []*int{&c.Moving, &c.Away, &c.Healthy, &c.Failed}
	from, to := rapid.IntRange(0, 3).Draw(t, "from"), rapid.IntRange(0, 3).Draw(t, "to")
	n := rapid.IntRange(0, *of[from]).Draw(t, "n")
	if from == 3 {
		n = 0 // a failure is reported once more where it ends
	}
	*of[from] -= n
	*of[to] += n
}

// While a gate does not pass, no site is admitted and no wave ends; one that fails has the time begin anew in which all must work, and one without
// an answer does not.
func TestGatesHold(t *testing.T) {
	t.Parallel()
	most := 0.5
	s := simulate(t, Plan{Waves: []Wave{{Percent: 10, Bake: time.Hour}, {Percent: 100}}, Gates: []Gate{{Name: "errors", Max: &most}, {Name: "load"}}}, 1, 9)
	answer := func(errors, load string, unknown bool) {
		s.g.Answers = []Answer{{Gate: "errors", Wave: s.g.Wave, Reason: errors, Unknown: unknown}, {Gate: "load", Wave: s.g.Wave, Reason: load}}
	}
	s.want(Running, 0, 0, "held by gate errors: it was not asked yet (wave 1 of 2)")
	answer("there is no answer", "", true)
	s.want(Running, 0, 0, "held by gate errors: there is no answer")
	answer("", "", false)
	s.want(Running, 0, 1, "to be admitted")
	s.become(0, healthy)
	s.want(Running, 0, 0, "watched until 2026-11-26T10:00:00Z")
	answer("there is no answer", "", true)
	s.after(30*time.Minute).want(Running, 0, 0, "held")
	answer("", "", false)
	s.after(time.Minute).want(Running, 0, 0, "watched until 2026-11-26T10:00:00Z")
	answer("", "it is 3", false)
	s.after(time.Minute).want(Running, 0, 0, "held by gate load: it is 3")
	answer("", "", false)
	s.want(Running, 0, 0, "watched until 2026-11-26T10:32:00Z")
	s.after(time.Hour).want(Running, 1, 0, "held by gate errors: it was not asked yet (wave 2 of 2)") // what was said was about the first one
	answer("", "", false)
	s.want(Running, 1, 9, "")
	answer("", "it is 3", false)
	s.become(1, healthy)
	s.want(Running, 1, 0, "held")
	s.g.Promoted = 2 // a person says that it may be
	s.want(Done, 1, 0, "through")
}

func TestWithin(t *testing.T) {
	t.Parallel()
	least, most := 1.0, 2.0
	for _, c := range []struct {
		gate Gate
		v    float64
		want string
	}{
		{Gate{Min: &least, Max: &most}, 1, ""},
		{Gate{Min: &least, Max: &most}, 2, ""},
		{Gate{Max: &most}, -1e9, ""},
		{Gate{Min: &least}, math.Inf(1), "no finite number"},
		{Gate{Max: &most}, math.Inf(-1), "no finite number"},
		{Gate{Min: &least}, 0.5, "at least 1"},
		{Gate{Max: &most}, 2.5, "it is 2.5, and at most 2"},
		{Gate{Max: &most}, math.NaN(), "no finite number"},
	} {
		if got := c.gate.Within(c.v); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: %q, want %q", c.v, got, c.want)
		}
	}
}

// A wave without sites is none that has shown anything: where no other one has, or a person is to say so, it waits for that. Where no site waits
// behind it there is nothing to wait for.
func TestWavesWithoutSites(t *testing.T) {
	t.Parallel()
	plan := Plan{Waves: []Wave{{Group: "canary", Bake: time.Hour}, {Percent: 10, Approval: true}, {Percent: 100}}}
	s := simulate(t, plan, 0, 0, 9)
	s.want(Running, 0, 0, "wave 1 of 3 has no site that says how the revision works: promote to begin the next one")
	s.g.Promoted = 1
	s.want(Running, 1, 0, "wave 2 of 3 has no site")
	s.g.Promoted = 2
	s.want(Running, 2, 9, "")
	s = simulate(t, plan, 1, 0, 8)
	s.want(Running, 0, 1, "")
	s.become(0, healthy)
	s.want(Running, 0, 0, "watched")
	s.after(time.Hour).want(Running, 1, 0, "wave 2 of 3 has no site")
	s = simulate(t, plan, 0, 0, 0)
	s.g.Counts[2].Healthy = 9 // as after a return to what all have run
	s.want(Done, 2, 0, "")
	s = simulate(t, plan, 0, 0, 9)
	s.g.Counts[0].Conflict = 2
	s.want(Running, 0, 0, "wave 1 of 3 has no site")
}
