// Package uplink carries the site's journal to the central orchestrator, in
// order, each event once in its database, however often the link or either end
// breaks. It sends batches with a window and forgets nothing before an Ack: that
// a broker has taken a batch (PUBACK) says nothing about the centre's disk, and
// is used for pacing only.
//
// # What the centre must do
//
// The centre keeps for each lane of a site a position, (epoch, seq), which is
// empty for a new one, and the set of epochs that it left. For each
// protocol.Batch b it does the following in one transaction, with the lane's
// position locked:
//
//  1. b.Count is 0: b asks, or tells of the backlog. Change no position.
//  2. b.Epoch is not the position's epoch. If it is one that was left, or b.First
//     is not b.Trimmed+1, change nothing. Else leave the old epoch, move the
//     position to (b.Epoch, b.Trimmed), and record a gap: b.Trimmed events of this
//     epoch, and an unknown number of the old one, are lost. There is no gap
//     where the lane is new and b.Trimmed is 0.
//  3. b.Trimmed is greater than seq. If b.First is not b.Trimmed+1, change
//     nothing. Else record a gap of b.Trimmed-seq events and move seq to b.Trimmed.
//  4. b.First is greater than seq+1: something before it is missing. Change nothing.
//  5. Store the events whose sequence, First+n for the n-th, is greater than seq,
//     in order; events of kind superseded take a number and do nothing else. Move
//     seq to the last one.
//
// In each case it then publishes protocol.Ack with the position that its database
// holds, after the commit. Where the commit fails it publishes nothing and
// refuses the batch with kind Unavailable. It never refuses a batch for what one
// event says: an event that it cannot apply is recorded as an anomaly, because
// the site can only send it again. After a gap the centre's view of the site is
// not to be trusted until the next protocol.Snapshot event, which replaces it.
//
// # What the site does
//
// After each connection, and after any trouble, it asks with a probe and sends
// nothing else until an Ack tells where the centre stands:
//
//   - within the journal, or nowhere yet while the journal still holds everything:
//     it goes on there.
//   - before what the site still holds, or in another epoch (the centre was set
//     up anew or put back from a backup, or the site lost its journal): it has
//     Resync append a Snapshot event to the journal, and sets Trimmed in the
//     batches from then on, which it never does otherwise. So a centre that passes
//     over a gap knows that a snapshot follows.
//   - still in another epoch 2 × ResendAfter after it was told: it has left this
//     one. The journal gets a new epoch, and the centre a snapshot.
//   - past everything that this journal ever held: the site was put back from a
//     copy and would give numbers twice. The journal gets a new epoch, and the
//     centre a snapshot.
//
// # Lanes
//
// A journal has one sequence, and the centre takes it without gaps, so that
// nothing in it can overtake. So each rule of machine data has a journal, an
// Uplink and a position at the centre of its own, which is called a lane; all that
// is said above holds for each lane by itself. Where the events' lane has a
// Snapshot, Options.Resync of a data lane appends what its receiver holds on to:
// all retained messages, between RetainedBegin and RetainedEnd. It is called, too,
// when a DataLost event of the lane is about to be sent: what was dropped may have
// been the last word on a topic.
//
// The lanes of a link share a Gate. The events go at once, the others by priority
// and only as far as the link stays nearly free, so that an alarm does not wait
// behind telemetry: behind half a second of it on a slow link, and a tenth of a
// second on a fast one. How fast the link is, and how long its way, is learned from
// the Acks. One message is never taken apart, so that a large one on a slow link
// makes all wait. A priority that waits gets a twelfth of what goes before it.
//
// # Time
//
// Each batch says when it was sent, by the clock of the lane's journal, which also
// stamped its events and does not go backwards while there are any (see
// journal.Journal.Now). So the centre knows the age of an event, and what is left
// of a message's expiry, whatever its own clock says. A message of machine data
// whose time is up before it can be sent is sent as an empty event of kind
// data_expired in its place; batches are made anew each time they are sent, and
// looked through again.
//
// # What is told
//
// Each batch tells the Backlog of its lane. An Ack with Ask makes the lane send one
// without events at once, though not more often than once a second. It tells, and
// does not ask: its Ack is taken for a position only where it says something new.
package uplink
