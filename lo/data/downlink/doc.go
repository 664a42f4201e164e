// Package downlink is the LO's receiver of machine data on its way down. It has the
// messages of the CO's batches published on the site's broker, and acknowledges
// them once its position in their stream is on disk. The contract is that of
// package stream, for each rule's stream by itself.
//
// Messages of a stream are published in order. After a crash between the publishing
// and the position on disk the last batch is published again: each message at least
// once. Its stream and sequence do not change, so that a subscriber can recognize
// the repetition.
//
// A stream of which nothing is known, because the state of the LO was lost or is
// damaged, has the sequence 0 of no epoch: the CO then sends everything again that
// should be retained.
package downlink
