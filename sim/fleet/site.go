package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

const (
	nodeLostAfter = time.Minute
	presenceGrace = 45 * time.Second
	maxRejected   = 64
)

// A site is an LO: what lo does about the decisions of placement and lo/reconciler,
// in steps.
type site struct {
	w      *world
	id     protocol.SiteID
	clock  *clock
	nodes  []*node // sorted by id
	jitter *rand.Rand

	// On disk.
	journal  journal
	stored   map[protocol.NodeID][]byte // records, as JSON
	desired  *protocol.SiteDesired
	specs    map[protocol.Digest]reconciler.Spec
	reported map[protocol.DeploymentName]protocol.Digest
	setBack  bool // the records are not those that the journal goes on from

	copied diskCopy

	// Of the LO's process.
	alive    bool
	records  map[protocol.NodeID]*nodes.Record
	seen     map[protocol.NodeID]bool
	heard    heard
	retained map[protocol.NodeID][]byte // the broker's NodeDesired; nil: to be published
	pending  *event                     // the next reconcile
	uplink   *uplink
}

// A diskCopy is an earlier state of an LO's disk.
type diskCopy struct {
	stored  map[protocol.NodeID][]byte
	desired *protocol.SiteDesired
}

// heard is what nodes reported to this process of the LO.
type heard struct {
	whole   map[protocol.NodeID]bool // which have reported everything
	follows map[protocol.NodeID]protocol.Position
	settles time.Duration // when the LO no longer waits for the others, in virtual time
	lost    bool          // a node showed that records were lost
}

func newSite(w *world, id protocol.SiteID) *site {
	s := &site{
		w: w, id: id, clock: &clock{w: w}, jitter: w.draws("jitter/" + string(id)),
		journal: journal{epoch: string(id) + "-journal"}, stored: map[protocol.NodeID][]byte{},
		specs: map[protocol.Digest]reconciler.Spec{}, reported: map[protocol.DeploymentName]protocol.Digest{},
	}
	s.uplink = &uplink{s: s}
	return s
}

// start starts the LO's process: the stored records, and what the journal has beyond them.
func (s *site) start() {
	s.w.logf(string(s.id), "lo starts, journal at %d", s.journal.last())
	s.alive = true
	s.records, s.seen, s.retained = map[protocol.NodeID]*nodes.Record{}, map[protocol.NodeID]bool{}, map[protocol.NodeID][]byte{}
	s.heard = heard{whole: map[protocol.NodeID]bool{}, follows: map[protocol.NodeID]protocol.Position{}, settles: s.w.now + presenceGrace}
	for _, n := range s.nodes {
		rec := nodes.New(n.id)
		if stored := s.stored[n.id]; stored != nil {
			if err := json.Unmarshal(stored, rec); err != nil {
				panic(fmt.Sprintf("read the stored record of %s: %v", n.name, err)) // a fault of lo/nodes
			}
		}
		for _, e := range s.journal.after(rec.JournalSeq) {
			if e.Node == n.id && !s.setBack {
				rec.Replay(e)
			}
		}
		rec.JournalSeq = s.journal.last()
		s.records[n.id] = rec
	}
	s.setBack = false
	s.w.after(presenceGrace, func() {
		if s.alive {
			s.expire()
		}
	})
	s.wake(0)
}

// loseRecord removes what the LO knows of a node.
func (s *site) loseRecord(id protocol.NodeID) {
	s.w.logf(string(s.id), "record of %s lost", id)
	delete(s.stored, id)
	s.setBack = true
}

// copyDisk keeps the LO's state as it is now, for restoreDisk. Its journal goes on: what
// the CO received is not part of it.
func (s *site) copyDisk() {
	s.copied = diskCopy{maps.Clone(s.stored), s.desired}
}

// restoreDisk sets the LO's state back to the last copy; without one, it has none.
func (s *site) restoreDisk() {
	s.w.logf(string(s.id), "disk set back to %d records", len(s.copied.stored))
	s.stored = maps.Clone(s.copied.stored)
	if s.stored == nil {
		s.stored = map[protocol.NodeID][]byte{}
	}
	s.desired, s.reported = s.copied.desired, map[protocol.DeploymentName]protocol.Digest{}
	s.setBack = true
}

// kill ends the LO's process, and with it all connections of its broker.
func (s *site) kill() {
	if !s.alive {
		return
	}
	s.w.logf(string(s.id), "lo killed")
	s.alive = false
	s.pending.stop()
	for _, n := range s.nodes {
		n.link.drop()
	}
	s.uplink.link.drop()
}

