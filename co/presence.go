package co

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

// presence records which sites are connected.
type presence struct {
	store *fleetdb.Store
	log   *slog.Logger

	mu    sync.Mutex
	heard map[protocol.SiteID]bool // sites that spoke since the start
	// unsaved holds the last wills that the record could not take: nobody sends a
	// will again.
	unsaved map[protocol.SiteID]protocol.Presence
}

func newPresence(s *fleetdb.Store, log *slog.Logger) *presence {
	return &presence{store: s, log: log, heard: map[protocol.SiteID]bool{}, unsaved: map[protocol.SiteID]protocol.Presence{}}
}

// accept records one Presence of a site.
func (p *presence) accept(ctx context.Context, site protocol.SiteID, payload []byte) error {
	if len(payload) == 0 {
		return nil // a retained message that is cleared says nothing
	}
	var m protocol.Presence
	if err := protocol.Unmarshal(payload, &m); err != nil {
		return err
	}
	p.mu.Lock()
	p.heard[site] = true
	p.mu.Unlock()
	err := p.store.SetSitePresence(ctx, site, m)
	if err != nil && !m.Online {
		p.mu.Lock()
		p.unsaved[site] = m
		p.mu.Unlock()
	}
	return err
}

// saveWills records the wills that the record could not take. One whose connection
// a newer one took the place of meanwhile is ignored by the record.
func (p *presence) saveWills(ctx context.Context) {
	p.mu.Lock()
	wills := maps.Clone(p.unsaved)
	p.mu.Unlock()
	for site, will := range wills {
		if err := p.store.SetSitePresence(ctx, site, will); err != nil {
			p.log.WarnContext(ctx, "site is not recorded as offline yet", "site_id", site, "err", err)
			return
		}
		p.mu.Lock()
		if p.unsaved[site] == will {
			delete(p.unsaved, site)
		}
		p.mu.Unlock()
	}
}

// expire records those sites as offline that were online when the CO was last
// here and do not come back within the grace: their wills went to a broker that
// died with it. Until ctx ends it then sees to the wills that were not recorded.
func (p *presence) expire(ctx context.Context, grace time.Duration) {
	expired := false
	for wait := grace; ; wait = 5 * time.Second {
		if retry.Sleep(ctx, wait) != nil {
			return
		}
		p.saveWills(ctx)
		if expired {
			continue
		}
		p.mu.Lock()
		heard := slices.Collect(maps.Keys(p.heard))
		p.mu.Unlock()
		if err := p.store.SetOfflineExcept(ctx, heard); err != nil {
			p.log.WarnContext(ctx, "sites that did not come back are not recorded as offline yet", "err", err)
			continue
		}
		expired = true
	}
}
