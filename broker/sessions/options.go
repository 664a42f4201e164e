package sessions

import (
	"log/slog"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/bounds"
	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Limits bound what sessions take. Zero means the default.
type Limits = bounds.Limits

// Options configure a Store.
type Options struct {
	Dir string
	// Disk is where Dir is; nil: the file system of the machine.
	Disk   disk.FS
	Limits Limits
	Logger *slog.Logger
	// Dropped is called with how many messages a session has lost, and why. It returns at
	// once and calls nothing of this package.
	Dropped func(n int, reason string)
	// Damaged is called with each file that did not hold what was stored in it, when the store is opened, and
	// with a segment of which a message cannot be read later, once each. It may wait; it calls nothing of this
	// package. Nil: it is not called.
	Damaged func(*statefile.Damage)
	// Now reads the clock of the machine, with its monotonic part. Nil: time.Now.
	Now func() time.Time

	segmentBytes int64 // from which size on a segment ends, with a checkpoint; 0: 16 MiB
}

// The reasons for which a session loses messages.
const (
	DroppedSession = "session_bound"  // the bound of the session
	DroppedTotal   = "sessions_bound" // the bound of all sessions together
	DroppedExpired = "expired"        // the message has expired
	DroppedDamaged = "damaged"        // the message on the disk is damaged
	DroppedVoid    = "void_will"      // a last will of which the log may lack that it is not to be sent
)

// bodiesInMemory bounds the content of queued messages that stays in memory, in bytes. The
// rest is read from the log when it is sent.
const bodiesInMemory = 32 << 20

// nearby is up to how many messages a session may be late for their content to stay in memory.
const nearby = 1024

// A Subscription is what a session asked for with a filter.
type Subscription = state.Subscription

// A Delivery says how a session gets a message.
type Delivery = state.Delivery

// A Body is the content of a message.
type Body = state.Body

// A Will is a last will that waits for its delay.
type Will = state.Will

// Never is the session expiry interval of a session that does not expire.
const Never = state.Never
