// Package bounds has what the sessions of a broker may take.
package bounds

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Asked is the session expiry that a CONNECT asks for, in seconds; interval is what it says of it in MQTT 5. MQTT 3.1.1 has
// none: a session is for ever, or ends with its connection. [MQTT-3.1.1, 3.1.2.4]
func Asked(version byte, clean bool, interval uint32) uint32 {
	switch {
	case version == 5:
		return interval
	case clean:
		return 0
	}
	return math.MaxUint32 // it does not expire
}

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
	// PerAddress is how many sessions may have been made from one network address, under all user
	// names together. Default 5,000.
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

// Defaults sets what is zero.
func (l *Limits) Defaults() {
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
