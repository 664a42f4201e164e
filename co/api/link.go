package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A Link is what the CO knows of the link to a site and of the queues at its ends.
type Link struct {
	Site   protocol.SiteID `json:"site"`
	Online bool            `json:"online"`
	Since  *time.Time      `json:"since,omitempty" doc:"when online last changed"`
	// Refreshed is false where the site did not answer.
	Refreshed *bool   `json:"refreshed,omitempty" doc:"where a refresh was asked for: whether every queue was told of anew"`
	Up        []Queue `json:"up" doc:"the queues at the site, events first; while the site is offline more may be queued than it told"`
	Down      []Queue `json:"down" doc:"the queues at the CO, which are exact"`
}

// A Queue is one queue of a link.
type Queue struct {
	Rule   string `json:"rule,omitempty" doc:"data rule; absent for the events of the site"`
	Gone   bool   `json:"gone,omitempty" doc:"no rule has this name any more"`
	Queued uint64 `json:"queued" doc:"records still to come"`
	Bytes  uint64 `json:"bytes" doc:"on disk"`
	// OldestSeconds counts on from when the site told.
	OldestSeconds  float64    `json:"oldestSeconds,omitempty" doc:"age of the oldest queued record now, at most"`
	Dropped        uint64     `json:"dropped" doc:"by a bound, since the queue was opened"`
	Expired        uint64     `json:"expired" doc:"whose time was up before they could be sent, since the queue was opened"`
	RTTSeconds     float64    `json:"rttSeconds,omitempty" doc:"from sending a batch to its acknowledgement; absent: not measured"`
	BytesPerSecond uint64     `json:"bytesPerSecond,omitempty" doc:"what the link carried lately; absent: not measured"`
	Last           uint64     `json:"last" doc:"sequence of the newest record"`
	Committed      uint64     `json:"committed" doc:"sequence up to which the other side has them"`
	Told           *time.Time `json:"told,omitempty" doc:"when the site last told of the queue; absent: never"`
}

// refreshWait bounds how long a site may take to tell of its queues.
const refreshWait = 5 * time.Second

func (a *API) getLink(ctx context.Context, in *struct {
	SitePath
	Refresh bool `query:"refresh" doc:"ask the site for the state of its queues, and wait up to 5 s for the answer"`
},
) (*reply[Link], error) {
	link, err := a.link(ctx, in.SitePath, in.Refresh)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &reply[Link]{link}, nil
}

func (a *API) link(ctx context.Context, p SitePath, refresh bool) (Link, error) {
	site, err := p.parse()
	if err != nil {
		return Link{}, err
	}
	s, err := a.opts.Fleet.Site(ctx, site)
	if err != nil {
		return Link{}, err
	}
	out := Link{Site: site, Online: s.Online, Since: s.OnlineSince}
	if refresh {
		told := s.Online && a.refresh(ctx, site)
		out.Refreshed = &told
	}
	rules, err := a.opts.Rules.SiteData(ctx, site)
	if err != nil {
		return Link{}, err
	}
	lanes, err := a.opts.Data.Lanes(ctx, site)
	if err != nil {
		return Link{}, err
	}
	down, err := a.opts.Data.DownLanes(ctx, site)
	if err != nil {
		return Link{}, err
	}
	out.Up, out.Down = upQueues(lanes, rules.Rules, time.Now()), downQueues(down, rules.Rules)
	return out, nil
}

// refresh asks a site to tell of its queues and reports whether it did, for all of
// them.
func (a *API) refresh(ctx context.Context, site protocol.SiteID) bool {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	data, err := a.opts.Rules.SiteData(ctx, site)
	if err != nil {
		return false
	}
	before, err := a.toldOf(ctx, site)
	if err != nil {
		return false
	}
	if err := a.opts.Ask(ctx, site); err != nil {
		a.log.WarnContext(ctx, "site not asked for the state of its queues", "site_id", site, "err", err)
		return false
	}
	expected := []string{""}
	for _, r := range data.Rules {
		if !r.Down {
			expected = append(expected, protocol.DataStream(r.Name))
		}
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		now, err := a.toldOf(ctx, site)
		fresh := func(lane string) bool { return now[lane].After(before[lane]) }
		if err == nil && !slices.ContainsFunc(expected, func(lane string) bool { return !fresh(lane) }) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
}

func (a *API) toldOf(ctx context.Context, site protocol.SiteID) (map[string]time.Time, error) {
	lanes, err := a.opts.Data.Lanes(ctx, site)
	told := map[string]time.Time{}
	for _, l := range lanes {
		told[l.Name] = l.Told
	}
	return told, err
}

// upQueues shows the lanes of a site: its events, its rules in their order, and what
// is known of rules that are gone.
func upQueues(lanes []fleet.Lane, rules []fleet.DataRule, now time.Time) []Queue {
	known := map[string]fleet.Lane{}
	for _, l := range lanes {
		known[l.Name] = l
	}
	out := []Queue{upQueue(known[""], now)}
	for _, r := range rules {
		if r.Down {
			continue
		}
		lane := protocol.DataStream(r.Name)
		q := upQueue(known[lane], now)
		q.Rule = r.Name
		out = append(out, q)
		delete(known, lane)
	}
	for _, l := range lanes {
		name, data := strings.CutPrefix(l.Name, protocol.DataStream(""))
		if _, left := known[l.Name]; !left || !data {
			continue
		}
		q := upQueue(l, now)
		q.Rule, q.Gone = name, true
		out = append(out, q)
	}
	return out
}

func upQueue(l fleet.Lane, now time.Time) Queue {
	q := Queue{
		Queued: l.Queued(), Bytes: l.Bytes, Dropped: l.Dropped, Expired: l.Expired, RTTSeconds: l.RTT.Seconds(),
		BytesPerSecond: l.BytesPerSecond, Last: max(l.Last, l.Committed), Committed: l.Committed,
	}
	if l.Told.IsZero() {
		return q
	}
	q.Told = &l.Told
	if q.Queued > 0 {
		q.OldestSeconds = (l.OldestAge + max(0, now.Sub(l.Told))).Seconds()
	}
	return q
}

func downQueues(lanes []fleet.DownLane, rules []fleet.DataRule) []Queue {
	out := []Queue{}
	for _, l := range lanes {
		q := Queue{Rule: l.Rule, Queued: l.Queued(), Bytes: l.Bytes, Dropped: l.Dropped, Last: l.Last, Committed: l.Acked}
		if q.Queued > 0 {
			q.OldestSeconds = l.OldestAge.Seconds()
		}
		q.Gone = !slices.ContainsFunc(rules, func(r fleet.DataRule) bool { return r.Down && r.Name == l.Rule })
		out = append(out, q)
	}
	return out
}
