// Package command holds the messages of commands: what an operator asks of a node once, such as to restart a
// container or to show its log. Desired state says what shall be so; a command says what shall be done, at most
// once, before its deadline. docs/adr/0011-commands.md says why it is so, docs/protocol.md on which topics the messages go.
//
// The package is pure. All of it is since release 0.3.0.
package command

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/items"
	"github.com/colonyfleet/colony/protocol/sign"
)

// An ID names a command: 128 random bits as 32 lower-case hex digits. It is a level of topics.
type ID string

// ParseID checks the form of an id.
func ParseID(s string) (ID, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 || hex.EncodeToString(b) != s {
		return "", protocol.Errorf(protocol.Invalid, "command id %q: want 32 lower-case hex digits", s)
	}
	return ID(s), nil
}

const (
	// MaxNodes bounds the nodes that a command names; a selection by labels has no bound.
	MaxNodes = 1000
	// MaxPerNode bounds the commands that are open at one node. An LO ends those past it as refused, for that node alone.
	MaxPerNode = 128
	// MaxArgs bounds the encoded arguments of a command, in bytes.
	MaxArgs = 16 << 10
	// MaxOutput bounds the output of a result, in bytes; longer output is cut, and the result says that. Kinds whose output is
	// larger are live.
	MaxOutput = 8 << 10
	// MaxMessage bounds the message of a result, in bytes.
	MaxMessage = 1 << 10
	// MaxFrame bounds the data of a frame, in bytes.
	MaxFrame = 64 << 10
	// MaxLifeMillis is the longest time from the issue of a command to its deadline, in milliseconds: 24 hours.
	MaxLifeMillis = 24 * 60 * 60 * 1000
	// LeaseMillis is how long a node continues a live command after a Credit arrived, in milliseconds. After a failure of
	// the link for 15 s nothing may arrive for another 15 s, as TCP doubles the time between its attempts (RFC 6298,
	// section 5.5). The last Credit is some seconds old when the link fails.
	LeaseMillis = 40_000
)

// A Command is the payload of a statement of kind sign.Command, by a signing key of the CO. A receiver executes an id at
// most once, even if it arrives several times.
type Command struct {
	V  uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	ID ID     `cbor:"1,keyasint"` // see ID
	// Site is the site that it is for.
	Site protocol.SiteID `cbor:"2,keyasint"`
	// Kind says what to do. A receiver that does not know it refuses the command.
	Kind Kind `cbor:"3,keyasint"`
	// Args are the arguments, as the kind defines them. Absent: the kind has none.
	Args cbor.RawMessage `cbor:"4,keyasint,omitempty"`
	// Nodes are those that are meant, by name, sorted. Absent: Selector or All says it.
	Nodes []protocol.NodeID `cbor:"5,keyasint,omitempty"`
	// Selector are labels that each node that is meant has, with their values. Absent: Nodes or All says it.
	Selector map[string]string `cbor:"6,keyasint,omitempty"`
	// All says that every node of the site is meant. Absent: Nodes or Selector says it.
	All bool `cbor:"7,keyasint,omitempty"`
	// IssuedMillis is when it was issued, by the clock of the CO, in milliseconds since 1970.
	IssuedMillis int64 `cbor:"8,keyasint"`
	// DeadlineMillis is until when it may begin, by the clock of the CO, in milliseconds since 1970.
	DeadlineMillis int64 `cbor:"9,keyasint"`
	// Budget bounds what the execution may send live, in bytes. Absent: the default of the kind.
	Budget uint64 `cbor:"10,keyasint,omitempty"`
	// Actor is the caller at the CO, for the log of the node. Absent: the CO does without tokens.
	Actor string `cbor:"11,keyasint,omitempty"`
}

// Check returns what is wrong with a command. It does not trust the sender.
func (c *Command) Check() error {
	if _, err := ParseID(string(c.ID)); err != nil {
		return err
	}
	targets := 0
	for _, set := range []bool{len(c.Nodes) > 0, len(c.Selector) > 0, c.All} {
		if set {
			targets++
		}
	}
	switch {
	case targets != 1:
		return protocol.Errorf(protocol.Invalid, "command %s: want nodes by name, a selection by labels, or all nodes, and one of them", c.ID)
	case len(c.Nodes) > MaxNodes:
		return protocol.Errorf(protocol.Invalid, "command %s: names %d nodes, the limit is %d: select them by labels", c.ID, len(c.Nodes), MaxNodes)
	case !slices.IsSorted(c.Nodes) || len(slices.Compact(slices.Clone(c.Nodes))) != len(c.Nodes):
		return protocol.Errorf(protocol.Invalid, "command %s: its nodes are not sorted, or one is there twice", c.ID)
	case len(c.Args) > MaxArgs:
		return protocol.Errorf(protocol.Invalid, "command %s: its arguments have %d bytes, the limit is %d", c.ID, len(c.Args), MaxArgs)
	case c.DeadlineMillis <= c.IssuedMillis || c.DeadlineMillis-c.IssuedMillis > MaxLifeMillis:
		return protocol.Errorf(protocol.Invalid, "command %s: its deadline is %d ms after its issue: want 1 to %d", c.ID, c.DeadlineMillis-c.IssuedMillis, int64(MaxLifeMillis))
	}
	return nil
}

