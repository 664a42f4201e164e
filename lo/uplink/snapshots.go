package uplink

import (
	"context"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// snapshotTries is how many snapshots in a row events may overtake.
const snapshotTries = 16

const snapshotKey = "snapshot"

// StateLog is what Snapshots needs of the journal.
type StateLog interface {
	// Last returns the sequence of the last record.
	Last() uint64
	// AppendState appends an event that supersedes the one of the same key.
	AppendState(ctx context.Context, key string, body []byte) (seq uint64, err error)
}

// Snapshots returns the Resync of the events' stream: it appends one Snapshot event.
//
// receive returns the whole current state of the site. It must show every event that
// was in the journal when it was called: so change the state before the Append, or
// hold over both a lock that receive takes. after is called once the snapshot is in the
// journal: what follows from it, and is not in it, comes after it.
// now stamps the event; unsynced reports whether nothing keeps that clock in step.
func Snapshots(log StateLog, receive func() protocol.Snapshot, now func() time.Time, unsynced func() bool, after func()) func(ctx context.Context, m Missed) (uint64, error) {
	return func(ctx context.Context, m Missed) (seq uint64, err error) {
		for range snapshotTries {
			before := log.Last()
			s := receive()
			s.V, s.Lost, s.Cause = protocol.Version, m.Events, m.Cause
			seq, err = log.AppendState(ctx, snapshotKey, protocol.Marshal(protocol.Event{
				UnixMillis: now().UnixMilli(), Kind: protocol.SnapshotEvent, Body: protocol.Marshal(s), Unsynced: unsynced(),
			}))
			if err != nil {
				return 0, err
			}
			if seq == before+1 {
				after()
				return seq, nil
			}
		}
		return seq, protocol.Errorf(protocol.Conflict, "events overtook the snapshot %d times", snapshotTries)
	}
}
