package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A DataRule is a rule of a site's machine data with what only the CO does.
type DataRule struct {
	protocol.DataRule

	// Store puts the messages into PostgreSQL, for Keep. A Keep of 0 means without end.
	Store bool
	Keep  time.Duration
	// Metric is the name of the Prometheus metric that the numbers of the messages
	// become by remote write; empty: none. It asks for Store.
	Metric string
	// Fields are JSON pointers (RFC 6901) to the numbers of a JSON payload, each of
	// which becomes a series with the label field. Nil: the payload is the number.
	Fields []string
}

// A Stream is what the CO knows of one stream of a site: of its events (Name "") or
// of one of its data rules.
type Stream struct {
	Name  string
	Epoch string // of its sender
	// Committed is the last sequence in the database, Last the newest that the site
	// had when it last reported.
	Committed, Last uint64
	Bytes           uint64        // on the disk of the site, at Reported
	OldestAge       time.Duration // at Reported
	Dropped         uint64        // records that the sender dropped at its bound
	Expired         uint64        // records that expired before they were sent
	RTT             time.Duration // 0: not measured
	BytesPerSecond  uint64
	// Reported is when the site last reported the stream; zero: never.
	Reported time.Time
}

// Queued is how many records are still to come, by the last report of the site.
func (l Stream) Queued() uint64 {
	if l.Last <= l.Committed {
		return 0
	}
	return l.Last - l.Committed
}
