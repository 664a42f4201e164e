package agent

import (
	"context"

	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// A wholeState is what a Runner knows of the reports of everything. The Runner's mutex
// protects it.
type wholeState struct {
	wholeDue bool              // the LO is to get everything
	ignored  protocol.Position // of the last desired state that was not adopted
}

// wholeReport returns everything that the node holds, if the LO is to have it: it is due
// with each connection, once the reports of before are acknowledged.
func (r *Runner) wholeReport() (m *protocol.NodeReport, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.up || !r.wholeDue {
		return nil, nil
	}
	seq, err := r.nextSeq()
	if err != nil {
		return nil, err
	}
	m = &protocol.NodeReport{
		V: protocol.Version, Node: r.o.Node, Agent: r.o.Agent, Boot: r.o.Boot, Seq: seq, Ignored: r.ignored, UnixMillis: r.o.Now().UnixMilli(),
	}
	if r.desired != nil {
		m.Held = r.desired.Held()
	}
	// Below what was followed of a deployment that is gone, what the CO says of it is refused.
	if last := r.o.Check.Followed(); last.After(m.Held.Site) {
		m.Held.Site = last
	}
	unsynced := r.o.Unsynced()
	for _, rec := range r.list() {
		s := rec.Report(rec.State)
		s.Node, s.UnixMillis, s.Unsynced = r.o.Node, m.UnixMillis, unsynced
		s.Unassigned = plan.Unassigned(r.desired, rec.Deployment)
		m.Statuses = append(m.Statuses, s)
	}
	r.wholeDue = false
	return m, nil
}

// sendWhole sends the whole report if it is due; sent is false where it was not. On an
// error it is due again.
func (r *Runner) sendWhole(ctx context.Context) (sent bool, err error) {
	m, err := r.wholeReport()
	if m == nil || err != nil {
		return false, err
	}
	if err = r.o.Uplink.ReportAll(ctx, *m); err == nil {
		return true, nil
	}
	if protocol.KindOf(err) == protocol.Invalid {
		// The same report would be refused again. The next connection has another one.
		r.log.ErrorContext(ctx, "report of everything refused by the lo", "err", err)
		return true, nil
	}
	r.mu.Lock()
	r.wholeDue = true
	r.mu.Unlock()
	return false, err
}
