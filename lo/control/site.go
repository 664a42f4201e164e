package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/lo/control/metrics"
	"github.com/colonyfleet/colony/lo/control/rulefault"
	"github.com/colonyfleet/colony/lo/control/view"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/rivals"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Site is the LO's knowledge of its nodes, backed by the journal and the store. Its
// methods may be called concurrently.
type Site struct {
	opts     Options
	log      *slog.Logger
	journal  Journal
	store    Store
	metrics  *metrics.Metrics
	began    time.Time
	restored nodes.Site // as Open found it; the Loop goes on with a copy
	fresh    bool       // Open found no record: it is a new site, or its disk was lost

	ruleFault rulefault.Fault
	names     *rivals.Names // which gateways use the names of the nodes

	// due is notified when there may be something in dirty or all for the Loop.
	due notify.Signal

	noted

	mu    sync.Mutex // protects what follows
	nodes map[protocol.NodeID]*node
	dirty map[protocol.NodeID]bool // nodes to reconcile
	// unremoved are nodes that the site has forgotten, and whose record could not be removed.
	unremoved map[protocol.NodeID]bool
	limits    limits
	all       bool // the placement is to be decided again, and all nodes reconciled
}

// noted is what one goroutine notes for another.
type noted struct {
	willsUnsaved        atomic.Bool // some node's willUnsaved is set
	restrictionsChanged atomic.Bool // restricted may have changed since the Loop looked at it
	lost                atomic.Bool // a node showed that the records were lost, or are older
	replaced            atomic.Bool // the CO lacks events: the placements are to be reported once more
	// adopted is the position of the desired state that is adopted, once the journal says so; nil: none.
	adopted atomic.Pointer[protocol.Position]
}

// limits are what keeps changes back.
type limits struct {
	// restricted are the nodes that a person has cordoned, drained or held.
	restricted map[protocol.NodeID]bool
	closed     string // why updates and removals wait for a maintenance window; "": they do not
}

// Open loads the records, folds in the events that only the journal has, and records
// the start of the LO in the journal, and which records were damaged. A node whose
// record is damaged reports its state again.
func Open(ctx context.Context, o Options) (*Site, error) {
	o = o.withDefaults()
	s := &Site{
		opts: o, log: o.Logger.With("component", "control"), journal: o.Journal, store: o.Store, metrics: metrics.New(), began: o.Now(),
		due: notify.New(), names: rivals.New(), nodes: map[protocol.NodeID]*node{}, dirty: map[protocol.NodeID]bool{}, all: true,
		unremoved: map[protocol.NodeID]bool{}, limits: limits{restricted: map[protocol.NodeID]bool{}},
	}
	state, records, damaged, err := s.store.Load()
	if err != nil {
		return nil, fmt.Errorf("load records of nodes: %w", err)
	}
	if len(damaged) > 0 {
		state.Checkpoint = 0 // it includes the records that are lost: the journal may have more of them
	}
	records = view.WithLost(records, damaged)
	for _, r := range records {
		r.Expected = view.Expected(r, state)
	}
	s.fresh = len(records) == 0
	s.restored = state
	for _, r := range records {
		s.nodes[r.Node] = newNode(r)
	}
	s.replay(ctx, state)
	for _, n := range s.sorted() {
		n.rec.ForgetPhases()
		s.noteRestricted(n.rec)
	}
	started := siteFact(protocol.LOStarted, "", &protocol.Presence{V: protocol.Version, Online: true, Agent: s.journal.Epoch(), Version: o.Version}, s.began)
	if _, err := s.append(ctx, []nodes.Fact{started}); err != nil {
		// An LO with a full journal must start, to empty it.
		s.log.WarnContext(ctx, "start could not be recorded", "err", err)
	}
	s.Damaged(ctx, damaged...)
	s.lostRestrictions(ctx, view.DamagedNodes(damaged))
	return s, nil
}

