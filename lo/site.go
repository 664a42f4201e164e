package lo

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
	"github.com/colonyfleet/colony/lo/data"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/nodes/store"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A node is a record and what is known of it in this run only.
//
// Its mutex is held from the folding of a message to its place on disk, so that
// the journal has the events of one node in order; other nodes go on meanwhile
// and share the journal's fsync.
type node struct {
	id protocol.NodeID

	mu           sync.Mutex    // guards what follows
	rec          *nodes.Record // replaced, never changed in place
	seen         bool          // it spoke since the start of this LO
	willUnsaved  bool          // its last will could not be recorded, and comes once only
	unsaved      bool          // the journal has what the disk has not
	firstUnsaved uint64        // the first sequence that only the journal has, which keeps it until the record is stored; 0: none
	unsent       bool          // the broker has not got its NodeDesired

	// For who only looks, and must not wait for a disk: the last record, and the last
	// heartbeat.
	shown atomic.Pointer[nodes.Record]
	beat  atomic.Pointer[beat]
}

// A beat is a heartbeat and when it came.
type beat struct {
	protocol.Heartbeat
	at time.Time
}

func newNode(rec *nodes.Record) *node {
	n := &node{id: rec.Node, rec: rec, unsent: true}
	n.shown.Store(rec)
	n.beat.Store(&beat{})
	return n
}

// site is what the LO knows of its nodes, backed by the journal and the store.
type site struct {
	id      protocol.SiteID
	log     *slog.Logger
	journal *journal.Journal
	store   *store.Store
	counts  *counts
	data    *data.Forwarder

	ruleFault ruleFault

	// due tells the loop that there is something in dirty or all.
	due notify.Signal

	mu           sync.Mutex // guards what follows
	nodes        map[protocol.NodeID]*node
	dirty        map[protocol.NodeID]bool // nodes to decide about
	all          bool                     // placement is to be decided anew
	willsUnsaved bool                     // a last will could not be recorded: look for silent nodes
}

// openSite loads the records and folds in what only the journal has.
func openSite(o Options, j *journal.Journal, store *store.Store, c *counts) (*site, store.Site, error) {
	s := &site{
		id: o.Site, log: o.Logger.With("component", "site"), journal: j, store: store, counts: c,
		due: notify.New(), nodes: map[protocol.NodeID]*node{}, dirty: map[protocol.NodeID]bool{}, all: true,
	}
	state, records, faults, err := store.Load()
	if err != nil {
		return nil, state, err
	}
	for _, f := range faults {
		s.log.Error("record lost; it is learnt anew from the node", "err", f)
	}
	if len(faults) > 0 {
		state.Checkpoint = 0 // it speaks of records that are lost: the journal may have more
	}
	for _, r := range records {
		s.nodes[r.Node] = newNode(r)
	}
	return s, state, s.replay(state)
}

// replay folds in the events after the checkpoint that the records do not show:
// the LO was killed between the journal and the record.
func (s *site) replay(state store.Site) error {
	const records, bytes = 1024, 4 << 20
	epoch := s.journal.Epoch()
	after := state.Checkpoint
	if state.JournalEpoch != epoch {
		after = 0
	}
	changed := map[*node]bool{}
	for {
		batch, err := s.journal.Read(after, records, bytes)
		if err != nil {
			// The uplink repairs the journal; what was lost here the nodes report again.
			s.log.Error("journal cannot be replayed to its end", "after", after, "err", err)
			break
		}
		if len(batch) == 0 {
			break
		}
		for _, rec := range batch {
			after = rec.Seq
			var e protocol.Event
			if err := protocol.Unmarshal(rec.Body, &e); err != nil || e.Node == "" {
				continue
			}
			n := s.node(e.Node)
			if n.rec.JournalEpoch == epoch && rec.Seq <= n.rec.JournalSeq {
				continue
			}
			n.rec.Replay(e)
			n.rec.JournalEpoch, n.rec.JournalSeq = epoch, rec.Seq
			changed[n] = true
		}
	}
	for n := range changed {
		if err := s.store.SaveNode(n.rec); err != nil {
			return fmt.Errorf("store replayed record: %w", err)
		}
	}
	return nil
}

// node returns the node of that name, and makes it where it is not known.
func (s *site) node(id protocol.NodeID) *node {
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
func (s *site) sorted() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*node, 0, len(s.nodes))
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		out = append(out, s.nodes[id])
	}
	return out
}

