package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/stream"
)

// A journal holds the events of a site. Nothing is trimmed: a day is short.
type journal struct {
	epoch  string
	events []protocol.Event
}

func (j *journal) last() uint64 { return uint64(len(j.events)) }

func (j *journal) append(e protocol.Event) { j.events = append(j.events, e) }

// after returns the events after a sequence.
func (j *journal) after(seq uint64) []protocol.Event { return j.events[min(seq, j.last()):] }

const (
	batchEvents = 64
	resendAfter = 5 * time.Second
)

// An uplink sends a site's journal to the CO, one batch at a time.
type uplink struct {
	s    *site
	link *link

	connected bool
	known     bool   // the CO said where it stands
	acked     uint64 // by the CO
	waiting   bool   // for an acknowledgement
	resend    *event
}

func (u *uplink) running() bool { return u.s.alive }

// up asks the CO where it stands.
func (u *uplink) up(string) {
	u.connected, u.known, u.waiting = true, false, false
	u.send()
}

func (u *uplink) down(string) {
	u.connected, u.waiting = false, false
	u.resend.stop()
}

// send sends what is due, unless an acknowledgement is awaited.
func (u *uplink) send() {
	if !u.connected || u.waiting || u.known && u.acked == u.s.journal.last() {
		return
	}
	b := protocol.Batch{V: protocol.Version, Epoch: u.s.journal.epoch}
	var events []protocol.Event
	if u.known {
		events = u.s.journal.after(u.acked)
		events = slices.Clone(events[:min(len(events), batchEvents)])
		b.First, b.Count = u.acked+1, uint32(len(events))
	}
	u.waiting = true
	u.link.send(upward, func() { u.s.w.co.receive(u, b, events) })
	u.resend = u.s.w.after(resendAfter, func() {
		u.waiting = false
		u.send()
	})
}

// ack applies the CO's answer.
func (u *uplink) ack(a protocol.Ack) {
	if a.Epoch != u.s.journal.epoch && a.Epoch != "" {
		panic(fmt.Sprintf("the CO follows epoch %q of %s, not %q", a.Epoch, u.s.id, u.s.journal.epoch)) // there is only one
	}
	u.resend.stop()
	u.known, u.waiting, u.acked = true, false, a.Seq
	u.send()
}

// A key names a deployment on a node.
type key struct {
	site       protocol.SiteID
	node       protocol.NodeID
	deployment protocol.DeploymentName
}

// A co is the CO: what people want of each site, and what was reported to it.
type co struct {
	w         *world
	positions map[protocol.SiteID]*stream.Position
	desired   map[protocol.SiteID]*protocol.SiteDesired
	removals  map[removal]bool                     // all that people asked for
	received  map[protocol.SiteID][]protocol.Event // each once, in order
	status    map[key]protocol.DeploymentStatus    // the last of each
}

func newCO(w *world) *co {
	return &co{
		w: w, positions: map[protocol.SiteID]*stream.Position{}, desired: map[protocol.SiteID]*protocol.SiteDesired{}, removals: map[removal]bool{},
		received: map[protocol.SiteID][]protocol.Event{}, status: map[key]protocol.DeploymentStatus{},
	}
}

// receive follows a batch and answers with the position.
func (c *co) receive(from *uplink, b protocol.Batch, events []protocol.Event) {
	id := from.s.id
	pos := c.positions[id]
	a := pos.Follow(b, len(events))
	for _, e := range stream.Number(events, a.Fresh, pos.Seq) {
		c.received[id] = append(c.received[id], e)
		var m protocol.DeploymentStatus
		if e.Kind == protocol.StatusEvent && protocol.Unmarshal(e.Body, &m) == nil {
			c.status[key{id, m.Node, m.Deployment}] = m
		}
	}
	c.w.logf("co", "batch %d+%d of %s: %d fresh, %d left out, at %d", b.First, b.Count, id, a.Fresh, a.LeftOut, pos.Seq)
	ack := pos.Ack(b)
	from.link.send(downward, func() { from.ack(ack) })
}

// A removal is a tombstone of a site.
type removal struct {
	site     protocol.SiteID
	of       protocol.DeploymentName
	position protocol.Position
	volumes  bool
}

// asked reports whether people asked for the removal that a node is to carry out.
func (c *co) asked(site protocol.SiteID, r protocol.NodeRemoval) bool {
	return c.removals[removal{site, r.Deployment, r.Site, r.Volumes}]
}

// publish sends a site what is desired of it.
func (c *co) publish(s *site) {
	d := c.desired[s.id]
	d.Position = d.Position.Next()
	for i := range d.Deployments {
		if d.Deployments[i].Position.IsZero() {
			d.Deployments[i].Position = d.Position
		}
	}
	d.Removals = slices.DeleteFunc(slices.Clone(d.Removals), func(r protocol.Removal) bool {
		return slices.ContainsFunc(d.Deployments, func(e protocol.SiteEntry) bool { return e.Deployment == r.Deployment })
	})
	for i := range d.Removals {
		if d.Removals[i].Position.IsZero() {
			d.Removals[i].Position = d.Position
		}
		c.removals[removal{s.id, d.Removals[i].Deployment, d.Removals[i].Position, d.Removals[i].Volumes}] = true
	}
	slices.SortFunc(d.Removals, func(a, b protocol.Removal) int { return cmp.Compare(a.Deployment, b.Deployment) })
	c.w.logf("co", "desired state %s for %s", d.Position, s.id)
	c.deliver(s)
}

// deliver sends the retained desired state of a site.
func (c *co) deliver(s *site) {
	payload := protocol.Marshal(c.desired[s.id])
	s.uplink.link.send(downward, func() { s.adopt(payload) })
}

// A gate is the CO's end of the link to a site.
type gate struct {
	c *co
	s *site
}

func (g gate) running() bool { return true }
func (g gate) up(string)     { g.c.deliver(g.s) }
func (g gate) down(string)   {}
