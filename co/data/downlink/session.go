package downlink

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A session is one connection of a site.
type session struct {
	site protocol.SiteID
	name string // of the connection

	ctx    context.Context //nolint:containedctx // ends with the connection
	cancel context.CancelFunc

	mu      sync.Mutex // protects what follows
	running bool       // a sender is at work
	stirred bool       // there may be something new
	acks    []protocol.Ack
	news    notify.Signal // stirred or acks have changed

	// What follows belongs to the sender, of which there is one at a time.

	begun   bool
	streams []*ruleStream // by priority
	limit   int           // bytes of a batch, by what the link carries
	// tries spaces the repetitions of batches without an Ack; wait is the last delay of tries.
	tries retry.Backoff
	wait  time.Duration
}

// Bounds of a batch before compression: one should be on its way for a second or
// two, so that what matters more is not behind it for long.
const (
	firstBatch = 32 << 10
	leastBatch = 4 << 10
	mostBatch  = 256 << 10
)

// A ruleStream is one rule of a session.
type ruleStream struct {
	rule  protocol.DataRule
	asked time.Time // when the site was asked where it stands; zero: not yet
	met   bool      // it has answered
	acked uint64
	next  uint64 // the last sequence that was sent
	last  uint64 // the last there is, as far as is known
	sent  stream.Window[sentBatch]
	hold  time.Time // when a small batch has waited long enough

	refusal stream.Refusal
}

type sentBatch struct {
	last  uint64
	bytes int
	at    time.Time
}

// Through implements stream.Sent.
func (b sentBatch) Through() uint64 { return b.last }

// Bytes implements stream.Sent: those before compression.
func (b sentBatch) Bytes() int { return b.bytes }

// pending reports whether the stream has something to send or to wait for.
func (l *ruleStream) pending() bool { return !l.met || l.acked < l.last }

// Online begins the connection of a site, in place of an earlier one. name is what
// the site calls it.
func (d *Downlink) Online(site protocol.SiteID, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if old := d.sessions[site]; old != nil {
		if old.name == name {
			return // said twice
		}
		old.cancel()
	}
	s := d.newSession(site, name)
	d.sessions[site] = s
	s.mu.Lock()
	defer s.mu.Unlock()
	d.stir(s)
}

// newSession returns a session that ends with the Downlink, if its cancel is not called before.
func (d *Downlink) newSession(site protocol.SiteID, name string) *session {
	s := &session{site: site, name: name, news: notify.New(), limit: firstBatch}
	s.tries.Policy = retry.Policy{Min: d.opts.AckTimeout, Max: 10 * d.opts.AckTimeout}
	s.ctx, s.cancel = context.WithCancel(d.ctx)
	s.answered()
	return s
}

// Offline ends the connection of a site, if it is still that one.
func (d *Downlink) Offline(site protocol.SiteID, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[site]; s != nil && (s.name == name || name == "") {
		s.cancel()
		delete(d.sessions, site)
	}
}

// Notify has what is queued for a site sent, if it is connected here; "" means every
// site.
func (d *Downlink) Notify(site protocol.SiteID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	for _, s := range d.sessions {
		if site == "" {
			s.mu.Lock()
			d.stir(s)
			s.mu.Unlock()
		}
	}
	if s := d.sessions[site]; s != nil {
		s.mu.Lock()
		d.stir(s)
		s.mu.Unlock()
	}
}

// Ack handles an encoded protocol.Ack of a site.
func (d *Downlink) Ack(site protocol.SiteID, payload []byte) error {
	var a protocol.Ack
	if err := protocol.Unmarshal(payload, &a); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[site]
	if s == nil || d.closed {
		return nil // it answers no question of this process
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.acks) < 64 { // more than are ever on their way
		s.acks = append(s.acks, a)
	}
	d.start(s)
	return nil
}

// stir has the session look for something new. The caller holds d.mu and s.mu.
func (d *Downlink) stir(s *session) {
	s.stirred = true
	d.start(s)
}

func (d *Downlink) start(s *session) {
	if s.running {
		s.news.Notify()
		return
	}
	s.running = true
	d.wg.Go(func() { d.serve(s) })
}

// serve sends until there is nothing left to send or to wait for, or the
// connection ends.
func (d *Downlink) serve(s *session) {
	away := retry.Backoff{Policy: awayPolicy}
	for s.ctx.Err() == nil {
		s.mu.Lock()
		stirred, acks := s.stirred, s.acks
		s.stirred, s.acks = false, nil
		s.mu.Unlock()
		due, err := d.step(s, stirred, acks)
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			d.log.WarnContext(s.ctx, "machine data for a site is not sent yet", "site_id", s.site, "err", err)
			s.mu.Lock()
			s.stirred = true
			s.mu.Unlock()
			_ = away.WaitOr(s.ctx, s.news.C())
			continue
		}
		away.Reset()
		if due.IsZero() {
			s.mu.Lock()
			if !s.stirred && len(s.acks) == 0 {
				s.running = false
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
			continue
		}
		_, _ = retry.SleepOr(s.ctx, time.Until(due), s.news.C())
	}
}

