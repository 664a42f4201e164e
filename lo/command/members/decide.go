package members

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A Publication is what the broker is to retain for a node.
type Publication struct {
	ID   command.ID
	Node protocol.NodeID
	// Envelope is empty where the command is cleared.
	Envelope []byte
}

// A Reported is a result that is to be reported again.
type Reported struct {
	ID    command.ID
	Where Where
}

// An Execution is what the LO carries out itself for a node.
type Execution struct {
	ID       command.ID
	Node     protocol.NodeID
	Envelope []byte // the encoded command
}

// A Decision is what is to be done now.
type Decision struct {
	// Ask says that the time of the CO is to be asked for.
	Ask     bool
	Publish []Publication
	Execute []Execution
	// End are the results that the LO makes itself.
	End    []command.Result
	Again  []Reported
	Forget []command.ID
	// Next is when to decide again, from now on, where nothing happens before.
	Next time.Duration
}

// Decide says what is to be done. What it says to publish or to report again counts as done; results count once they are applied.
func (s *Site) Decide(now time.Duration) Decision {
	d := Decision{Next: idle}
	latest, known := s.Clock.Latest(now)
	age, _ := s.Clock.Age(now)
	for _, id := range s.ids {
		e := s.entries[id]
		waits := e.open > 0 && s.decide(&d, e, now)
		if waits || e.open > 0 {
			d.Next = min(d.Next, tick)
		}
		d.Ask = d.Ask || waits && (!known || age > fresh)
		e.resend(&d)
		e.clear(&d)
		if e.open == 0 && (known && latest > e.DeadlineMillis+forgetAfter.Milliseconds() || now-e.since > 2*forgetAfter) {
			d.Forget = append(d.Forget, id)
		}
	}
	if s.asked > 0 && now+1-s.asked < askedByNode && (!known || age > fresh) {
		d.Ask, d.Next = true, min(d.Next, tick)
	}
	switch { // the caller knows when it may ask
	case !s.Timed:
	case !known || age >= timed:
		d.Ask = true
	default:
		d.Next = min(d.Next, timed-age)
	}
	s.crowded(&d)
	if len(d.Publish)+len(d.Again)+len(d.End)+len(d.Execute) >= perTurn {
		d.Next = pace
	}
	return d
}

// crowded forgets the commands that ended first, where too many are held.
func (s *Site) crowded(d *Decision) {
	for n := len(s.entries) - len(d.Forget); n > MaxHeld; n-- {
		var first *entry
		for _, e := range s.entries {
			if e.turn > 0 && (first == nil || e.turn < first.turn) {
				first = e
			}
		}
		if first == nil {
			return
		}
		first.turn = 0 // it is forgotten by the caller, and not counted twice
		d.Forget = append(d.Forget, first.ID)
	}
}

// decide decides about a command that has not ended, and reports whether it waits for the time of the CO: to be published, or to end.
func (s *Site) decide(d *Decision, e *entry, now time.Duration) (waits bool) {
	latest, known := s.Clock.Latest(now)
	for i := range e.members {
		if len(d.Publish)+len(d.End)+len(d.Execute) >= perTurn {
			return waits
		}
		m := &e.members[i]
		switch {
		case m.ended():
		case m.state == command.Running:
			longest := command.LimitOf(e.Kind) + slack
			if known && latest > e.DeadlineMillis+longest.Milliseconds() || !known && now-e.since > life(e)+longest {
				d.End = append(d.End, e.by(m.node, command.Unknown, command.NodeAway, fmt.Sprintf("the node began it, and did not report an end within %s after the deadline", longest)))
			}
		case e.cancelled:
			d.End = append(d.End, e.by(m.node, command.Expired, command.Cancelled, "it was cancelled before the node reported that it began"))
		case !known:
			waits = true
			if now-e.since > life(e) {
				d.End = append(d.End, e.by(m.node, command.Expired, command.DeadlineUnverifiable,
					"the site could not learn the time of the CO before the deadline had passed: see that the link to the CO is up"))
			}
		case e.live(latest, known) && e.byLO:
			m.tried = true
			d.Execute = append(d.Execute, Execution{e.ID, m.node, e.Envelope})
		case e.live(latest, known):
			waits = waits || !m.published // else the node asks
			if !m.published {
				m.published = true
				d.Publish = append(d.Publish, Publication{ID: e.ID, Node: m.node, Envelope: e.Envelope})
			}
		case latest > e.DeadlineMillis+Grace.Milliseconds():
			r := e.by(m.node, command.Expired, command.NodeAway, "the node did not begin it before the deadline, and does not answer")
			switch {
			case e.byLO && m.tried:
				r.Code, r.Message = command.ExecutionFailed, "the site's local orchestrator could not write it down before the deadline: see that its disk has room"
			case !m.published:
				r.Code, r.Message = "", fmt.Sprintf("the site received it, or learnt the time of the CO, only after the deadline, %d ms at the most", latest-e.DeadlineMillis)
			}
			d.End = append(d.End, r)
		}
	}
	return waits
}

// life is how long after it was received a command certainly has passed its deadline, on a clock that may be slow.
func life(e *entry) time.Duration {
	l := time.Duration(e.DeadlineMillis-e.IssuedMillis) * time.Millisecond
	return l + l/1000 + Grace
}

// by is a result that the LO makes for a node.
func (e *entry) by(node protocol.NodeID, state command.State, code command.Code, message string) command.Result {
	return command.Result{V: protocol.Version, ID: e.ID, Node: node, State: state, Code: code, Message: message, ByLO: true}
}

// clear takes the command away from the nodes that have ended it.
func (e *entry) clear(d *Decision) {
	for i := range e.members {
		if m := &e.members[i]; m.published && m.ended() && len(d.Publish) < perTurn {
			m.published = false
			d.Publish = append(d.Publish, Publication{ID: e.ID, Node: m.node})
		}
	}
}

// resend names the next results that are to be reported again.
func (e *entry) resend(d *Decision) {
	for ; e.report > 0 && len(d.Again) < perTurn; e.report-- {
		if m := &e.members[len(e.members)-e.report]; m.state != "" {
			d.Again = append(d.Again, Reported{ID: e.ID, Where: m.where})
		}
	}
}

// Resolve returns the record of a command of a site with these nodes, by name with their labels. Nodes that are named and that the
// site does not have are in unknown; they are members all the same, and end at once.
func Resolve(c *command.Command, envelope []byte, nodes map[protocol.NodeID]map[string]string) (r Record, unknown []protocol.NodeID) {
	r = Record{ID: c.ID, Kind: c.Kind, IssuedMillis: c.IssuedMillis, DeadlineMillis: c.DeadlineMillis, Envelope: envelope}
	for _, n := range c.Nodes {
		if _, ok := nodes[n]; !ok {
			unknown = append(unknown, n)
		}
	}
	if len(c.Nodes) > 0 {
		r.Nodes = c.Nodes
	} else {
		for n, labels := range nodes {
			if c.Means(n, labels) {
				r.Nodes = append(r.Nodes, n)
			}
		}
		sortNodes(r.Nodes)
	}
	if len(r.Nodes) == len(unknown) {
		r.Nodes, r.Code, r.Message = nil, command.NoNode, noNode(c)
		return r, nil
	}
	return r, unknown
}
