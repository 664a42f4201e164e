package sitedata

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A Link is what the CO knows of the link to a site and of the streams in both directions.
type Link struct {
	Site   protocol.SiteID `json:"site"`
	Online bool            `json:"online"` // whether the LO is connected to the CO
	Since  *time.Time      `json:"since,omitempty" doc:"when online last changed"`
	// Refreshed is false where the site did not answer.
	Refreshed *bool    `json:"refreshed,omitempty" doc:"where a refresh was requested: whether the site reported every stream anew"`
	Up        []Stream `json:"up" doc:"the streams of the site, events first; while the site is offline more may be queued than it reported"`
	Down      []Stream `json:"down" doc:"the streams to the site, which are queued at the CO, so that the figures are exact"`
}

// A Stream is one stream of a link.
type Stream struct {
	Rule    string `json:"rule,omitempty" doc:"data rule; absent for the events of the site"`
	Removed bool   `json:"removed,omitempty" doc:"no rule has this name any more"`
	Queued  uint64 `json:"queued" doc:"records still to come"`
	Bytes   uint64 `json:"bytes" doc:"on disk"`
	// OldestSeconds counts on from Reported.
	OldestSeconds  float64    `json:"oldestSeconds,omitempty" doc:"age of the oldest queued record now, at most"`
	Dropped        uint64     `json:"dropped" doc:"by a bound, since the stream was opened"`
	Expired        uint64     `json:"expired" doc:"whose time was up before they could be sent, since the stream was opened"`
	RTTSeconds     float64    `json:"rttSeconds,omitempty" doc:"from sending a batch to its acknowledgement; absent: not measured"`
	BytesPerSecond uint64     `json:"bytesPerSecond,omitempty" doc:"what the link carried lately; absent: not measured"`
	Last           uint64     `json:"last" doc:"sequence of the newest record"`
	Committed      uint64     `json:"committed" doc:"sequence up to which the other side has them"`
	Reported       *time.Time `json:"reported,omitempty" doc:"when the site last reported the stream; absent: never"`
}

// refreshWait bounds how long a site may take to report its streams.
const refreshWait = 5 * time.Second

func (a *routes) getLink(ctx context.Context, in *struct {
	form.SitePath
	Refresh bool `query:"refresh" doc:"ask the site for the state of its streams, and wait up to 5 s for the answer"`
},
) (*form.Reply[Link], error) {
	link, err := a.link(ctx, in.SitePath, in.Refresh)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[Link]{Body: link}, nil
}

func (a *routes) link(ctx context.Context, p form.SitePath, refresh bool) (Link, error) {
	site, err := p.Parse()
	if err != nil {
		return Link{}, err
	}
	s, err := a.opts.Fleet.Site(ctx, site)
	if err != nil {
		return Link{}, err
	}
	out := Link{Site: site, Online: s.Online, Since: s.OnlineSince}
	if refresh {
		reported := s.Online && a.refresh(ctx, site)
		out.Refreshed = &reported
	}
	rules, err := a.opts.Rules.SiteData(ctx, site)
	if err != nil {
		return Link{}, err
	}
	streams, err := a.opts.Data.Streams(ctx, site)
	if err != nil {
		return Link{}, err
	}
	down, err := a.opts.Data.DownStreams(ctx, site)
	if err != nil {
		return Link{}, err
	}
	out.Up, out.Down = upStreams(streams, rules.Rules, time.Now()), downStreams(down, rules.Rules)
	return out, nil
}

// refresh asks a site to report its streams and returns whether it did, for all of
// them.
func (a *routes) refresh(ctx context.Context, site protocol.SiteID) bool {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	data, err := a.opts.Rules.SiteData(ctx, site)
	if err != nil {
		return false
	}
	before, err := a.reportedAt(ctx, site)
	if err != nil {
		return false
	}
	if err := a.opts.Ask(ctx, site); err != nil {
		a.log.WarnContext(ctx, "site not asked for the state of its streams", "site_id", site, "err", err)
		return false
	}
	expected := []string{""}
	for _, r := range data.Rules {
		if !r.Down {
			expected = append(expected, protocol.DataStream(r.Name))
		}
	}
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		now, err := a.reportedAt(ctx, site)
		fresh := func(stream string) bool { return now[stream].After(before[stream]) }
		if err == nil && !slices.ContainsFunc(expected, func(stream string) bool { return !fresh(stream) }) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-retry.C:
		}
	}
}

func (a *routes) reportedAt(ctx context.Context, site protocol.SiteID) (map[string]time.Time, error) {
	streams, err := a.opts.Data.Streams(ctx, site)
	reported := map[string]time.Time{}
	for _, l := range streams {
		reported[l.Name] = l.Reported
	}
	return reported, err
}

// upStreams shows the streams of a site: its events, its rules in their order, and
// what is known of rules that were removed.
func upStreams(streams []fleet.Stream, rules []fleet.DataRule, now time.Time) []Stream {
	known := map[string]fleet.Stream{}
	for _, l := range streams {
		known[l.Name] = l
	}
	out := []Stream{upStream(known[""], now)}
	for _, r := range rules {
		if r.Down {
			continue
		}
		stream := protocol.DataStream(r.Name)
		q := upStream(known[stream], now)
		q.Rule = r.Name
		out = append(out, q)
		delete(known, stream)
	}
	for _, l := range streams {
		name, data := strings.CutPrefix(l.Name, protocol.DataStream(""))
		if _, left := known[l.Name]; !left || !data {
			continue
		}
		q := upStream(l, now)
		q.Rule, q.Removed = name, true
		out = append(out, q)
	}
	return out
}

func upStream(l fleet.Stream, now time.Time) Stream {
	q := Stream{
		Queued: l.Queued(), Bytes: l.Bytes, Dropped: l.Dropped, Expired: l.Expired, RTTSeconds: l.RTT.Seconds(),
		BytesPerSecond: l.BytesPerSecond, Last: max(l.Last, l.Committed), Committed: l.Committed,
	}
	if l.Reported.IsZero() {
		return q
	}
	q.Reported = &l.Reported
	if q.Queued > 0 {
		q.OldestSeconds = (l.OldestAge + max(0, now.Sub(l.Reported))).Seconds()
	}
	return q
}

func downStreams(streams []fleet.DownStream, rules []fleet.DataRule) []Stream {
	out := []Stream{}
	for _, l := range streams {
		q := Stream{Rule: l.Rule, Queued: l.Queued(), Bytes: l.Bytes, Dropped: l.Dropped, Last: l.Last, Committed: l.Acked}
		if q.Queued > 0 {
			q.OldestSeconds = l.OldestAge.Seconds()
		}
		q.Removed = !slices.ContainsFunc(rules, func(r fleet.DataRule) bool { return r.Down && r.Name == l.Rule })
		out = append(out, q)
	}
	return out
}