// expire takes the nodes for offline that did not come back after a start.
func (s *site) expire() {
	for _, n := range s.nodes {
		if !s.seen[n.id] {
			rec := s.records[n.id].Clone()
			out := rec.Lost(s.clock.wall())
			s.commit(rec, out.Facts, out.Changed)
		}
	}
	s.wake(0)
}

// commit journals facts, and stores the record where that is due.
func (s *site) commit(rec *nodes.Record, facts []nodes.Fact, store bool) {
	for _, f := range facts {
		s.journal.append(f.Event)
	}
	if store {
		rec.JournalEpoch, rec.JournalSeq = s.journal.epoch, s.journal.last()
		b, err := json.Marshal(rec)
		if err != nil {
			panic(fmt.Sprintf("store the record of node %s: %v", rec.Node, err)) // a fault of lo/nodes
		}
		s.stored[rec.Node] = b
	}
	s.records[rec.Node] = rec
	if len(facts) > 0 {
		s.uplink.send()
	}
}

func (s *site) acceptPresence(id protocol.NodeID, p protocol.Presence) {
	rec := s.records[id].Clone()
	out := rec.ApplyPresence(p, s.clock.wall())
	s.seen[id] = s.seen[id] || p.Online
	s.commit(rec, out.Facts, out.Changed)
	s.w.logf(string(s.id), "%s online %t %s, %d facts", id, p.Online, p.Session, len(out.Facts))
	s.wake(0)
}

func (s *site) acceptInventory(inv protocol.Inventory) {
	rec := s.records[inv.Node].Clone()
	out := rec.ApplyInventory(inv, s.clock.wall())
	s.commit(rec, out.Facts, out.Changed)
	s.wake(0)
}

func (s *site) acceptNodeReport(m protocol.NodeReport) {
	rec := s.records[m.Node].Clone()
	last := rec.Held()
	out := rec.ApplyNodeReport(m, s.clock.wall())
	s.commit(rec, out.Facts, out.Changed)
	s.heard.whole[m.Node], s.heard.follows[m.Node] = rec.Complete, m.Held.Site
	for _, st := range m.Statuses {
		if st.Site.After(s.heard.follows[m.Node]) {
			s.heard.follows[m.Node] = st.Site
		}
	}
	if out.Raised && !s.heard.lost {
		s.heard.lost, s.heard.settles = true, s.w.now+presenceGrace
	}
	if m.Held.Position != last.Position {
		s.retained[m.Node] = nil
	}
	s.w.logf(string(s.id), "%s holds %s and %d deployments, raised %t %s", m.Node, m.Held.Position, len(m.Statuses), out.Raised, rec.Ahead)
	s.wake(0)
}

func (s *site) acceptReport(m protocol.DeploymentStatus) {
	rec := s.records[m.Node].Clone()
	out := rec.ApplyReport(m, s.clock.wall())
	s.commit(rec, out.Facts, out.Changed && !out.Reported)
	s.w.logf(string(s.id), "%s %s seq %d %s: %s now, duplicate %t, stale %t, anomaly %t", m.Node, m.Deployment, m.Seq, m.State,
		rec.State(m.Deployment), out.Duplicate, out.Stale, out.Anomaly)
	if out.Changed {
		s.wake(0)
	}
}

// adopt puts a desired state of the CO into force.
func (s *site) adopt(payload []byte) {
	var d protocol.SiteDesired
	if err := protocol.Unmarshal(payload, &d); err != nil || !s.alive || s.desired != nil && !d.Position.After(s.desired.Position) {
		return
	}
	s.w.logf(string(s.id), "desired state %s, %d deployments", d.Position, len(d.Deployments))
	s.desired = &d
	for _, e := range d.Deployments {
		s.specs[e.Digest] = reconciler.Spec{Bytes: e.Spec, App: string(e.Deployment), AppVersion: e.Digest.Short()}
	}
	s.wake(0)
}

// wake reconciles in a while, unless it does so before.
func (s *site) wake(d time.Duration) {
	if s.pending != nil && s.pending.do != nil && s.pending.at <= s.w.now+d {
		return
	}
	s.pending.stop()
	s.pending = s.w.after(d, s.reconcile)
}

