package projection

import (
	"cmp"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// A Local is what was done about a node at the machine of the site's LO, and not by way of the CO.
type Local struct {
	Node protocol.NodeID
	// Did is the kind of command that would have done it, Actor the user of that machine.
	Did, Actor, Reason string
	SiteTime           *time.Time // by the site's clock; nil: it gave none
}

// restrictions records what restricts a node.
func (f *fold) restrictions(r *report, m *restriction.Report) {
	f.restrict(r.Node, m)
	f.event(r, fleet.Event{Node: r.Node, Message: restrictionMessage(m)})
	if c := m.Change; c != nil && c.Local {
		f.Locals = append(f.Locals, Local{Node: r.Node, Did: clean(c.Did), Actor: clean(c.Actor), Reason: clean(c.Reason), SiteTime: siteTime(r.UnixMillis)})
	}
}

// restrict is the same without an event; m is not changed.
func (f *fold) restrict(id protocol.NodeID, m *restriction.Report) {
	n := f.record.Nodes[id]
	n.ID, n.Report = id, restriction.Report{}
	for _, x := range m.Restrictions {
		x.Kind, x.Reason, x.Actor, x.Command = restriction.Kind(clean(string(x.Kind))), clean(x.Reason), clean(x.Actor), clean(x.Command)
		x.ForMillis = bounded(x.ForMillis)
		n.Restrictions = append(n.Restrictions, x)
	}
	for _, w := range m.Waits[:min(len(m.Waits), restriction.MaxWaits)] {
		n.Waits = append(n.Waits, restriction.Wait{Deployment: protocol.DeploymentName(clean(string(w.Deployment))), Why: clean(w.Why), UntilMillis: w.UntilMillis, Offline: w.Offline})
	}
	f.setNode(n)
}

// restrictionMessage says what changed, for people.
func restrictionMessage(m *restriction.Report) string {
	c := m.Change
	switch {
	case c == nil && len(m.Waits) == 0:
		return "nothing waits any more"
	case c == nil:
		return fmt.Sprintf("%d deployments wait: %s: %s", len(m.Waits), clean(string(m.Waits[0].Deployment)), clean(m.Waits[0].Why))
	case c.Did == restriction.Lost:
		return fmt.Sprintf("the site's LO has lost its record of the node: %d restrictions of it are left", len(m.Restrictions))
	case c.Did == restriction.Expired:
		return "it has ended by itself: " + clean(c.Reason)
	}
	message := fmt.Sprintf("%s by %s", clean(c.Did), cmp.Or(clean(c.Actor), "an unnamed person"))
	if c.Local {
		message += ", at the machine of the site's LO"
	}
	if c.Reason != "" {
		message += ": " + clean(c.Reason)
	}
	return message
}

// snapshotRestrictions takes up what restricts a node as a snapshot has it. What cannot be read counts as not known: it stays.
func (f *fold) snapshotRestrictions(n *protocol.NodeSnapshot) {
	var m restriction.Report
	if len(n.Restrictions) > 0 && restriction.Unmarshal(n.Restrictions, &m) != nil {
		return
	}
	f.restrict(n.Node, &m)
}

// heldRestrictions takes up what restricts a node as its LO says it whose record was not whole, and says which restrictions that has lost. What
// cannot be read counts as not known: it stays.
func (f *fold) heldRestrictions(r *report, m *protocol.Holdings) {
	var now restriction.Report
	before := f.record.Nodes[r.Node].Report
	if len(m.Restrictions) == 0 || restriction.Unmarshal(m.Restrictions, &now) != nil || len(before.Restrictions)+len(before.Waits)+len(now.Restrictions)+len(now.Waits) == 0 {
		return
	}
	f.restrict(r.Node, &now)
	if len(now.Restrictions) < len(before.Restrictions) {
		now.Change = &restriction.Change{Did: restriction.Lost}
		f.event(r, fleet.Event{Node: r.Node, Message: restrictionMessage(&now)})
	}
}