// Means reports whether a node with these labels is meant. The name counts where names are given, the labels where labels are.
func (c *Command) Means(node protocol.NodeID, labels map[string]string) bool {
	if len(c.Nodes) > 0 {
		_, found := slices.BinarySearch(c.Nodes, node)
		return found
	}
	for k, v := range c.Selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return len(c.Selector) > 0 || c.All
}

// Sign returns the statement of a command that passes Check.
func Sign(s *sign.Signer, c *Command) ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	return s.Sign(sign.Command, protocol.Marshal(c))
}

// Open checks the statement of a command for a site, and returns it. What it returns passes Check; the caller checks whether its node
// is meant, as it knows the labels.
func Open(t sign.Trust, site protocol.SiteID, statement []byte) (*Command, error) {
	b, err := t.Verify(sign.Command, statement)
	if err != nil {
		return nil, err
	}
	return read(site, b)
}

// read reads the payload of a statement.
func read(site protocol.SiteID, b []byte) (*Command, error) {
	var c Command
	if err := protocol.Unmarshal(b, &c); err != nil {
		return nil, sign.Refuse(sign.Malformed, "the command cannot be read: %v", err)
	}
	switch {
	case c.V > protocol.Version:
		return nil, sign.Refuse(sign.Malformed, "command %s has protocol version %d, this program knows %d: upgrade it", c.ID, c.V, protocol.Version)
	case c.Site != site:
		return nil, sign.Refuse(sign.WrongSite, "command %s is for site %q, this is site %q", c.ID, c.Site, site)
	}
	if err := c.Check(); err != nil {
		return nil, sign.Refuse(sign.Malformed, "%v", err)
	}
	return &c, nil
}

// A Message is one of the messages of this package.
type Message interface{ version() uint16 }

// Unmarshal decodes one message of this package, within the bounds of protocol.Unmarshal. It refuses one of a later major version.
func Unmarshal(b []byte, m Message) error {
	if err := protocol.Unmarshal(b, m); err != nil {
		return err
	}
	if v := m.version(); v > protocol.Version {
		return protocol.Errorf(protocol.Invalid, "message %T has protocol version %d, this program knows %d: upgrade it", m, v, protocol.Version)
	}
	return nil
}

// Envelope is what CO and LO publish: a command as the CO signed it, retained. An empty payload cancels the command: what has
// not begun does not begin.
type Envelope struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	// Statement is the Command, signed.
	Statement []byte `cbor:"1,keyasint"`
	// KeySet is the latest key set of the CO, for a receiver that has not followed it yet. Absent: the sender has none.
	KeySet []byte `cbor:"2,keyasint,omitempty"`
}

func (m *Envelope) version() uint16 { return m.V }

// A State is how far a command is at a node. The list only grows.
type State string

// The states. All but Running are ends.
const (
	Running State = "running" // it has begun
	Done    State = "done"    // it did what was asked
	Failed  State = "failed"  // it did not; Code says why
	Refused State = "refused" // it did not begin, and never will; Code says why
	Expired State = "expired" // its deadline passed before it began
	Unknown State = "unknown" // it began, and the agent ended before the command did: how far it came is unknown
)

// Ended reports whether nothing follows the state.
func (s State) Ended() bool { return s != Running }

// other is the label of what a later release may say.
const other = "other"

// Label returns the state as the label of a metric, of which there are so many.
func (s State) Label() string {
	if slices.Contains(States(), s) {
		return string(s)
	}
	return other
}

// States are all of them, in their order.
func States() []State { return []State{Running, Done, Failed, Refused, Expired, Unknown} }

// A Result is how far a command is at a node: from the node to its LO, which acknowledges it once it is durable, and from there as an event.
// The LO makes one itself for a node that does not answer.
type Result struct {
	V  uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	ID ID     `cbor:"1,keyasint"` // that of the command
	// Node is the node.
	Node protocol.NodeID `cbor:"2,keyasint"`
	// State is how far it is.
	State State `cbor:"3,keyasint"`
	// Code says why it did not do what was asked, for programs: one of Codes. Absent: it did, or is under way.
	Code Code `cbor:"4,keyasint,omitempty"`
	// Message says the same for people, at most MaxMessage bytes. Absent: there is nothing to say.
	Message string `cbor:"5,keyasint,omitempty"`
	// Output is what the command gives, as text, at most MaxOutput bytes. Absent: it gives nothing.
	Output string `cbor:"6,keyasint,omitempty"`
	// Cut says that Output was longer. Absent: it is whole.
	Cut bool `cbor:"7,keyasint,omitempty"`
	// DurationMillis is how long the execution took, in milliseconds. Absent: it did not begin, has not ended, or took less than one.
	DurationMillis uint64 `cbor:"8,keyasint,omitempty"`
	// ByLO says that the LO made it, as the node did not answer; a result of the node itself replaces it. Absent: it is the node's.
	ByLO bool `cbor:"9,keyasint,omitempty"`
}