// reconcile decides about the whole site.
func (s *site) reconcile() {
	if s.desired == nil {
		return
	}
	placed := s.placeWork()
	var next time.Time
	for _, n := range s.nodes {
		if at := s.reconcileNode(n, placed); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if !next.IsZero() {
		s.wake(max(time.Millisecond, s.clock.until(next)))
	}
}

// view returns the nodes as placement sees them.
func (s *site) view() []placement.Node {
	view := make([]placement.Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		rec := s.records[n.id]
		v := placement.Node{ID: n.id, Online: rec.Online(), Inventory: rec.Inventory, Unreported: !s.heard.whole[n.id]}
		for _, name := range rec.Names() {
			if rec.Runs(name) {
				v.Runs = append(v.Runs, name)
			}
		}
		view = append(view, v)
	}
	return view
}

// unsettled reports whether nodes may run what the LO does not know, and it waits for
// them.
func (s *site) unsettled() bool {
	return s.w.now < s.heard.settles && (s.heard.lost || slices.ContainsFunc(s.nodes, func(n *node) bool { return !s.heard.whole[n.id] }))
}

// placeWork decides where everything runs, and journals what changed in that.
func (s *site) placeWork() placement.Placement {
	unsettled := s.unsettled()
	if unsettled {
		s.wake(s.heard.settles - s.w.now)
	}
	placed := placement.Place(placement.Input{Desired: s.desired.Deployments, Nodes: s.view(), Unsettled: unsettled})
	for _, name := range slices.Sorted(maps.Keys(placed)) {
		report := placed[name].Report(name, maxRejected)
		body := protocol.Marshal(&report)
		if digest := protocol.DigestOf(body); s.reported[name] != digest {
			s.reported[name] = digest
			s.journal.append(protocol.Event{UnixMillis: s.clock.wall().UnixMilli(), Kind: protocol.PlacementEvent, Body: body})
			s.w.logf(string(s.id), "%s placed on %v %s", name, report.Nodes, report.Problem)
		}
	}
	s.uplink.send()
	return placed
}

// reconcileNode decides about one node and returns when to do so again.
func (s *site) reconcileNode(n *node, placed placement.Placement) time.Time {
	if s.records[n.id].Inventory == nil || !s.records[n.id].Complete || s.heard.follows[n.id].After(s.desired.Position) {
		return time.Time{}
	}
	on, here, moved := placed.On(n.id), map[protocol.DeploymentName]protocol.SiteEntry{}, map[protocol.DeploymentName]bool{}
	for _, e := range s.desired.Deployments {
		if on[e.Deployment] {
			here[e.Deployment] = e
			continue
		}
		moved[e.Deployment] = !slices.ContainsFunc(placed[e.Deployment].Nodes, func(id protocol.NodeID) bool { return !s.heard.whole[id] })
	}
	removals := map[protocol.DeploymentName]protocol.Removal{}
	for _, r := range s.desired.Removals {
		removals[r.Deployment] = r
	}
	rec := s.records[n.id].Clone()
	out := reconciler.Step(rec, reconciler.Input{
		Now: s.clock.wall(), Desired: here, Removals: removals, Moved: moved, Follows: s.heard.follows[n.id], LostAfter: nodeLostAfter, Jitter: s.jitter,
		Specs: func(d protocol.Digest) (reconciler.Spec, bool) { spec, ok := s.specs[d]; return spec, ok },
	})
	for _, err := range out.Faults {
		s.w.logf(string(s.id), "FAULT %v", err)
	}
	if len(out.Faults) > 0 {
		return s.clock.wall().Add(time.Minute)
	}
	if out.Changed {
		s.commit(rec, out.Facts, true)
	}
	for _, m := range out.Transitions {
		s.w.logf(string(s.id), "%s %s %s -> %s %s attempt %d %s", m.Node, m.Deployment, m.From, m.State, m.Digest.Short(), m.Attempt, m.Message)
	}
	if (out.Reassigned || s.retained[n.id] == nil) && s.heard.whole[n.id] {
		payload := protocol.Marshal(&out.Desired)
		s.retained[n.id] = payload
		n.link.send(downward, func() { n.accept(payload) })
	}
	return out.NextAt
}

// A door is the LO's end of the link to a node.
type door struct {
	s *site
	n *node
}

func (d door) running() bool { return d.s.alive }

// up delivers what is retained for the node.
func (d door) up(string) {
	if payload := d.s.retained[d.n.id]; payload != nil {
		d.n.link.send(downward, func() { d.n.accept(payload) })
	}
}

// down publishes the last will of a connection.
func (d door) down(session string) {
	if d.s.alive {
		d.s.acceptPresence(d.n.id, protocol.Presence{V: protocol.Version, Session: session})
	}
}
