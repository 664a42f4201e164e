// Package stream is the contract of a numbered stream between two tiers. Its sender gives each event the next
// sequence of an epoch, packs consecutive events into a protocol.Batch, and keeps each event until a protocol.Ack
// says that the receiver has it. The events of a site are one stream; so are the machine data of each of its rules,
// in either direction. The package does no I/O and has no clock.
//
// # The receiver
//
// A receiver keeps one Position for each stream: an epoch, the highest sequence, and the epochs that it has retired.
// For each batch b it does the following as one step, with the position locked; Position.Follow is that step.
//
//  1. b.Count is 0: b asks, or reports the backlog. Change no position.
//  2. b.Epoch is not the position's epoch. If it is a retired one, or b.First is
//     not b.Trimmed+1, change nothing. Else retire the old epoch, move the
//     position to (b.Epoch, b.Trimmed), and record a gap: at most b.Trimmed events of this
//     epoch, and an unknown number of the old one, are lost. There is no gap
//     where the stream is new and b.Trimmed is 0. Where b.Previous is the old epoch,
//     the events up to the lower one of seq and b.Previous.Through are those of this
//     epoch too: they are not lost, and the position is not moved to before their end.
//  3. b.Trimmed is greater than seq. If b.First is not b.Trimmed+1, change
//     nothing. Else record a gap of b.Trimmed-seq events and move seq to b.Trimmed.
//  4. b.First is greater than seq+1: something before it is missing. Change nothing.
//  5. Store the events whose sequence, First+n for the n-th, is greater than seq,
//     in order; events of kind superseded occupy a number and do nothing else. Move
//     seq to the last one.
//
// In each case it then answers with an Ack of the position that is durable, which names the epoch of b where that is
// a retired one. Where it cannot store, it does not answer. It never refuses a batch for what one event says, because
// the sender can only send it again: an event that it cannot read or apply occupies its number and is reported at the
// receiver.
//
// After a gap the receiver's view may be wrong until the sender has sent its whole state: a protocol.Snapshot in the
// stream of events, all retained messages between RetainedBegin and RetainedEnd in a stream of machine data.
//
// # The sender
//
// After each connection, and after any trouble, a sender asks with a batch of Count 0 and sends nothing else until an
// Ack says where the receiver stands. It goes on from there, with a Window of batches in flight; it sends again what
// no Ack came for in time, and ignores an Ack that does not move on. Where the receiver lacks what the sender no
// longer has, or stands in another epoch, the sender declares the gap with Trimmed and sends its state. Where an Ack
// names the sender's epoch as retired, the sender begins a new one at once; so it does where the receiver, of an
// earlier release, still stands in another epoch although the sender's was declared to it (see Refusal). Where the
// receiver stands past everything that the sender ever sent, the sender was put back from a copy: it must not give a
// sequence twice.
package stream
