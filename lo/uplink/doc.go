// Package uplink sends the site's journals to the CO, in order. Each event is once in the CO's
// database, even if the link or either end breaks often. It is the LO's sender of streams; package
// stream has the contract of both ends. It keeps a window of batches in flight and trims nothing
// before an Ack: a PUBACK, by which a broker acknowledges a batch, says nothing about the CO's
// disk, and is used for pacing only.
//
// # The receiver
//
// The CO follows the steps of package stream for each batch in one transaction, with the stream's
// position locked, and publishes the Ack after the commit. Where the commit fails it publishes
// nothing and refuses the batch with kind Unavailable. An event that it cannot apply is recorded as
// an anomaly. After a gap its view of the site may be wrong until the next protocol.Snapshot event,
// which replaces it.
//
// # The sender
//
// After each connection, and after any trouble, the link asks with a probe and sends nothing else
// until an Ack says where the CO stands:
//
//   - within the journal, or nowhere yet while the journal still holds everything:
//     the link goes on there.
//   - before what the site still holds, or in another epoch (the CO was set
//     up anew or put back from a backup, or the site lost its journal): the link has
//     Resync append a Snapshot event to the journal, and sets Trimmed in the
//     batches from then on, which it never does otherwise. So a CO that passes
//     over a gap knows that a snapshot follows.
//   - in another epoch, having retired this one, as the Ack says: the site was put back
//     from a copy. The journal gets a new epoch, and the CO a snapshot that says why. The
//     same where a CO of an earlier release, whose Acks do not say it, is still in
//     another epoch 2 × ResendAfter after Trimmed declared this one.
//   - where this link is, and its record of the site lacks something (Resync of the Ack): the link
//     has Resync append a Snapshot event, once a minute at most. Nothing was lost on the way, so
//     that no gap is declared.
//   - past everything that this journal ever held: the site was put back from a
//     copy and would give sequences twice. The journal gets a new epoch, and the
//     CO a snapshot.
//
// # Streams
//
// A journal has one sequence, which the CO follows without gaps, so that no event can overtake
// another. So each rule of machine data has a stream of its own: a journal, an Uplink and a
// position at the CO. Where the stream of events has a Snapshot, Options.Resync of a data stream
// appends what its receiver holds: all retained messages, between RetainedBegin and RetainedEnd. It
// is called, too, when a DataLost event of the stream is about to be sent: a message that was
// dropped may have been the last of its topic.
//
// The streams of a link share a pace.Gate. The events go at once, the others by priority
// and only as far as the link stays nearly free, so that an alarm does not wait
// behind telemetry: behind half a second of it on a slow link, and a tenth of a
// second on a fast one. The Gate learns from the Acks how fast the link is, and how
// long its way. One message is never split, so that a large one on a slow link
// makes all wait. A priority that waits gets a twelfth of what goes before it.
//
// # Time
//
// Each batch says when it was sent, by the clock of the stream's journal, which also stamped its
// events and does not go backwards while there are any (see journal.Journal.Now). So the CO knows
// the age of an event, and what is left of a message's expiry, whatever its own clock says. A
// message of machine data that expires before it can be sent is sent as an empty event of kind
// data_expired instead of it; batches are built anew, and their events checked for expiry, each
// time they are sent.
//
// # Backlog
//
// Each batch reports the Backlog of its stream. An Ack with Ask makes the link send one without
// events at once, though not more often than once a second. That batch is a report and no probe:
// its Ack counts as a position only where it moves on.
package uplink
