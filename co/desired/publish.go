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
	// loadAtOnce is how many sites are read from the record and published together: the
	// first ones have their states while the last ones are read.
	loadAtOnce = 250
	// publishAtOnce bounds the messages that wait for the broker's acknowledgement.
	publishAtOnce = 16
	// payloadsAtOnce bounds the sites whose messages are made together.
	payloadsAtOnce = 64
	// bodiesAtOnce bounds the encoded states that are stored together, in bytes.
	bodiesAtOnce = 4 << 20
)

// load reads from the record the sites that are not known yet, publishes what is recorded of
// those that were not sent it in this session, and returns all. A site of which nothing was
// ever recorded is sent nothing yet: after the loss of the database it may still run something.
// Nor is one that holds what the record does not know: a restored record may remove what was
// deployed again since.
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

// begin does what Republish and Reread have asked for.
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

// loadSites reads those of the sites that are not known yet.
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

// publish sends each of the sites its message, unless it was sent in this session. The error
// is of the first one that it did not reach.
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
		// Of a site without a position nothing was ever desired: there is nothing to say, and
		// its LO would take it for the message of a CO that knows no positions.
		s := l.sites[site]
		return s.published || s.message.Position.IsZero()
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

// payloads makes the messages of some sites, on all processors. The error is of the first one of
// which it made none.
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

// send stores the bodies, and then publishes the messages that name them.
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

// A payload is the message of a site. body is what it names by digest, if it does.
type payload struct {
	site    protocol.SiteID
	message []byte
	body    fleet.SiteBody
}

// payload makes the message of a site: the whole state, or where that is large
// its digest. The state is then stored without the specs, which have digests of
// their own: a site fetches only those that are new to it. Signatures are over the whole
// state, and so stand in it.
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

// tries returns the waits between the tries of one thing.
func (l *Loop) tries() *retry.Backoff {
	return &retry.Backoff{Policy: l.opts.Retry}
}
