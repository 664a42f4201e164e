// Package members is what an LO knows of the commands of its site: which nodes are meant by each, and how far each node is. It says
// what to publish, what to report, and when to ask for the time of the CO. It is pure: messages and time in, decisions out.
//
// Times are those of a clock that begins at the boot of the machine, see cotime.
package members

import (
	"cmp"
	"slices"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/command/cotime"
)

const (
	// Grace is how long after the deadline of a command the LO waits for what its nodes say.
	Grace = 30 * time.Second
	// slack is how long after the deadline, and after the longest time that a node may take for a command of its kind, nothing more is
	// expected of it: the node may be away, and have begun again.
	slack = 2 * time.Hour
	// forgetAfter is how long after its deadline a command that has ended is forgotten: twice the longest life.
	forgetAfter = 2 * command.MaxLifeMillis * time.Millisecond
	// MaxHeld bounds the commands that a site holds. Past it those that ended first are forgotten first.
	MaxHeld = 4096
	// MaxOpen bounds those of them that have not ended. What is open at one node is bounded by command.MaxPerNode, so that one that is
	// away does not close the site for others.
	MaxOpen = 2048
	// fresh is how old the time of the CO may be before it is asked for again, while a command waits.
	fresh = 10 * time.Minute
	// timed is how old the time of the CO may be where it is needed all the time.
	timed = 15 * time.Minute
	// askedByNode is how long the LO asks on after a node asked.
	askedByNode = time.Minute
	// perTurn is how many messages to nodes a Decision has at most, pace the time to the next one then: a thousand a second.
	perTurn = 100
	pace    = 100 * time.Millisecond
	tick    = time.Second
	idle    = time.Hour
)

// A Record is what an LO writes down of a command that it receives, before anything follows from it.
type Record struct {
	ID             command.ID   `cbor:"1,keyasint"`
	Kind           command.Kind `cbor:"2,keyasint"`
	IssuedMillis   int64        `cbor:"3,keyasint"` // when the CO issued it, in milliseconds since 1970
	DeadlineMillis int64        `cbor:"4,keyasint"` // by the CO's clock, in milliseconds since 1970
	// Envelope is the command as the nodes get it, encoded.
	Envelope []byte `cbor:"5,keyasint,omitempty"`
	// Code and Message say why it is refused for the whole site.
	Code    command.Code `cbor:"6,keyasint,omitempty"`
	Message string       `cbor:"7,keyasint,omitempty"`
	// Nodes are those that are meant, sorted.
	Nodes []protocol.NodeID `cbor:"8,keyasint,omitempty"`
}

// Received is what the CO gets of it.
func (r *Record) Received() command.Received {
	return command.Received{V: protocol.Version, ID: r.ID, Nodes: uint64(len(r.Nodes)), Code: r.Code, Message: r.Message}
}

// Held is a command as it was found on the disk.
type Held struct {
	Record  Record
	Results []Result
}

// A Result is one result of a command, with where it is.
type Result struct {
	command.Result
	Where Where
}

// A Where says where in the store the last result of a node is.
type Where struct {
	At   int64 // offset of the result
	Size int   // in bytes
}

// member is one node that is meant.
type member struct {
	node      protocol.NodeID
	state     command.State // "": it has reported nothing
	byLO      bool
	tried     bool // the LO has begun to carry it out, in this run
	published bool // the broker has the command for it, from this run of the LO
	where     Where
}

func (m *member) ended() bool { return m.state != "" && m.state.Ended() }

// entry is one command.
type entry struct {
	Record
	members   []member // sorted by node
	open      int      // of them, those that have not ended
	since     time.Duration
	cancelled bool
	turn      uint64 // the order in which they ended; 0: it has not
	byLO      bool   // the LO carries it out itself
	report    int    // how many of its results are still to be reported again, from the end
}

func (e *entry) live(latest int64, known bool) bool { return known && latest < e.DeadlineMillis }

// A Site is all commands of a site. It is for one goroutine at a time.
type Site struct {
	Clock cotime.Clock
	// Timed says that the time of the CO is needed all the time, for maintenance windows.
	Timed   bool
	entries map[command.ID]*entry
	ids     []command.ID            // in the order in which they came
	open    map[protocol.NodeID]int // how many commands each node has not ended
	ended   uint64
	asked   time.Duration // when a node asked last, plus one; 0: none did
}

// New returns a Site without commands.
func New() *Site { return &Site{entries: map[command.ID]*entry{}, open: map[protocol.NodeID]int{}} }

