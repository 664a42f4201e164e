package control

import (
	"context"
	"fmt"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// ahead is what is known of nodes that follow a later desired state of the site than the
// one in force. Its methods are for one goroutine at a time.
type ahead struct {
	node    protocol.NodeID
	follows protocol.Position // the latest that any node followed in this run
	// reportedFollows and reportedInForce are what was reported last.
	reportedFollows, reportedInForce protocol.Position
}

// note notes from which desired state of the site a node follows.
func (a *ahead) note(id protocol.NodeID, follows protocol.Position) {
	if follows.After(a.follows) {
		a.node, a.follows = id, follows
	}
}

// reportAhead reports that a node follows a later desired state of the site than the one
// in force, once for each pair of them. Where the CO was restored and this LO has lost what
// it held, the nodes alone know how far the site was: the CO goes on above that.
//
// The CO keeps what the last event says that the site holds: this one comes after the
// others of a Reconcile.
func (l *Loop) reportAhead(ctx context.Context, m protocol.SiteDesired, now time.Time) error {
	a := &l.ahead
	if l.state.Adopted != m.Position || !a.follows.After(m.Position) || a.reportedFollows == a.follows && a.reportedInForce == m.Position {
		return nil
	}
	f := siteFact(protocol.DesiredRefused, "ahead", &protocol.Adopted{
		V: protocol.Version, Position: m.Position, Commit: m.Commit, Held: protocol.Held{Position: a.follows},
		Reason: fmt.Sprintf("node %s follows desired state %s, which its LO does not have: it gets no changes until the CO goes on above that", a.node, a.follows),
	}, now)
	if _, err := l.site.append(ctx, []nodes.Fact{f}); err != nil {
		return err
	}
	l.site.log.WarnContext(ctx, "node follows a desired state that this lo does not have; it is left as it is until the co goes on above that",
		"node_id", a.node, "follows", a.follows.String(), "in_force", m.Position.String())
	a.reportedFollows, a.reportedInForce = a.follows, m.Position
	return nil
}