func (m *Result) version() uint16 { return m.V }

// Received is what an LO reports once it has written down which nodes are meant, or that it refuses the command.
type Received struct {
	V  uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	ID ID     `cbor:"1,keyasint"` // that of the command
	// Nodes is how many nodes are meant; each sends results. Absent: none is.
	Nodes uint64 `cbor:"2,keyasint,omitempty"`
	// Code says why the LO refuses it for the whole site: one of Codes. Absent: it does not.
	Code Code `cbor:"3,keyasint,omitempty"`
	// Message says the same for people. Absent: it does not refuse.
	Message string `cbor:"4,keyasint,omitempty"`
}

func (m *Received) version() uint16 { return m.V }

// A Frame is a piece of what a command sends live, such as lines of a log. Frames are not kept: what the receiver cannot take is left out and
// counted.
type Frame struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	// Seq counts the frames of a node and a command, from 1.
	Seq uint64 `cbor:"1,keyasint"`
	// Node is the node that sends. Absent between the node and its LO, where the topic says it.
	Node protocol.NodeID `cbor:"2,keyasint,omitempty"`
	// Items are how many Data holds. Absent: none.
	Items uint64 `cbor:"3,keyasint,omitempty"`
	// Data is a CBOR sequence (RFC 8742) of items as the kind defines them, at most MaxFrame bytes. Absent: none.
	Data []byte `cbor:"4,keyasint,omitempty"`
	// LostItems are those that were left out before this frame, since the frame before it. Absent: none.
	LostItems uint64 `cbor:"5,keyasint,omitempty"`
	// LostBytes is the size of the data that was left out with them, in bytes. Absent: none.
	LostBytes uint64 `cbor:"6,keyasint,omitempty"`
	// End says that nothing follows. Absent: more may come.
	End bool `cbor:"7,keyasint,omitempty"`
	// Code and Message say why it ended, as those of a Result. Absent: nothing is wrong.
	Code    Code   `cbor:"8,keyasint,omitempty"`
	Message string `cbor:"9,keyasint,omitempty"` // see Code. Absent: nothing is wrong.
	// TotalItems and TotalBytes count what the node has produced for the command up to and including this frame, also what was left out
	// or lost on any way. They tell a receiver exactly how much it misses, even if a sender began a new numbering. A frame without data
	// carries only these counts. Absent: nothing, or an agent or LO that does not count; then at least what LostItems and Seq say was
	// lost.
	TotalItems uint64 `cbor:"10,keyasint,omitempty"`
	TotalBytes uint64 `cbor:"11,keyasint,omitempty"` // see TotalItems, in bytes of Data. Absent: nothing, or it is not counted.
}

func (m *Frame) version() uint16 { return m.V }

// levels is how deep an item of a Frame may be.
const levels = 16

// FirstItem returns the length of the first item of the Data of a Frame, in bytes; 0 where it does not begin with one.
func FirstItem(data []byte) int { return items.First(data, levels) }

// Credit goes from the reader of a live command down to the node, every few seconds: it lets the node send, and says that the output is still
// read. A node that receives none for LeaseMillis ends the command.
type Credit struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	// Bytes is how much data the node may have sent since it began, in bytes, all in all. A lower number than before means nothing.
	Bytes uint64 `cbor:"1,keyasint"`
	// End says that the output is no longer read. Absent: it is read.
	End bool `cbor:"2,keyasint,omitempty"`
}

func (m *Credit) version() uint16 { return m.V }

// TimeAsk asks the tier above for the time of the CO. It is sent when a command waits for it, and never otherwise.
type TimeAsk struct {
	V     uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	Nonce uint64 `cbor:"1,keyasint"` // Nonce differs between any two questions
}

func (m *TimeAsk) version() uint16 { return m.V }

// Time answers a TimeAsk. When the answer arrives, the time at the CO is between UnixMillis and UnixMillis plus the time since the question, measured by a
// clock that runs while the machine sleeps (CLOCK_BOOTTIME). So a receiver knows that a deadline has not passed, even if its own clock is wrong.
type Time struct {
	V     uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	Nonce uint64 `cbor:"1,keyasint"` // that of the question
	// UnixMillis is the time of the CO, in milliseconds since 1970; an LO gives the latest that it can be. Absent: an LO has not learnt it since its boot.
	UnixMillis int64 `cbor:"2,keyasint,omitempty"`
}

func (m *Time) version() uint16 { return m.V }

// String returns the command in a few words, for logs.
func (c *Command) String() string { return fmt.Sprintf("%s %s", c.Kind, c.ID) }
