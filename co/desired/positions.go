package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// A PositionStore is the record of what sites hold, and of what they are to remove.
type PositionStore interface {
	// Held returns what sites hold that may be unknown to the record; an empty site means all.
	Held(ctx context.Context, site protocol.SiteID) ([]fleet.SiteHeld, error)
	// Raise goes on above a desired state that a site holds and the record does not know. It
	// returns the message of the site. A Conflict is one that a person has to accept. Unless
	// the record was compared with the repo, the site is unfollowed until the next SaveAll.
	Raise(ctx context.Context, site protocol.SiteID, held protocol.Held, how fleet.Raise) (protocol.SiteDesired, error)
	// RemoveVolumes says whose volumes go with the deployments that the next SaveAll of the
	// site removes; those of the others stay.
	RemoveVolumes(ctx context.Context, site protocol.SiteID, of []protocol.DeploymentName) error
	// Requested returns the sites of which something was asked for by name that the next
	// SaveAll takes up, and whether that is, among others, the removal of the site.
	Requested(ctx context.Context) (map[protocol.SiteID]bool, error)
	// RemoveSite forgets a site whose removal was asked for and of which the repo has
	// nothing, and reports whether it did.
	RemoveSite(ctx context.Context, site protocol.SiteID) (removed bool, err error)
	// Running returns what the nodes of a site ran when it reported last.
	Running(ctx context.Context, site protocol.SiteID) ([]protocol.NodeRunning, error)
}

// Reported asks the loop to compare what a site reported to hold with what is recorded. It
// never blocks.
func (l *Loop) Reported(site protocol.SiteID) {
	l.mu.Lock()
	l.reported[site] = true
	l.mu.Unlock()
	l.asked.Notify()
}

// Committed asks the loop to look at a site where events of it, which are committed, say that it
// did not adopt a desired state: they say what it holds instead. It never blocks.
func (l *Loop) Committed(site protocol.SiteID, events []protocol.Event) {
	awaits := l.awaits.Load() // they may say that a site went on since the backup from which its record is
	if slices.ContainsFunc(events, func(e protocol.Event) bool {
		return e.Kind == protocol.DesiredRefused || awaits && e.Kind == protocol.DesiredAdopted
	}) {
		l.Reported(site)
	}
}

// compareReported looks at the sites that have reported since the last time. Those that are
// not known here yet are looked at by the next reconcile.
func (l *Loop) compareReported(ctx context.Context) outcome {
	l.mu.Lock()
	sites := slices.Sorted(maps.Keys(l.reported))
	clear(l.reported)
	l.mu.Unlock()
	var out outcome
	for _, site := range sites {
		if s := l.sites[site]; s == nil || s.fresh() {
			l.Notify()
			continue
		}
		held, err := l.readHeld(ctx, site)
		if err == nil {
			err = l.compareHeld(ctx, held, []protocol.SiteID{site}, false)
		}
		switch {
		case err != nil:
		case l.sites[site].unknown != nil:
			l.Notify() // the repo is read first
		default:
			err = l.publish(ctx, []protocol.SiteID{site})
		}
		out.add(err)
	}
	return out
}

// fresh reports whether nothing was ever recorded as desired of a site. What it holds is
// overcome only together with what the repo says: its first message is to be whole.
func (s *siteState) fresh() bool { return s.message.Position.Generation == 0 }

// readHeld returns what sites, or one of them, report to hold.
func (l *Loop) readHeld(ctx context.Context, site protocol.SiteID) (map[protocol.SiteID]fleet.SiteHeld, error) {
	list, err := l.opts.Positions.Held(ctx, site)
	if err != nil {
		return nil, fmt.Errorf("read what sites hold: %w", err)
	}
	held := make(map[protocol.SiteID]fleet.SiteHeld, len(list))
	for _, v := range list {
		held[v.Site] = v
	}
	return held, nil
}

