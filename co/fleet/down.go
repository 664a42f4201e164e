package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// DataDropped is the kind of the event that reports how many messages of machine data
// for a site were dropped under the bounds of their rule.
const DataDropped = "data_dropped"

// A DownMessage is a message of machine data for a site.
type DownMessage struct {
	Site protocol.SiteID
	// Rule is the first that matches the message.
	Rule protocol.DataRule
	// Message is what the site is sent: Topic is whole, QoS and ExpiryMillis are
	// those that the rule leaves.
	Message protocol.DataMessage
	// Volatile is set for a message that is to be sent only while the site is connected.
	Volatile bool
}

// A DownStream is the stream of one rule's messages to a site.
type DownStream struct {
	Rule string
	// Epoch is what the sequences count in; it is empty where it was not asked for.
	Epoch string
	// Last is the sequence given last, Acked the highest that the site has.
	Last, Acked uint64
	Bytes       uint64        // queued
	OldestAge   time.Duration // of the first message that waits
	Dropped     uint64        // messages that were dropped at the bound
	// Retains is set where the site should hold retained messages of the stream.
	Retains bool
	// Stale is set where those may differ from what the CO's record says.
	Stale bool
}

// Queued is how many messages the site does not have yet.
func (l DownStream) Queued() uint64 {
	if l.Last <= l.Acked {
		return 0
	}
	return l.Last - l.Acked
}

// A DownRead asks for the messages of a stream that follow a sequence.
type DownRead struct {
	Site  protocol.SiteID
	Rule  string
	After uint64 // the sequence before the first one
	// MaxBytes bounds the answer; one message is always in it.
	MaxBytes int
	// MaxAge drops what is older, 0: nothing.
	MaxAge time.Duration
	// Sender names the replica that asks. While another one sends there is no answer.
	Sender string
}

// A DownBatch is the answer to a DownRead.
type DownBatch struct {
	Epoch string // of the stream
	// Busy is how long another replica may go on to send the stream; the rest of the
	// answer is then empty.
	Busy time.Duration
	Now  time.Time
	// Trimmed is the highest sequence that the record no longer holds.
	Trimmed uint64
	// Last is the sequence given last in the stream.
	Last uint64
	// Events have consecutive sequences. What has expired is of kind DataExpired.
	Events []protocol.Event
}