// replay folds in the events after the checkpoint that the stored records lack: the
// LO was killed after it wrote the journal and before it wrote the record.
func (s *Site) replay(ctx context.Context, state nodes.Site) {
	const records, bytes = 1024, 4 << 20
	epoch := s.journal.Epoch()
	after := state.Checkpoint
	if state.JournalEpoch != epoch {
		after = 0
	}
	changed := map[protocol.NodeID]bool{}
	for {
		first, bodies, err := s.journal.Bodies(after, records, bytes)
		if err != nil {
			// The uplink repairs the journal; what was lost here the nodes report again.
			s.log.ErrorContext(ctx, "journal cannot be replayed to its end", "after", after, "err", err)
			break
		}
		if len(bodies) == 0 {
			break
		}
		for i, body := range bodies {
			after = first + uint64(i)
			if id, ok := s.replayEvent(epoch, after, body); ok {
				changed[id] = true
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(changed)) {
		s.saveReplayed(ctx, id)
	}
}

// saveReplayed stores the record of a node that the journal has changed, or removes it. Where
// that fails, as on a full disk, the site goes on with the record that it has in memory; the
// journal keeps the events until a later write succeeds.
func (s *Site) saveReplayed(ctx context.Context, id protocol.NodeID) {
	n := s.known(id)
	if n == nil {
		if err := s.store.RemoveNode(id); err != nil {
			s.unremoved[id] = true
			s.log.ErrorContext(ctx, "record of a node that was decommissioned is not removed yet", "node_id", id, "err", err)
		}
		return
	}
	if err := s.store.SaveNode(n.rec); err != nil {
		n.unsaved = true
		s.log.ErrorContext(ctx, "replayed record of a node is not stored yet", "node_id", id, "err", err)
	}
}

// replayEvent folds one event of the journal in and returns the node whose record
// changed. Nothing else has the Site yet, so that no lock is held.
func (s *Site) replayEvent(epoch string, seq uint64, body []byte) (id protocol.NodeID, changed bool) {
	var e protocol.Event
	if err := protocol.Unmarshal(body, &e); err != nil || e.Node == "" || e.Kind == protocol.CommandResult {
		return "", false
	}
	rec := s.node(e.Node).rec
	if rec.JournalEpoch == epoch && seq <= rec.JournalSeq {
		return "", false
	}
	var d protocol.Decommissioned
	if e.Kind == protocol.NodeDecommissioned && protocol.Unmarshal(e.Body, &d) == nil && d.Reason == "" {
		s.drop(e.Node)
		return e.Node, true
	}
	rec.Replay(e)
	rec.JournalEpoch, rec.JournalSeq = epoch, seq
	return e.Node, true
}

// node returns the node of that name, and makes it where it is not known.
func (s *Site) node(id protocol.NodeID) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil {
		n = newNode(nodes.New(id))
		s.nodes[id] = n
	}
	return n
}

// sorted returns all nodes in the order of their names.
func (s *Site) sorted() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*node, 0, len(s.nodes))
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		out = append(out, s.nodes[id])
	}
	return out
}

// reconcileNode has the Loop reconcile one node.
func (s *Site) reconcileNode(id protocol.NodeID) {
	s.mu.Lock()
	s.dirty[id] = true
	s.mu.Unlock()
	s.due.Notify()
}

// reconcileAll has the Loop place the deployments again and reconcile all nodes.
func (s *Site) reconcileAll() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	s.due.Notify()
}

// ReportPlacements has the Loop report once more where each deployment is placed, also where it reported the same before: the CO has not
// got all events, and a snapshot does not say it.
func (s *Site) ReportPlacements() {
	s.replaced.Store(true)
	s.reconcileAll()
}

// pending returns what the Loop was asked to reconcile since the last call.
func (s *Site) pending() (all bool, dirty []protocol.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, dirty = s.all, slices.Sorted(maps.Keys(s.dirty))
	s.all = false
	clear(s.dirty)
	return all, dirty
}

// commit makes rec the record of n: the facts go to the journal, then the record to
// disk if save says that a restart must find it. The caller holds n.mu.
//
// When the journal refuses, nothing has changed. When only the record could not be
// stored, rec counts all the same, for the journal has it; the error then makes the
// sender repeat its message, which stores the record.
func (s *Site) commit(ctx context.Context, n *node, rec *nodes.Record, facts []nodes.Fact, save bool) error {
	if len(facts) > 0 {
		last, err := s.append(ctx, facts)
		if err != nil {
			return err
		}
		rec.JournalEpoch, rec.JournalSeq = s.journal.Epoch(), last
	}
	n.rec = rec
	n.shown.Store(rec)
	if !save && !n.unsaved {
		return nil
	}
	if err := s.store.SaveNode(rec); err != nil {
		n.unsaved = true
		return protocol.Errorf(protocol.Unavailable, "store record of node %s: %w", n.id, err)
	}
	n.unsaved, n.firstUnsaved = false, 0
	return nil
}