// compareFresh is compareHeld for the sites of which nothing was ever recorded, once the repo
// is read.
func (l *Loop) compareFresh(ctx context.Context, known []protocol.SiteID) error {
	known = slices.DeleteFunc(slices.Clone(known), func(site protocol.SiteID) bool { return !l.sites[site].fresh() })
	if len(known) == 0 {
		return nil
	}
	held, err := l.readHeld(ctx, "")
	if err != nil {
		return err
	}
	return l.compareHeld(ctx, held, known, true)
}

// compareHeld goes on above what a site holds and the record
// does not know, and gives an LO that has lost what it held what ran there. It leaves out
// the sites that are fresh, or those that are not.
func (l *Loop) compareHeld(ctx context.Context, held map[protocol.SiteID]fleet.SiteHeld, sites []protocol.SiteID, fresh bool) error {
	for _, site := range sites {
		s := l.sites[site]
		if s.fresh() != fresh {
			continue
		}
		s.unknown = nil // it may have reported anew since
		v, reported := held[site]
		awaited := s.awaited
		if s.awaited = v.Awaited; s.awaited {
			l.awaits.Store(true)
			continue
		}
		if awaited {
			l.Notify() // what is held until it has reported
		}
		var err error
		if v.Lost {
			err = l.recall(ctx, site)
		} else {
			s.running = nil
		}
		if err == nil && reported && (!v.Lost || v.Unfollowed || v.Beyond) {
			err = l.meet(ctx, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recall has the next message of a site list what its nodes ran, as far as that is known.
func (l *Loop) recall(ctx context.Context, site protocol.SiteID) error {
	s := l.sites[site]
	if s.running != nil {
		return nil
	}
	running, err := l.opts.Positions.Running(ctx, site)
	if err != nil {
		return fmt.Errorf("read what site %s ran: %w", site, err)
	}
	s.running, s.published = append([]protocol.NodeRunning{}, running...), false
	return nil
}

// meet goes on above what a site holds, where that is not known here. A record that has not
// followed the repo in this session may be that of a backup: it waits for follow.
func (l *Loop) meet(ctx context.Context, v fleet.SiteHeld) error {
	s := l.sites[v.Site]
	if v.Unfollowed && s.followed == "" {
		s.unknown = &v.Held // also where the record is above it by now
		return nil
	}
	// Without a digest it is what nodes follow from, as an LO says that has lost it.
	if !v.Beyond && (!v.Held.Unknown(s.held()) || v.Held.Digest == "" && v.Held.Position == s.message.Position) {
		return nil
	}
	if !s.fresh() && s.followed == "" {
		s.unknown = &v.Held
		return nil
	}
	return l.raise(ctx, v.Site, v.Held)
}

// raise goes on above what a site holds and the record does not know.
func (l *Loop) raise(ctx context.Context, site protocol.SiteID, held protocol.Held) error {
	s := l.sites[site]
	message, err := l.opts.Positions.Raise(ctx, site, held, fleet.Raise{Followed: s.followed != "", Commit: s.followed})
	if protocol.KindOf(err) == protocol.Conflict {
		return l.notice(ctx, fleet.Event{Kind: fleet.DesiredPositionRefused, Site: site, Message: fmt.Sprintf(
			"site %s gets no changes: %v. If the site is right, colony site accept-position %s goes on above it", site, err, site)})
	}
	if err != nil {
		return fmt.Errorf("go on above what site %s holds: %w", site, err)
	}
	l.log.WarnContext(ctx, "site holds a desired state that is not recorded", "site_id", site, "held", held.Position, "now", message.Position)
	s.setMessage(message)
	s.published = false
	return nil
}

// setMessage sets what is recorded last.
func (s *siteState) setMessage(m protocol.SiteDesired) { s.message, s.digest = m, "" }

// held is what a site holds that has adopted what is recorded.
func (s *siteState) held() protocol.Held {
	if s.digest == "" {
		s.digest = s.message.ContentDigest()
	}
	return protocol.Held{Position: s.message.Position, Digest: s.digest}
}
