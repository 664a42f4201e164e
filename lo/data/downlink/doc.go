// Package downlink is the LO's end of machine data on its way down: it takes the
// batches of the CO, has their messages published on the site's broker, and
// acknowledges them once its place in each lane is on disk.
//
// Messages of a lane are published in order. After a crash between the publishing
// and the place on disk the last batch is published again: each message at least
// once. Its lane and sequence, which do not change, tell a repetition.
//
// A batch is taken where it follows the place in its lane, or where its sender says
// that what lies between is gone for good. In all other cases the answer is the
// place, from which the sender goes on. A lane of which nothing is known, because
// the state of the LO was lost or is damaged, has the place 0 of no epoch: the CO
// then sends everything again that should be retained.
package downlink
