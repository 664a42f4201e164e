package desired

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// load reads from the record the sites that are not known yet, and returns all.
func (l *Loop) load(ctx context.Context) ([]protocol.SiteID, error) {
	var known []protocol.SiteID
	page := fleet.Page{Limit: fleet.MaxLimit}
	for {
		sites, next, err := l.opts.Store.Sites(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("list sites: %w", err)
		}
		for _, site := range sites {
			known = append(known, site.ID)
			if err := l.loadSite(ctx, site.ID); err != nil {
				return nil, fmt.Errorf("read desired state of %s: %w", site.ID, err)
			}
		}
		if next == "" {
			return known, nil
		}
		page.Cursor = next
	}
}

func (l *Loop) loadSite(ctx context.Context, site protocol.SiteID) error {
	if l.sites[site] != nil {
		return nil
	}
	message, err := l.opts.Store.LastDesired(ctx, site)
	if err != nil {
		return err
	}
	wanted, err := l.opts.Store.Desired(ctx, site)
	if err != nil {
		return err
	}
	slices.SortFunc(wanted, byName)
	l.sites[site] = &siteState{wanted: wanted, message: message}
	return nil
}

// publish sends a site its message, unless it was sent in this session.
func (l *Loop) publish(ctx context.Context, site protocol.SiteID) error {
	s := l.sites[site]
	if s.published {
		return nil
	}
	message := l.inline(s.message)
	if err := l.opts.Publish(ctx, site, protocol.Marshal(&message)); err != nil {
		return fmt.Errorf("publish desired state of %s: %w", site, err)
	}
	s.published = true
	return nil
}

// inline returns the message with as many specs inside as the limits allow, the
// smallest first; the others are fetched by digest.
func (l *Loop) inline(m protocol.SiteDesired) protocol.SiteDesired {
	m.Deployments = slices.Clone(m.Deployments)
	order := make([]*protocol.SiteEntry, len(m.Deployments))
	for i := range m.Deployments {
		order[i] = &m.Deployments[i]
	}
	slices.SortStableFunc(order, func(a, b *protocol.SiteEntry) int { return cmp.Compare(len(a.Spec), len(b.Spec)) })
	total := 0
	for _, e := range order {
		if total += len(e.Spec); len(e.Spec) > l.opts.InlineLimit || total > l.opts.MessageLimit {
			e.Spec = nil
		}
	}
	return m
}

// A backoff is the wait before another try: it doubles, with full jitter above half.
type backoff struct {
	least, most, now time.Duration
}

func newBackoff(least, most time.Duration) *backoff {
	return &backoff{least: least, most: most, now: least}
}

func (b *backoff) reset() { b.now = b.least }

func (b *backoff) next() <-chan time.Time {
	d := b.now/2 + rand.N(b.now/2+1) //nolint:gosec // jitter, no secret
	b.now = min(b.now*2, b.most)
	return time.After(d)
}

func (b *backoff) wait(ctx context.Context) {
	select {
	case <-b.next():
	case <-ctx.Done():
	}
}
