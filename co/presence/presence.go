// Package presence records which sites are connected, from what they and their last
// wills report.
//
// Two reports never come: the last will of a site whose broker ended together with
// the CO, and a second copy of a will that could not be recorded. The package makes
// up for both. After a start it waits for the sites that are recorded as online, and
// records those that do not report within the grace as offline. A will that could
// not be recorded is held in memory and recorded later.
package presence

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// DefaultGrace is the Grace of Options that name none: an LO that lost its CO
// connects again within a few seconds, on a slow link within half a minute.
const DefaultGrace = 30 * time.Second

// DefaultRetry is the Retry of Options that name none.
const DefaultRetry = 5 * time.Second

// A Store is the CO's record of its sites.
type Store interface {
	// SetSitePresence records that a site's LO is connected or not. It ignores the will
	// of a connection that a newer one has replaced.
	SetSitePresence(ctx context.Context, site protocol.SiteID, p protocol.Presence) error
	// SetOfflineExcept records every site as offline that is recorded as online and is
	// not among the connected.
	SetOfflineExcept(ctx context.Context, connected []protocol.SiteID) error
}

// Options are what a Monitor works with. The Store is required.
type Options struct {
	Store Store
	// Changed is called with each presence that was recorded, before Accept returns. Nil: it is not
	// called.
	Changed func(site protocol.SiteID, p protocol.Presence)
	// Grace is how long after the call of Run a site that is recorded as online may
	// take to report. 0 means DefaultGrace.
	Grace time.Duration
	// Retry is the time between two tries to record what could not be recorded. 0 means
	// DefaultRetry.
	Retry time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// A Monitor records the presence of sites. Its methods may be called concurrently.
type Monitor struct {
	opts Options
	log  *slog.Logger

	mu       sync.Mutex // protects what follows
	reported map[protocol.SiteID]bool
	// unsaved holds, by site, the last will that could not be recorded.
	unsaved map[protocol.SiteID]protocol.Presence
}

// New returns a Monitor. Without a Store it fails.
func New(o Options) (*Monitor, error) {
	if o.Store == nil {
		return nil, errors.New("presence of sites: no store")
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.Retry <= 0 {
		o.Retry = DefaultRetry
	}
	if o.Changed == nil {
		o.Changed = func(protocol.SiteID, protocol.Presence) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Monitor{
		opts: o, log: o.Logger.With("component", "presence"),
		reported: map[protocol.SiteID]bool{}, unsaved: map[protocol.SiteID]protocol.Presence{},
	}, nil
}

// Accept records one encoded protocol.Presence of a site. An empty payload, with which
// a retained presence is cleared, reports nothing. On an error the presence is not
// recorded; a will is then held, and Run records it.
func (m *Monitor) Accept(ctx context.Context, site protocol.SiteID, payload []byte) error {
	if len(payload) == 0 {
		return nil
	}
	var p protocol.Presence
	if err := protocol.Unmarshal(payload, &p); err != nil {
		return err
	}
	m.mu.Lock()
	m.reported[site] = true
	m.mu.Unlock()
	if err := m.opts.Store.SetSitePresence(ctx, site, p); err != nil {
		if !p.Online {
			m.mu.Lock()
			m.unsaved[site] = p
			m.mu.Unlock()
		}
		return err
	}
	m.opts.Changed(site, p)
	return nil
}

// Run records, until ctx ends, what Accept could not: the wills that it holds and,
// once the grace is over, the sites that did not report.
func (m *Monitor) Run(ctx context.Context) {
	timer := time.NewTimer(m.opts.Grace)
	defer timer.Stop()
	for expired := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		m.saveWills(ctx)
		expired = expired || m.expire(ctx)
		timer.Reset(m.opts.Retry)
	}
}

// saveWills records the wills that could not be recorded, up to the first that still
// cannot be.
func (m *Monitor) saveWills(ctx context.Context) {
	m.mu.Lock()
	wills := maps.Clone(m.unsaved)
	m.mu.Unlock()
	for _, site := range slices.Sorted(maps.Keys(wills)) {
		will := wills[site]
		if err := m.opts.Store.SetSitePresence(ctx, site, will); err != nil {
			m.log.WarnContext(ctx, "site is not recorded as offline yet", "site_id", site, "err", err)
			return
		}
		m.opts.Changed(site, will)
		m.mu.Lock()
		if m.unsaved[site] == will { // a newer one may have come meanwhile
			delete(m.unsaved, site)
		}
		m.mu.Unlock()
	}
}

// expire records the sites as offline that have not reported since the start, and
// returns whether it could.
func (m *Monitor) expire(ctx context.Context) bool {
	m.mu.Lock()
	reported := slices.Sorted(maps.Keys(m.reported))
	m.mu.Unlock()
	if err := m.opts.Store.SetOfflineExcept(ctx, reported); err != nil {
		m.log.WarnContext(ctx, "sites that did not report since the start are not recorded as offline yet", "err", err)
		return false
	}
	return true
}
