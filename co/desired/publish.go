package desired

import (
	"context"
	"fmt"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
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
	desired, err := l.opts.Store.Desired(ctx, site)
	if err != nil {
		return err
	}
	data, err := l.opts.Store.SiteData(ctx, site)
	if err != nil {
		return err
	}
	slices.SortFunc(desired, byName)
	l.sites[site] = &siteState{desired: desired, data: data, message: message}
	return nil
}

// publish sends a site its message, unless it was sent in this session.
func (l *Loop) publish(ctx context.Context, site protocol.SiteID) error {
	s := l.sites[site]
	if s.published {
		return nil
	}
	payload, err := l.payload(ctx, s.message)
	if err != nil {
		return fmt.Errorf("store desired state of %s: %w", site, err)
	}
	if err := l.opts.Publish(ctx, site, payload); err != nil {
		return fmt.Errorf("publish desired state of %s: %w", site, err)
	}
	s.published = true
	return nil
}

// payload returns the message of a site: the whole state, or where that is large
// its digest. The state is then stored without the specs, which have digests of
// their own: a site fetches only those that are new to it.
func (l *Loop) payload(ctx context.Context, m protocol.SiteDesired) ([]byte, error) {
	whole := protocol.Marshal(&m)
	if len(whole) <= l.opts.MessageLimit {
		return whole, nil
	}
	m.Deployments = slices.Clone(m.Deployments)
	for i := range m.Deployments {
		m.Deployments[i].Spec = nil
	}
	body := protocol.Marshal(&m)
	m.Digest, m.Size = protocol.DigestOf(body), uint64(len(body))
	if err := l.opts.Store.SaveBody(ctx, m.Site, m.Digest, body); err != nil {
		return nil, err
	}
	m.Deployments, m.Data = nil, nil
	return protocol.Marshal(&m), nil
}

// tries returns the waits between the tries of one thing.
func (l *Loop) tries() *retry.Backoff {
	return &retry.Backoff{Policy: retry.Policy{Min: l.opts.MinRetry, Max: l.opts.MaxRetry, Jitter: 0.5}}
}
