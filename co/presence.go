package co

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/colonyfleet/colony/co/store"
	"github.com/colonyfleet/colony/protocol"
)

// presence records which sites are connected.
type presence struct {
	store *store.Store
	log   *slog.Logger

	mu    sync.Mutex
	heard map[protocol.SiteID]bool // sites that spoke since the start
}

func newPresence(s *store.Store, log *slog.Logger) *presence {
	return &presence{store: s, log: log, heard: map[protocol.SiteID]bool{}}
}

// take records one Presence of a site.
func (p *presence) take(ctx context.Context, site protocol.SiteID, payload []byte) error {
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
	return p.store.SetSitePresence(ctx, site, m)
}

// expire records those sites as offline that were online when the CO was last
// here and do not come back within the grace: their wills went to a broker that
// died with it.
func (p *presence) expire(ctx context.Context, grace time.Duration) {
	for wait := grace; ; wait = 5 * time.Second {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		p.mu.Lock()
		heard := slices.Collect(maps.Keys(p.heard))
		p.mu.Unlock()
		err := p.store.SetOfflineExcept(ctx, heard)
		if err == nil {
			return
		}
		p.log.WarnContext(ctx, "sites that did not come back are not recorded as offline yet", "err", err)
	}
}
