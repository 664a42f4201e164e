package control

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
)

// A node is the record of one node, and what is known of the node in this run only.
//
// Its mutex is held while a message is folded in, journalled and stored, so that the
// journal has the events of one node in order. Other nodes go on meanwhile, and their
// events share the journal's fsync.
type node struct {
	id protocol.NodeID

	mu          sync.Mutex    // protects what follows
	rec         *nodes.Record // replaced, never changed in place
	seen        bool          // it came online since the start of this LO
	willUnsaved bool          // its last will could not be journalled; the broker does not repeat it
	unsaved     bool          // the last SaveNode failed: the stored record is older than the journal
	// firstUnsaved is the first sequence that only the journal has. The journal keeps
	// it until the record is stored. 0: the stored record has everything.
	firstUnsaved uint64
	unpublished  bool // the broker, or the node, does not have its NodeDesired
	// statements is the digest of the key set, the signatures and the certificates that were published
	// last in this run: they change without the position, as a key does.
	statements protocol.Digest
	// reported says that the node has reported everything that it holds since the start of
	// this LO: only then it gets a NodeDesired.
	reported bool
	// removed says that the site has forgotten the node: nothing is to be written of it.
	removed bool
	// follows is the position of the site's desired state that the node follows from.
	follows protocol.Position

	// shown and beat are for readers that must not wait for a disk.
	shown atomic.Pointer[nodes.Record]
	beat  atomic.Pointer[beat]
	// shownReported is reported.
	shownReported atomic.Bool
}

// A beat is a heartbeat and when it arrived, by the LO's clock.
type beat struct {
	protocol.Heartbeat
	at time.Time
}

func newNode(rec *nodes.Record) *node {
	n := &node{id: rec.Node, rec: rec, unpublished: true}
	n.shown.Store(rec)
	n.beat.Store(&beat{})
	return n
}

// record returns the present record. It must not be changed.
func (n *node) record() *nodes.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rec
}

// state returns the present record, which must not be changed, and whether the node has
// reported everything since the start of this LO. Its inventory is a part of that: without
// it no deployment matches the node, and what it runs would count as placed elsewhere.
func (n *node) state() (rec *nodes.Record, reported bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rec, n.reported && n.rec.Complete && n.rec.Inventory != nil
}

// snapshot returns the present record for a snapshot, and whether the node has reported everything since the start of this LO. Where it
// has not, that is noted in the record, over a restart, too: the CO keeps what it has of the node until it learns what that holds.
func (s *Site) snapshot(n *node) (rec *nodes.Record, reported bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	whole := n.reported && n.rec.Complete
	if n.removed || whole || n.rec.Unsaid || !n.rec.Complete { // of a record that is not whole the CO hears in any case
		return n.rec, whole
	}
	n.rec = n.rec.Clone()
	n.rec.Unsaid = true
	n.shown.Store(n.rec)
	if err := s.store.SaveNode(n.rec); err != nil { // the Loop repeats it
		n.unsaved = true
		s.log.Error("record of a node is not stored yet", "node_id", n.id, "err", err)
	}
	return n.rec, false
}

// lacks reports whether the stored record lacks an event up to a sequence.
func (n *node) lacks(through uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unsaved || n.firstUnsaved != 0 && n.firstUnsaved <= through
}
