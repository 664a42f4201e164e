// Package rollout decides how a new revision of a fleet deployment spreads over its sites: in waves, each of which
// must work for a time before the next one begins, and which end at the first failures. A decision is a function of
// the plan, of what is counted at the sites, and of the time, so that a CO that was stopped in the middle goes on
// where it was. The package is pure.
package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Wave is a part of the sites that gets a revision together.
type Wave struct {
	// Percent is the share of all sites that has the revision once the wave is through, those of the waves before
	// included. 0 where Group is set.
	Percent int
	// Group names a group of sites: the wave is those of its sites that no wave before has.
	Group string
	// Bake is how long all of the wave must work before the next wave begins.
	Bake time.Duration
	// Approval has the next wave wait until a person promotes the rollout.
	Approval bool
}

// A Plan says how a revision spreads.
type Plan struct {
	Waves []Wave
	// MaxFailed is how many sites may fail, and MaxFailedPercent which share of those that were admitted; the larger
	// of both counts. One more pauses the rollout.
	MaxFailed        int
	MaxFailedPercent int
	// SitesPerMinute bounds how fast sites are admitted, and AtOnce how many are under way at a time. 0: no bound.
	SitesPerMinute int
	AtOnce         int
	// Gates hold the rollout while one of them does not pass.
	Gates []Gate
	// Deadline is how long a site that is online may take until it runs the revision. 0: DefaultDeadline.
	Deadline time.Duration
}

// DefaultDeadline is how long a site that is online may take where no plan says it.
const DefaultDeadline = time.Hour

// A Site is one that a revision is meant for.
type Site struct {
	ID     protocol.SiteID
	Groups []string
}