// Add adds a command that was written down.
func (s *Site) Add(r Record, now time.Duration) {
	def, _ := command.Lookup(r.Kind) // of a kind that is not known the nodes decide
	e := &entry{Record: r, since: now, byLO: def.ByLO}
	for _, n := range r.Nodes {
		e.members = append(e.members, member{node: n})
		s.open[n]++
	}
	e.open = len(e.members)
	s.entries[r.ID] = e
	s.ids = append(s.ids, r.ID)
	s.Clock.AtLeast(r.IssuedMillis)
	s.note(e)
}

// note counts a command that has ended.
func (s *Site) note(e *entry) {
	if e.open > 0 {
		e.turn = 0
	} else if e.turn == 0 {
		s.ended++
		e.turn = s.ended
	}
}

// Holds reports whether the site has a command, and whether each node has ended it.
func (s *Site) Holds(id command.ID) (held, ended bool) {
	e := s.entries[id]
	return e != nil, e != nil && e.open == 0
}

// Kind returns the kind of a command, "" for one that is not held.
func (s *Site) Kind(id command.ID) command.Kind {
	if e := s.entries[id]; e != nil {
		return e.Record.Kind
	}
	return ""
}

// Record returns what was written down of a command that is held.
func (s *Site) Record(id command.ID) Record { return s.entries[id].Record }

// Count returns how many commands are held, and how many of them have not ended.
func (s *Site) Count() (held, open int) {
	for _, e := range s.entries {
		if e.open > 0 {
			open++
		}
	}
	return len(s.entries), open
}

// Open returns the nodes that have not ended a command, at most so many.
func (s *Site) Open(id command.ID, most int) (nodes []protocol.NodeID) {
	if e := s.entries[id]; e != nil {
		for i := range e.members {
			if !e.members[i].ended() && len(nodes) < most {
				nodes = append(nodes, e.members[i].node)
			}
		}
	}
	return nodes
}

// News reports whether a result says what is not known yet. One of a command that is not held, or of a node that is not meant, does not.
func (s *Site) News(r *command.Result) bool {
	m := s.member(r.ID, r.Node)
	switch {
	case m == nil:
		return false
	case r.ByLO:
		return !m.ended()
	case m.ended():
		return m.byLO
	default:
		return m.state != r.State
	}
}

// Means reports whether a node is meant by a command that is held.
func (s *Site) Means(id command.ID, node protocol.NodeID) bool { return s.member(id, node) != nil }

func (s *Site) member(id command.ID, node protocol.NodeID) *member {
	e := s.entries[id]
	if e == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(e.members, node, func(m member, n protocol.NodeID) int { return cmp.Compare(m.node, n) })
	if !ok {
		return nil
	}
	return &e.members[i]
}

// Apply takes a result that is News and was written down.
func (s *Site) Apply(r *command.Result, at Where) {
	if !s.News(r) {
		return
	}
	m, e := s.member(r.ID, r.Node), s.entries[r.ID]
	was := m.ended()
	m.state, m.byLO, m.where = r.State, r.ByLO, at
	switch {
	case was && !m.ended():
		e.open++
		s.open[m.node]++
	case !was && m.ended():
		e.open--
		s.closed(m.node)
	}
	s.note(e)
}

// closed counts one command less that a node has not ended.
func (s *Site) closed(n protocol.NodeID) {
	if s.open[n]--; s.open[n] <= 0 {
		delete(s.open, n)
	}
}

// Crowded returns those of nodes that have as many open commands as a node may have.
func (s *Site) Crowded(nodes []protocol.NodeID) (full []protocol.NodeID) {
	for _, n := range nodes {
		if s.open[n] >= command.MaxPerNode {
			full = append(full, n)
		}
	}
	return full
}

// Cancel cancels a command for the nodes that have not begun; ok is false where none is left.
func (s *Site) Cancel(id command.ID) (ok bool) {
	e := s.entries[id]
	if e == nil || e.open == 0 {
		return false
	}
	e.cancelled = true
	return true
}

// Resend has all results of a command reported again, as the CO publishes it though it has ended here.
func (s *Site) Resend(id command.ID) {
	if e := s.entries[id]; e != nil {
		e.report = len(e.members)
	}
}

// NodeAsked says that a node asks for the time of the CO.
func (s *Site) NodeAsked(now time.Duration) { s.asked = now + 1 }

// Forget forgets a command.
func (s *Site) Forget(id command.ID) {
	if e := s.entries[id]; e != nil {
		for i := range e.members {
			if !e.members[i].ended() {
				s.closed(e.members[i].node)
			}
		}
	}
	delete(s.entries, id)
	s.ids = slices.DeleteFunc(s.ids, func(have command.ID) bool { return have == id })
}

// Unpublished says that the broker did not take a publication: it is to be published again.
func (s *Site) Unpublished(p Publication) {
	if m := s.member(p.ID, p.Node); m != nil {
		m.published = len(p.Envelope) == 0
	}
}
