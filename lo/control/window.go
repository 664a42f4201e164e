package control

import (
	"context"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/control/view"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/window"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// problemTimeout bounds how long the loop waits until the CO has a changed problem; its next connection begins with it.
const problemTimeout = 2 * time.Second

// windows finds out whether the site is outside of its maintenance windows, and returns when that is to be asked again; zero: never. Each node is due
// where it has changed.
func (l *Loop) windows(ctx context.Context, m *protocol.Maintenance, now time.Time) (next time.Time) {
	clock := l.site.opts.Clock()
	closed, opens, next := window.Closed(m, window.Clock{Now: now, Unsynced: l.site.opts.Unsynced(), COMillis: clock.EstimateMillis, COAge: clock.EstimateAge})
	if closed == l.closed {
		return next
	}
	if l.closed, l.opens = closed, opens; closed == "" {
		l.site.log.InfoContext(ctx, "changes wait for no maintenance window", "until", next)
	} else {
		l.site.log.InfoContext(ctx, "updates and removals wait", "why", closed)
	}
	l.site.mu.Lock()
	l.site.limits.closed = closed
	l.site.mu.Unlock()
	l.site.reconcileAll()
	if timeless := closed == window.Unknown; timeless != l.timeless {
		l.timeless = timeless
		brief, cancel := context.WithTimeout(ctx, problemTimeout)
		l.site.opts.ProblemChanged(brief)
		cancel()
	}
	return next
}

// stays returns which of the deployments that a node is to get another one has up, and keeps until a window begins, though a person has placed it elsewhere
// by now. A node that is drained, or offline for longer than its workload is waited for, keeps nothing back: nextAt is when that is to be asked once more.
func (l *Loop) stays(id protocol.NodeID, w *view.Work, now time.Time) (out map[protocol.DeploymentName]bool, nextAt time.Time) {
	if l.closed == "" {
		return nil, nextAt
	}
	out = map[protocol.DeploymentName]bool{}
	rec, all := l.site.known(id).record(), l.site.sorted()
	for name := range l.placement.On(id) {
		if rec.Runs(name) {
			continue
		}
		entry := w.Entries[name]
		placed := nodes.PlacementDigest(&entry.Placement)
		for _, other := range all {
			r := other.record()
			d := r.Deployments[name]
			if other.id == id || !r.Runs(name) || d.Active() == "" || d.Placement == "" || d.Placement == placed || r.Restricted(restriction.Drain) != nil {
				continue
			}
			if _, here := slices.BinarySearch(l.placement[name].Nodes, other.id); here {
				continue
			}
			lost := time.UnixMilli(r.ChangedMillis).Add(l.site.opts.NodeLostAfter)
			if !r.Online() && !now.Before(lost) {
				continue
			}
			if out[name] = true; !r.Online() {
				nextAt = earliest(nextAt, lost)
			}
		}
	}
	return out, nextAt
}

// Timeless says, for people, that the site has maintenance windows and no time to keep to them by; "": it has.
func (s *Site) Timeless() string {
	if s.Closed() != window.Unknown {
		return ""
	}
	return "nothing that works is updated: " + window.Unknown + "; see that the machine has a time server, or the link to the CO"
}

// Look has the site looked at anew, as when the time is known.
func (s *Site) Look() { s.due.Notify() }

// Closed says why updates and removals wait at the site; "": they do not.
func (s *Site) Closed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits.closed
}