// Assign returns the wave of each site, by its index in the plan. Sites of a share are picked by a hash of the id of
// the fleet deployment and their name: the same ones in each rollout, and others for another fleet deployment. What
// no wave names is in the last one. Where the plan has no wave, all are in wave 0.
func Assign(id string, waves []Wave, sites []Site) map[protocol.SiteID]int {
	ranked := slices.Clone(sites)
	ranks := make(map[protocol.SiteID]uint64, len(sites))
	for _, s := range sites {
		ranks[s.ID] = Rank(id, s.ID)
	}
	slices.SortFunc(ranked, func(a, b Site) int {
		return cmp.Or(cmp.Compare(ranks[a.ID], ranks[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	out := make(map[protocol.SiteID]int, len(sites))
	for i, w := range waves {
		last := i == len(waves)-1
		want := (len(sites)*w.Percent + 99) / 100
		for _, s := range ranked {
			if _, assigned := out[s.ID]; assigned {
				continue
			}
			if last || w.Group != "" && slices.Contains(s.Groups, w.Group) || w.Group == "" && len(out) < want {
				out[s.ID] = i
			}
		}
	}
	for _, s := range ranked {
		if _, assigned := out[s.ID]; !assigned {
			out[s.ID] = 0
		}
	}
	return out
}

// Rank is the place of a site among those of a fleet deployment: the smaller ones are admitted first.
func Rank(id string, site protocol.SiteID) uint64 {
	sum := sha256.Sum256([]byte(id + "\n" + string(site)))
	return binary.BigEndian.Uint64(sum[:8])
}

// A State is where a rollout stands.
type State string

// The states. Running and Paused are not the last ones.
const (
	Running    State = "running"
	Paused     State = "paused"
	Done       State = "done"       // its last wave is through
	Aborted    State = "aborted"    // a person ended it, or its files were removed
	Superseded State = "superseded" // by a later revision
	Refused    State = "refused"    // nothing of it was published
)

// Open reports whether a rollout may still admit sites.
func (s State) Open() bool { return s == Running || s == Paused }

// Counts are the sites of a wave by where they stand. Each site is in one of them, and those in Accepted in Failed as well, those in Held in Moving, and
// those in Offline in Healthy.
type Counts struct {
	// Waiting are not admitted.
	Waiting int `json:"waiting" doc:"not admitted yet"`
	// Moving are admitted and online, and do not run the revision yet.
	Moving int `json:"moving" doc:"admitted and online, and not running the revision yet"`
	// Held are those of the Moving at which the change waits for a maintenance window, or a person.
	Held int `json:"held" doc:"those of the moving ones at which the change waits, for a maintenance window or as a person holds a node"`
	// Away are admitted and offline: they get the revision when they are back.
	Away int `json:"away" doc:"admitted and offline: they get the revision when they are back"`
	// Healthy run the revision.
	Healthy int `json:"healthy" doc:"running the revision"`
	// Offline are those of the Healthy that went offline since, or one of whose nodes that run the revision did, while the rollout is open.
	Offline int `json:"offline" doc:"those of the healthy ones that are offline by now, or one of whose nodes that run the revision is, while the rollout is open"`
	// OfflineSites are the first of them.
	OfflineSites []protocol.SiteID `json:"-"`
	// Failed were given the revision, and it does not work there.
	Failed int `json:"failed" doc:"the revision does not work there"`
	// Accepted are those of the Failed with which a person went on.
	Accepted int `json:"accepted" doc:"those of the failed ones with which a person went on, by resuming"`
	// Conflict have a deployment of that name of their own, which stays.
	Conflict int `json:"conflict" doc:"with a deployment of that name of their own, which stays"`
}

// Sites is how many there are.
func (c Counts) Sites() int {
	return c.Waiting + c.Moving + c.Away + c.Healthy + c.Failed + c.Conflict
}

func (c Counts) add(d Counts) Counts {
	return Counts{
		Waiting: c.Waiting + d.Waiting, Moving: c.Moving + d.Moving, Held: c.Held + d.Held, Away: c.Away + d.Away, Healthy: c.Healthy + d.Healthy,
		Offline: c.Offline + d.Offline, Failed: c.Failed + d.Failed, Accepted: c.Accepted + d.Accepted, Conflict: c.Conflict + d.Conflict,
	}
}

// Total adds up the counts of waves.
func Total(waves []Counts) (all Counts) {
	for _, c := range waves {
		all = all.add(c)
	}
	return all
}

// Progress is what is known of a rollout.
type Progress struct {
	State State
	// Wave is the current one.
	Wave int
	// Settled is since when all of the current wave works; zero: it does not.
	Settled time.Time
	// Reason is what the rollout waited for at the last decision, and Changed when that began.
	Reason  string
	Changed time.Time
	// Promoted is how many waves a person let pass without their gates.
	Promoted int
	// Recent is how many sites were admitted in the last minute.
	Recent int
	// Counts are those of each wave of the plan.
	Counts []Counts
	// Answers are those of the gates of the plan.
	Answers []Answer
}

// A Decision is what comes next.
type Decision struct {
	State   State
	Wave    int       // that is current after it
	Settled time.Time // since when all of the wave works; zero: it does not
	// Admit is how many sites of the wave are admitted now.
	Admit int
	// Reason says what the rollout waits for, or why it ended.
	Reason string
}

// Decide returns what comes next in a rollout. The zero counts of a wave without sites let it pass.
func Decide(p Plan, g Progress, now time.Time) Decision {
	d := Decision{State: g.State, Wave: g.Wave, Settled: g.Settled}
	if g.State != Running {
		return d
	}
	d.Settled = g.counted(now)
	all := Total(g.Counts)
	if limit := p.limit(all) + all.Accepted; all.Failed > limit {
		d.State = Paused
		d.Reason = fmt.Sprintf("%s failed, and %d may: resume to go on with them, or abort", sites(all.Failed), limit)
		return d
	}
	for {
		if !p.pass(&d, g, now) {
			return d
		}
		if d.Wave+1 >= len(p.Waves) {
			d.State, d.Settled = Done, time.Time{}
			d.Reason = "all waves are through"
			if all.Away > 0 || all.Failed > 0 || all.Conflict > 0 {
				d.Reason += ": " + remains(all)
			}
			return d
		}
		d.Wave, d.Settled = d.Wave+1, time.Time{}
	}
}

// pass reports whether the current wave is through. If it is not, the decision says what it waits for.
func (p Plan) pass(d *Decision, g Progress, now time.Time) bool {
	var c Counts
	if d.Wave < len(g.Counts) {
		c = g.Counts[d.Wave]
	}
	wave := p.wave(d.Wave)
	name := fmt.Sprintf("wave %d of %d", d.Wave+1, max(len(p.Waves), 1))
	if held, fails := p.held(g, d.Wave); held != "" && g.Promoted <= d.Wave {
		if fails || p.offline(c, g) {
			d.Settled = time.Time{}
		}
		d.Reason = heldBy + held + " (" + name + ")"
		return false
	}
	switch {
	case c.Waiting > 0:
		d.Settled = time.Time{}
		d.Admit = p.admit(c, g)
		d.Reason = fmt.Sprintf("%s: %s to be admitted", name, sites(c.Waiting))
		return false
	case c.Moving > 0:
		d.Settled = time.Time{}
		d.Reason = fmt.Sprintf("%s: %s on the way", name, sites(c.Moving))
		if c.Held > 0 {
			d.Reason += fmt.Sprintf(", %d of them waiting for a maintenance window or a person", c.Held)
		}
		return false
	case c.Healthy == 0 && c.Failed > c.Accepted:
		d.Settled = time.Time{}
		d.State = Paused
		d.Reason = fmt.Sprintf("%s: it works at none of its sites, and %s failed: resume to go on with that, or abort", name, sites(c.Failed))
		return false
	case c.Healthy == 0 && c.Away > 0 && g.Promoted <= d.Wave:
		d.Settled = time.Time{}
		d.Reason = fmt.Sprintf("%s: all of its %s are offline, so that nothing is known of the revision: wait, or promote to begin the next one", name, sites(c.Away))
		return false
	case c.Sites() == c.Conflict: // nothing to learn from it
		follow := Total(g.Counts[min(d.Wave+1, len(g.Counts)):])
		if follow.Waiting == 0 || g.Promoted > d.Wave || !wave.Approval && Total(g.Counts).Healthy > 0 {
			return true
		}
		d.Settled = time.Time{}
		d.Reason = name + " has no site that says how the revision works: promote to begin the next one"
		return false
	}
	if d.Settled.IsZero() || d.Settled.After(now) { // by a clock that was ahead
		d.Settled = now
	}
	if until := d.Settled.Add(wave.Bake); now.Before(until) {
		if g.Promoted <= d.Wave && p.offline(c, g) {
			d.Reason = fmt.Sprintf("%s%s that ran the revision (%s): wait, or promote to begin the next one", name+Unwatched, sites(c.Offline), offlineNames(c))
			if d.Reason == g.Reason && !g.Settled.IsZero() { // the time is counted once the reason is another
				d.Settled = g.Settled
			}
			return false
		}
		d.Reason = fmt.Sprintf("%s works, and is watched until %s", name, until.UTC().Format(time.RFC3339))
		return false
	}
	if wave.Approval && g.Promoted <= d.Wave {
		d.Reason = name + " works: promote to begin the next one"
		return false
	}
	return true
}

// Unwatched is in the reason of a rollout whose current wave is not watched on, as sites of it are offline; the time since then does not count.
const Unwatched = " is watched no longer while nothing is known of "

// counted returns since when all of the current wave works, less the time in which it was not watched, as sites were offline. After a
// promotion that time counts.
func (g Progress) counted(now time.Time) time.Time {
	if g.Settled.IsZero() || g.Promoted > g.Wave || !strings.Contains(g.Reason, Unwatched) {
		return g.Settled
	}
	since := g.Changed
	if g.Settled.After(since) {
		since = g.Settled
	}
	return g.Settled.Add(max(0, now.Sub(since)))
}

// offline reports whether more sites of a wave went offline after they ran the revision than may fail yet, or all of them: the revision may be the reason.
func (p Plan) offline(c Counts, g Progress) bool {
	all := Total(g.Counts)
	return c.Offline > 0 && (c.Offline == c.Healthy || c.Offline > p.limit(all)+all.Accepted-all.Failed)
}

// offlineNames names the first sites of a wave that went offline.
func offlineNames(c Counts) string {
	names := make([]string, len(c.OfflineSites))
	for i, s := range c.OfflineSites {
		names[i] = string(s)
	}
	if more := c.Offline - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// admit is how many sites of a wave are admitted now.
func (p Plan) admit(c Counts, g Progress) int {
	n := c.Waiting
	if p.AtOnce > 0 {
		all := Total(g.Counts)
		n = min(n, p.AtOnce-(all.Moving-all.Held)) // a site that waits takes no turn of another
	}
	if p.SitesPerMinute > 0 {
		n = min(n, p.SitesPerMinute-g.Recent)
	}
	return max(n, 0)
}

func (p Plan) wave(i int) Wave {
	if i < len(p.Waves) {
		return p.Waves[i]
	}
	return Wave{Percent: 100}
}

// limit is how many sites may have failed.
func (p Plan) limit(c Counts) int {
	admitted := c.Sites() - c.Waiting - c.Conflict
	return max(p.MaxFailed, admitted*p.MaxFailedPercent/100)
}

func sites(n int) string {
	if n == 1 {
		return "1 site"
	}
	return fmt.Sprintf("%d sites", n)
}

// remains says which sites do not run the revision.
func remains(c Counts) string {
	var parts []string
	for _, v := range []struct {
		n    int
		text string
	}{{c.Away, "offline"}, {c.Failed, "failed"}, {c.Conflict, "with a deployment of their own"}} {
		if v.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", sites(v.n), v.text))
		}
	}
	return strings.Join(parts, ", ")
}
