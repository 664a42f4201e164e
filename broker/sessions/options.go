package sessions

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/colonyfleet/colony/broker/sessions/state"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// Limits bound what sessions take. Zero means the default.
type Limits struct {
	// Off says that there are none: sessions end with their connection.
	Off bool `yaml:"off,omitempty"`
	// Expiry is the longest that a session outlives its connection. One of MQTT 3.1.1, which
	// names no time, gets this one. Default 30 days.
	Expiry time.Duration `yaml:"expiry,omitempty"`
	// Sessions is how many sessions there may be. Default 20,000.
	Sessions int `yaml:"sessions,omitempty"`
	// PerIdentity is how many sessions one identity may have. Default 1,000.
	PerIdentity int `yaml:"perIdentity,omitempty"`
	// PerAddress is how many sessions may have been made from one network address, whatever
	// the user names. Default 5,000.
	PerAddress int `yaml:"perAddress,omitempty"`
	// Messages is how many messages are stored for one session; past it the oldest that was not
	// sent is dropped. Default 100,000.
	Messages int `yaml:"messages,omitempty"`
	// Bytes is the same in bytes. Default 64 MiB.
	Bytes int64 `yaml:"bytes,omitempty"`
	// TotalMessages is how many messages are stored in the queues of all sessions; past it
	// the session that holds most loses its oldest: those that were not sent, then sent ones,
	// with its connection. Default 1,000,000.
	TotalMessages int64 `yaml:"totalMessages,omitempty"`
	// TotalBytes is the same in bytes; a message in several queues counts once. On disk is
	// up to about three times as much, and 64 MiB. Default 512 MiB.
	TotalBytes int64 `yaml:"totalBytes,omitempty"`
}

const day = 24 * time.Hour

func (l *Limits) defaults() {
	fill(&l.Expiry, 30*day)
	fill(&l.Sessions, 20_000)
	fill(&l.PerIdentity, 1000)
	fill(&l.PerAddress, 5000)
	fill(&l.Messages, 100_000)
	fill(&l.Bytes, 64<<20)
	fill(&l.TotalMessages, 1_000_000)
	fill(&l.TotalBytes, 512<<20)
}

func fill[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate returns every fault of l, joined.
func (l Limits) Validate() error {
	var errs []error
	if l.Expiry != 0 && (l.Expiry < time.Second || l.Expiry > 10*365*day) {
		errs = append(errs, fmt.Errorf("session expiry %s: want 1 s to 10 years", l.Expiry))
	}
	if min(l.Sessions, l.PerIdentity, l.PerAddress, l.Messages) < 0 || min(l.Bytes, l.TotalMessages, l.TotalBytes) < 0 {
		errs = append(errs, errors.New("a negative limit of sessions: want 0 for the default"))
	}
	return errors.Join(errs...)
}

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
	// package. Nil: nobody is called.
	Damaged func(*statefile.Damage)
	// Now reads the clock of the machine, with its monotonic part. Nil: time.Now.
	Now func() time.Time

	segmentBytes int64 // from which size on a segment ends, with a checkpoint; 0: 16 MiB
}

// The reasons for which a session loses messages.
const (
	DroppedSession = "session_bound" // the bound of the session
	DroppedTotal   = "sessions_bound"
	DroppedExpired = "expired"
	DroppedDamaged = "damaged"
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
