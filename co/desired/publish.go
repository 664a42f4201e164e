package desired

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// loadAtOnce is how many sites are read from the record and then published, before the next
	// ones are read: the first sites do not wait until all are read.
	loadAtOnce = 250
	// publishAtOnce bounds the messages that wait for the broker's acknowledgement.
	publishAtOnce = 16
	// payloadsAtOnce bounds the sites whose messages are encoded and signed in parallel.
	payloadsAtOnce = 64
	// bodiesAtOnce bounds the encoded states that one call of SaveBodies stores, in bytes.
	bodiesAtOnce = 4 << 20
)

// load reads the sites that this process does not know yet from the record, and returns all sites.
// It publishes the recorded state of each site that got no message in this session, except in two
// cases. If the record never had a state of the site, the database may have been lost while the site
// still runs something. If the site holds a state that the record does not know, the record may have
// been restored, and would remove deployments that were made since.
func (l *Loop) load(ctx context.Context, out *outcome) ([]protocol.SiteID, error) {
	l.begin()
	connected, err := l.opts.Store.Connected(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sites: %w", err)
	}
	held, err := l.readHeld(ctx, "")
	if err != nil {
		return nil, err
	}
	known := slices.Sorted(maps.Keys(connected))
	for sites := range slices.Chunk(known, loadAtOnce) {
		if err := l.loadSites(ctx, sites); err != nil {
			return nil, fmt.Errorf("read desired states: %w", err)
		}
		for _, site := range sites {
			l.sites[site].connected = connected[site]
		}
		if err := l.compareHeld(ctx, held, sites, false); err != nil {
			return nil, err
		}
		out.add(l.publish(ctx, slices.DeleteFunc(slices.Clone(sites), func(site protocol.SiteID) bool {
			return l.sites[site].fresh() || l.sites[site].unknown != nil
		})))
	}
	return known, nil
}

// begin carries out the requests of Republish and Reread since the last call.
func (l *Loop) begin() {
	l.mu.Lock()
	republish, reread := l.republish, l.reread
	l.republish, l.reread = false, false
	l.mu.Unlock()
	if reread {
		l.former, l.sites = l.sites, map[protocol.SiteID]*siteState{}
	}
	if republish {
		for _, known := range [2]map[protocol.SiteID]*siteState{l.sites, l.former} {
			for _, s := range known {
				s.published = false
			}
		}
	}
}

// loadSites reads those sites from the record that this process does not know yet.
func (l *Loop) loadSites(ctx context.Context, sites []protocol.SiteID) error {
	var missing []protocol.SiteID
	for _, site := range sites {
		if l.sites[site] == nil {
			missing = append(missing, site)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	records, err := l.opts.Store.Recorded(ctx, missing)
	if err != nil {
		return err
	}
	for _, r := range records {
		s := &siteState{desired: r.Desired, data: r.Data, message: r.Message}
		if old := l.former[r.Site]; old != nil {
			s.heldSince, s.running, s.signed = old.heldSince, old.running, old.signed
			s.published = old.published && s.held() == old.held()
		}
		delete(l.former, r.Site)
		l.sites[r.Site] = s
	}
	return nil
}

// publish sends each of the sites its message, unless the site got it in this session. It goes on
// after a failure and returns the first one.
func (l *Loop) publish(ctx context.Context, sites []protocol.SiteID) error {
	var first error
	var due []payload
	var bodies []fleet.SiteBody
	size := 0
	flush := func() {
		first = cmp.Or(first, l.send(ctx, due, bodies))
		due, bodies, size = nil, nil, 0
	}
	unsent := slices.DeleteFunc(slices.Clone(sites), func(site protocol.SiteID) bool {
		// A site without a position never had a desired state. Its LO would take a message
		// without a position for one of a CO of a release before positions.
		s := l.sites[site]
		return s.published || s.awaited || s.message.Position.IsZero()
	})
	for some := range slices.Chunk(unsent, payloadsAtOnce) {
		payloads, err := l.payloads(some)
		first = cmp.Or(first, err)
		for _, p := range payloads {
			due = append(due, p)
			if p.body.Body != nil {
				bodies = append(bodies, p.body)
			}
			if size += len(p.body.Body); size >= bodiesAtOnce {
				flush()
			}
		}
	}
	flush()
	return first
}

// payloads encodes and signs the messages of some sites, on all processors. It leaves out the sites
// for which that fails, and returns the first failure.
func (l *Loop) payloads(sites []protocol.SiteID) (made []payload, first error) {
	all, errs := make([]payload, len(sites)), make([]error, len(sites))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, site := range sites {
		group.Go(func() error {
			all[i], errs[i] = l.payload(site)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for i, p := range all {
		if errs[i] == nil {
			made = append(made, p)
		}
		first = cmp.Or(first, errs[i])
	}
	return made, first
}

// send stores the bodies, and then publishes the messages, which name the bodies by digest. It goes
// on after a message that was not published, and returns the first failure.
func (l *Loop) send(ctx context.Context, due []payload, bodies []fleet.SiteBody) error {
	if len(bodies) > 0 {
		if err := l.opts.Store.SaveBodies(ctx, bodies); err != nil {
			return fmt.Errorf("store desired states: %w", err)
		}
	}
	errs := make([]error, len(due))
	var group errgroup.Group
	group.SetLimit(publishAtOnce)
	for i, p := range due {
		group.Go(func() error {
			errs[i] = l.opts.publish(ctx, p.site, p.message)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	var first error
	for i, p := range due {
		if errs[i] == nil {
			l.sites[p.site].published = true
		} else if first == nil {
			first = fmt.Errorf("publish desired state of %s: %w", p.site, errs[i])
		}
	}
	return first
}

// A payload is the message of a site, and the state that it names by digest. The body is empty where
// the message holds the whole state.
type payload struct {
	site    protocol.SiteID
	message []byte
	body    fleet.SiteBody
}

// payload returns the message of a site. It holds the whole state, or the digest of the state where
// that is larger than MessageLimit. In the second case the state is stored without the
// specifications: they have digests of their own, and the site fetches only those that it lacks. The
// signatures cover the whole state, so they are part of the stored state.
func (l *Loop) payload(site protocol.SiteID) (payload, error) {
	s := l.sites[site]
	m := s.message
	m.Running, m.Content = s.running, s.held().Digest
	if l.opts.Sign != nil {
		if err := l.opts.Sign(&m, &s.signed); err != nil {
			return payload{}, fmt.Errorf("sign desired state of %s: %w", site, err)
		}
	}
	whole := protocol.Marshal(&m)
	if len(whole) <= l.opts.MessageLimit {
		return payload{site: site, message: whole}, nil
	}
	m.Deployments = slices.Clone(m.Deployments)
	for i := range m.Deployments {
		m.Deployments[i].Spec = nil
	}
	body := protocol.Marshal(&m)
	m.Digest, m.Size = protocol.DigestOf(body), uint64(len(body))
	m.Deployments, m.Removals, m.Purges, m.Decommissions, m.Running, m.Data = nil, nil, nil, nil, nil, nil
	m.Head, m.KeySet = nil, nil
	return payload{site, protocol.Marshal(&m), fleet.SiteBody{Site: site, Digest: m.Digest, Body: body}}, nil
}

// tries returns a new back-off for one operation that is repeated until it succeeds.
func (l *Loop) tries() *retry.Backoff {
	return &retry.Backoff{Policy: l.opts.Retry}
}