// awayPolicy is the wait after PostgreSQL or the broker was away: all sites' sessions have
// failed together, and do not come back together.
var awayPolicy = retry.Policy{Min: time.Second, Max: 5 * time.Second, Jitter: 0.5}

// step does what there is to do, and returns when something is due though nothing
// happens; zero: nothing ever.
func (d *Downlink) step(s *session, stirred bool, acks []protocol.Ack) (due time.Time, err error) {
	for i, a := range acks {
		if err := d.acknowledge(s, a); err != nil {
			s.mu.Lock()
			s.acks = append(acks[i:len(acks):len(acks)], s.acks...)
			s.mu.Unlock()
			return due, err
		}
	}
	if stirred {
		if err := d.refresh(s); err != nil {
			return due, err
		}
	}
	now := time.Now()
	s.repeat(now)
	for _, l := range s.streams {
		if err := d.send(s, l); err != nil {
			return due, err
		}
	}
	for _, l := range s.streams {
		if !l.pending() {
			continue
		}
		at := l.hold
		switch {
		case !l.met:
			at = l.asked.Add(s.wait)
		case l.sent.Len() > 0:
			at = l.sent.Batches()[0].at.Add(s.wait)
		case at.IsZero():
			continue // another stream's batches fill the window
		}
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due, nil
}

// repeat makes send send again what no Ack came for in time.
func (s *session) repeat(now time.Time) {
	late := false
	for _, l := range s.streams {
		switch {
		case !l.met && !l.asked.IsZero() && !now.Before(l.asked.Add(s.wait)):
			l.asked = time.Time{}
			late = true
		case l.met && l.sent.Len() > 0 && !now.Before(l.sent.Batches()[0].at.Add(s.wait)):
			l.next = l.acked
			l.sent.Clear()
			late = true
		}
	}
	if late {
		s.limit = max(leastBatch, s.limit/2)
		s.wait = s.tries.Next()
	}
}

// answered makes the next wait for an Ack the first one again.
func (s *session) answered() {
	s.tries.Reset()
	s.wait = s.tries.Next()
}

// refresh looks what streams there are, and how far they go.
func (d *Downlink) refresh(s *session) error {
	table, err := d.table(s.ctx, s.site, d.opts.RulesTTL)
	if err != nil {
		return err
	}
	var down []protocol.DataRule
	var keep []string
	for _, r := range table.Rules() {
		if r.Down {
			down, keep = append(down, r), append(keep, r.Name)
		}
	}
	removed := slices.ContainsFunc(s.streams, func(l *ruleStream) bool { return !slices.Contains(keep, l.rule.Name) })
	if !s.begun || removed {
		if err := d.opts.Store.BeginDown(s.ctx, s.site, d.name, keep); err != nil {
			return err
		}
		s.begun = true
	}
	if len(down) == 0 {
		s.streams = nil
		return nil
	}
	found, err := d.opts.Store.DownStreams(s.ctx, s.site)
	if err != nil {
		return err
	}
	records := map[string]fleet.DownStream{}
	for _, r := range found {
		records[r.Rule] = r
	}
	s.merge(down, records)
	return nil
}

// merge makes the streams of the session those of the rules. A site is asked about a
// stream only where that can matter: something is queued, it should hold retained
// messages, or nothing is known.
func (s *session) merge(down []protocol.DataRule, records map[string]fleet.DownStream) {
	old := s.streams
	s.streams = nil
	for _, rule := range down {
		i := slices.IndexFunc(old, func(l *ruleStream) bool { return l.rule.Name == rule.Name })
		record, ok := records[rule.Name]
		if i < 0 && ok && record.Queued() == 0 && !record.Retains && !record.Stale {
			continue
		}
		l := &ruleStream{}
		if i >= 0 {
			l = old[i]
		}
		l.rule, l.last, l.hold = rule, max(l.last, record.Last), time.Time{}
		s.streams = append(s.streams, l)
	}
	slices.SortStableFunc(s.streams, func(a, b *ruleStream) int { return rank(a.rule.Priority) - rank(b.rule.Priority) })
}

func rank(p protocol.DataPriority) int {
	switch p {
	case protocol.HighPriority:
		return 0
	case protocol.NormalPriority:
		return 1
	case protocol.LowPriority:
		return 2
	}
	return 1
}