// append puts facts into the journal, next to each other.
func (s *Site) append(ctx context.Context, facts []nodes.Fact) (uint64, error) {
	// The end of the sender's connection must not leave open whether the events are in
	// the journal.
	last, err := s.journal.Append(context.WithoutCancel(ctx), facts)
	if err != nil {
		return 0, fmt.Errorf("append to the journal: %w", err)
	}
	return last, nil
}

// Snapshot returns the state of all nodes that have reported to this LO: the CO knows more of other
// nodes than this LO. What a node holds that has not reported since the start of this LO follows once it has. It includes every event that the journal holds, since a node stays locked until
// its journalled events are folded in.
func (s *Site) Snapshot() protocol.Snapshot {
	m := protocol.Snapshot{V: protocol.Version}
	if adopted := s.adopted.Load(); adopted != nil {
		m.Adopted = *adopted
	}
	for _, n := range s.sorted() {
		rec, reported := s.snapshot(n)
		if !rec.Heard() {
			continue
		}
		node := protocol.NodeSnapshot{Node: rec.Node, Presence: rec.Presence, Gateways: s.names.Contested(rec.Node), Complete: reported}
		node.Presence.V = protocol.Version
		node.Inventory = protocol.Inventory{V: protocol.Version, Node: rec.Node}
		if rec.Inventory != nil {
			node.Inventory = *rec.Inventory
		}
		if len(rec.Restrictions)+len(rec.Waits) > 0 {
			report := rec.RestrictionReport()
			node.Restrictions = protocol.Marshal(&report)
		}
		m.Nodes = append(m.Nodes, node)
		for _, name := range rec.Names() {
			if d := rec.Deployments[name]; d.Status.State != "" && d.Status.State != lifecycle.Deleted {
				m.Statuses = append(m.Statuses, d.Status)
			}
		}
	}
	return m
}

// checkpoint returns a journal sequence up to which every event is in a stored record. The events
// of a node are appended and stored under its lock: so once checkpoint has locked each node after
// it read Last, all earlier events are stored.
func (s *Site) checkpoint() (uint64, error) {
	last := s.journal.Last()
	if err := s.removeForgotten(); err != nil {
		return 0, err
	}
	for _, n := range s.sorted() {
		if err := s.flush(n); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// removeForgotten removes the records of nodes that the site has forgotten and that could not
// be removed before. A node of that name that came back has a record of its own.
func (s *Site) removeForgotten() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.unremoved)) {
		if s.nodes[id] == nil {
			if err := s.store.RemoveNode(id); err != nil {
				return err
			}
		}
		delete(s.unremoved, id)
	}
	return nil
}

// flush stores the record of a node where the stored one is older.
func (s *Site) flush(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.removed || !n.unsaved && n.firstUnsaved == 0 {
		return nil
	}
	if err := s.store.SaveNode(n.rec); err != nil {
		return fmt.Errorf("store record of node %s: %w", n.id, err)
	}
	n.unsaved, n.firstUnsaved = false, 0
	return nil
}

// SaveThrough stores the records that lack an event up to a sequence of the journal.
func (s *Site) SaveThrough(through uint64) error {
	if err := s.removeForgotten(); err != nil {
		return err
	}
	for _, n := range s.sorted() {
		if !n.lacks(through) {
			continue
		}
		if err := s.flush(n); err != nil {
			return err
		}
	}
	return nil
}

// expire makes those nodes offline whose last will could not be journalled and, if
// silent, those that were online before this LO started and have not come back since.
func (s *Site) expire(ctx context.Context, now time.Time, silent bool) error {
	var errs []error
	for _, n := range s.sorted() {
		if err := s.expireNode(ctx, n, now, silent); err != nil {
			errs = append(errs, err)
		}
	}
	s.reconcileAll()
	return errors.Join(errs...)
}

func (s *Site) expireNode(ctx context.Context, n *node, now time.Time, silent bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.removed || !n.rec.Online() || !n.willUnsaved && (!silent || n.seen) {
		return nil
	}
	rec := n.rec.Clone()
	out := rec.Lost(now)
	if err := s.commit(ctx, n, rec, out.Facts, out.Changed); err != nil {
		return fmt.Errorf("record node %s as offline: %w", n.id, err)
	}
	n.willUnsaved = false
	s.log.InfoContext(ctx, "node did not come back", "node_id", n.id)
	return nil
}
