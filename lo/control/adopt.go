package control

import (
	"cmp"
	"context"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// An Adopter applies the desired states that arrive from the CO. Offer is for one
// goroutine.
type Adopter struct {
	site    *Site
	adopted func(protocol.SiteDesired)
	refused protocol.Digest // of the payload that was reported as refused last
}

// NewAdopter returns an Adopter that calls adopted with each desired state that came
// into force, before the Loop reconciles.
func NewAdopter(s *Site, adopted func(protocol.SiteDesired)) *Adopter {
	return &Adopter{site: s, adopted: adopted}
}

// Offer applies an encoded SiteDesired, or reports to the CO that it is refused. It
// returns only errors that may pass.
func (a *Adopter) Offer(ctx context.Context, payload []byte) error {
	desired := a.site.opts.Desired
	adopted, err := desired.Offer(ctx, payload)
	switch {
	case err == nil:
		if m, ok := desired.Current(); adopted && ok {
			a.adopted(m)
			a.site.reconcileAll()
		}
		return nil
	case protocol.KindOf(err) != protocol.Invalid && protocol.KindOf(err) != protocol.Conflict:
		return err
	}
	a.site.log.ErrorContext(ctx, "desired state refused; the one before stays in force", "err", err)
	a.site.metrics.Refused.WithLabelValues(cmp.Or(string(sign.ReasonOf(err)), string(protocol.KindOf(err)))).Inc()
	digest := protocol.DigestOf(payload)
	if a.refused == digest {
		return nil // reported already
	}
	refused := protocol.Adopted{V: protocol.Version, Reason: err.Error()}
	var m protocol.SiteDesired
	if protocol.Unmarshal(payload, &m) == nil {
		refused.Position, refused.Commit = m.Position, m.Commit
	}
	if held, ok := desired.Current(); ok {
		refused.Held, refused.Overtaken = held.Held(), protocol.KindOf(err) == protocol.Conflict && !refused.Position.IsZero() && !refused.Position.After(held.Position)
	}
	f := siteFact(protocol.DesiredRefused, "refused", &refused, a.site.opts.Now())
	if _, err := a.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	a.refused = digest
	return nil
}

// reportAdopted reports the desired state in force, once.
func (l *Loop) reportAdopted(ctx context.Context, m protocol.SiteDesired, now time.Time) error {
	l.site.adopted.Store(&m.Position) // before the event: a snapshot behind that says no less
	if l.state.Adopted == m.Position {
		return nil
	}
	f := siteFact(protocol.DesiredAdopted, "adopted", &protocol.Adopted{V: protocol.Version, Position: m.Position, Commit: m.Commit, Held: m.Held()}, now)
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.state.Adopted = m.Position
	l.site.log.InfoContext(ctx, "desired state adopted", "position", m.Position.String(), "commit", m.Commit, "deployments", len(m.Deployments))
	l.removeSpecs(ctx)
	return l.site.store.SaveSite(l.state)
}

// removeSpecs removes the specs that neither the desired state nor a record needs.
func (l *Loop) removeSpecs(ctx context.Context) {
	var keep []protocol.Digest
	for _, n := range l.site.sorted() {
		keep = append(keep, n.record().Digests()...)
	}
	if err := l.site.opts.Desired.Keep(keep); err != nil {
		l.site.log.WarnContext(ctx, "old specs could not be removed", "err", err)
	}
}
