// Package control decides for a site. It keeps the record of each node, folds the
// nodes' messages into it, places the deployments of the site's desired state, and
// publishes for each node what it shall run.
//
// A Site holds the records; Accept changes them, from any goroutine. A Loop compares
// them with the desired state and is the only one that publishes a NodeDesired. An
// Adopter applies the desired states that arrive from the CO. Package trim forgets the
// events that the CO has, once the stored records contain them.
//
// Each change follows one order: its events go to the journal, then the record to
// disk, then the NodeDesired to the node. A crash between two of these steps is
// repaired by Open, which replays the journal, or by the Loop's next Reconcile.
package control

import (
	"context"
	"crypto"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/lo/reconciler"
	"github.com/colonyfleet/colony/placement/demand"
	"github.com/colonyfleet/colony/protocol"
)

const (
	// DefaultNodeLostAfter is the NodeLostAfter of an LO whose configuration names none.
	DefaultNodeLostAfter = time.Minute
	// DefaultPresenceGrace is the PresenceGrace of an LO whose configuration names none:
	// 1.5 times the keep-alive of an agent.
	DefaultPresenceGrace = 45 * time.Second
)

// A Journal holds the events of the site until the CO has them.
type Journal interface {
	// Append writes facts next to each other and returns the sequence of the last
	// one. They are on disk when it returns nil, and none is when it returns an error.
	Append(ctx context.Context, facts []nodes.Fact) (last uint64, err error)
	// Bodies returns encoded events after a sequence; bodies[i] has sequence first+i.
	Bodies(after uint64, maxRecords, maxBytes int) (first uint64, bodies [][]byte, err error)
	// Epoch names the journal: sequences of two epochs cannot be compared.
	Epoch() string
	// Last returns the newest sequence, 0 if there is none.
	Last() uint64
}

// A Store keeps the records over a restart. Each Save is durable when it returns nil.
type Store interface {
	// Load returns what was saved, without the files that are damaged.
	Load() (site nodes.Site, records []*nodes.Record, damaged []*statefile.Damage, err error)
	// SaveSite stores the record of the site.
	SaveSite(site nodes.Site) error
	// SaveNode stores the record of a node.
	SaveNode(r *nodes.Record) error
	// RemoveNode removes the record of a node, where there is one.
	RemoveNode(id protocol.NodeID) error
}

// A Desired holds the site's desired state and the specs that it names.
type Desired interface {
	// Current returns the desired state in force; ok is false if there is none yet.
	Current() (m protocol.SiteDesired, ok bool)
	// Spec returns a spec by its digest; ok is false where the site does not have it.
	Spec(d protocol.Digest) (s reconciler.Spec, ok bool)
	// Demand returns what a version asks of a node; zero for one that is not stored.
	Demand(d protocol.Digest) demand.Demand
	// Offer puts an encoded SiteDesired into force; adopted is false for the one that
	// is in force already. Errors of kind Invalid and Conflict refuse it, all others
	// may pass.
	Offer(ctx context.Context, payload []byte) (adopted bool, err error)
	// Keep removes the specs that neither the state in force nor keep names.
	Keep(keep []protocol.Digest) error
}

// Options of a Site. All but Now, Unsynced, Clock, ProblemChanged and Jitter must be given.
type Options struct {
	Site protocol.SiteID
	// Version is the LO's; the CO learns it with the start.
	Version string
	Journal Journal
	Store   Store
	Desired Desired
	// Certificate returns the LO's certificates, its own first, in DER, and its key, with which it signs
	// the desired states of nodes; none: it has none yet. Nil: it never has one.
	Certificate func() ([][]byte, crypto.Signer)
	// NodeLostAfter is how long a node may be offline before an install or an update
	// on it counts as failed.
	NodeLostAfter time.Duration
	// PresenceGrace is how long after Open a node that was online before may be
	// silent until it counts as offline.
	PresenceGrace time.Duration
	Logger        *slog.Logger
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Unsynced reports whether nothing keeps Now in step. Nil: it is in step.
	Unsynced func() bool
	// Clock is what is known of time without a clock that can be set. Nil: what has passed since Open, as if the machine was started then.
	Clock func() nodes.Clock
	// ProblemChanged is called where the answer of Timeless has changed. Nil: it is not reported.
	ProblemChanged func(ctx context.Context)
	// Jitter spreads the retries of nodes that failed together; the Loop alone uses
	// it. Nil: the process's own source.
	Jitter *rand.Rand
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.ProblemChanged == nil {
		o.ProblemChanged = func(context.Context) {}
	}
	if o.Unsynced == nil {
		o.Unsynced = func() bool { return false }
	}
	if o.Certificate == nil {
		o.Certificate = func() ([][]byte, crypto.Signer) { return nil, nil }
	}
	if o.Clock == nil {
		began := time.Now()
		o.Clock = func() nodes.Clock { return nodes.Clock{Boot: began.String(), SinceBoot: time.Since(began)} }
	}
	return o
}

// siteFact returns an event that is about the site and no single node. A later fact
// of the same key, unless that is empty, may take its place in the journal.
func siteFact(kind protocol.EventKind, key string, body any, now time.Time) nodes.Fact {
	return nodes.Fact{Key: key, Event: protocol.Event{UnixMillis: now.UnixMilli(), Kind: kind, Body: protocol.Marshal(body)}}
}