// poke has the loop decide about one node.
func (s *site) poke(id protocol.NodeID) {
	s.mu.Lock()
	s.dirty[id] = true
	s.mu.Unlock()
	s.due.Notify()
}

// pokeAll has the loop decide about the whole site.
func (s *site) pokeAll() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	s.due.Notify()
}

// missed has the next pass record that a node is gone, which nobody says again.
func (s *site) missed() {
	s.mu.Lock()
	s.willsUnsaved = true
	s.mu.Unlock()
}

// acceptMissed reports whether missed was called since the last time.
func (s *site) acceptMissed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	offline := s.willsUnsaved
	s.willsUnsaved = false
	return offline
}

// pending takes what there is to decide about.
func (s *site) pending() (all bool, dirty []protocol.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, dirty = s.all, slices.Sorted(maps.Keys(s.dirty))
	s.all = false
	clear(s.dirty)
	return all, dirty
}

// commit makes rec the record of n: the facts go to the journal, then the record
// to disk where save says that a restart must find it. The caller holds n.mu.
//
// When the journal refuses, nothing has changed. When only the record could not
// be stored it counts all the same, for the journal has it; the error then makes
// the sender send again, which stores it.
func (s *site) commit(ctx context.Context, n *node, rec *nodes.Record, facts []nodes.Fact, save bool) error {
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
		return protocol.Errorf(protocol.Unavailable, "%w", err)
	}
	n.unsaved, n.firstUnsaved = false, 0
	return nil
}

// append puts facts into the journal, next to each other.
func (s *site) append(ctx context.Context, facts []nodes.Fact) (uint64, error) {
	entries := make([]journal.Entry, len(facts))
	for i, f := range facts {
		entries[i] = journal.Entry{Class: journal.Event, Body: protocol.Marshal(f.Event)}
		if f.Key != "" {
			entries[i].Class, entries[i].Key = journal.State, f.Key
		}
	}
	// A sender that goes away in the middle must not leave it open whether the
	// events are in the journal.
	last, err := s.journal.Append(context.WithoutCancel(ctx), entries...)
	if err != nil {
		return 0, fmt.Errorf("append to the journal: %w", err)
	}
	return last, nil
}

// snapshot returns the state of all nodes. What the journal holds is in it, for
// a node is locked until its events are folded in.
func (s *site) snapshot() protocol.Snapshot {
	m := protocol.Snapshot{V: protocol.Version}
	for _, n := range s.sorted() {
		n.mu.Lock()
		rec := n.rec
		n.mu.Unlock()
		node := protocol.NodeSnapshot{Node: rec.Node, Presence: rec.Presence}
		node.Presence.V = protocol.Version
		node.Inventory = protocol.Inventory{V: protocol.Version, Node: rec.Node}
		if rec.Inventory != nil {
			node.Inventory = *rec.Inventory
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

// checkpoint returns a journal sequence up to which every event is in a stored
// record: events of a node are appended and stored under its lock, so that each
// node that was locked once after Last was read has stored what was before it.
func (s *site) checkpoint() (uint64, error) {
	last := s.journal.Last()
	for _, n := range s.sorted() {
		if err := s.flush(n); err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (s *site) flush(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unsaved && n.firstUnsaved == 0 {
		return nil
	}
	if err := s.store.SaveNode(n.rec); err != nil {
		return err
	}
	n.unsaved, n.firstUnsaved = false, 0
	return nil
}

// expire makes those nodes offline whose last will could not be recorded, and, if
// silent, those that were online before this LO started and have not spoken since.
func (s *site) expire(ctx context.Context, now time.Time, silent bool) error {
	var errs []error
	for _, n := range s.sorted() {
		n.mu.Lock()
		if (n.willUnsaved || silent && !n.seen) && n.rec.Online() {
			rec := n.rec.Clone()
			out := rec.Lost(now)
			if err := s.commit(ctx, n, rec, out.Facts, out.Changed); err != nil {
				errs = append(errs, err)
			} else {
				n.willUnsaved = false
				s.log.InfoContext(ctx, "node did not come back", "node_id", n.id)
			}
		}
		n.mu.Unlock()
	}
	s.pokeAll()
	return errors.Join(errs...)
}
