// Package journal holds what a site has yet to deliver: an append-only log on disk of every event
// that the CO must receive. An entry is on disk when Append returns, and it stays there until Trim
// says that the tier above has it on disk too.
//
// Records are numbered from 1 without gaps within an epoch. A record that is dropped before its
// delivery keeps its number, and is read back as an empty event of kind protocol.Superseded. That
// holds for a State record that a later one of the same key replaced, and for a Data record that
// was dropped under a bound.
//
// The bound in bytes has a declared policy for each class. State and Event are never dropped:
// Append answers protocol.Unavailable, which the broker turns into back-pressure. Data is dropped
// oldest first, in whole segments, and the loss is counted in a protocol.DataLost event of the same
// journal. It is dropped likewise when it is older than a bound by age. A damaged record is given
// up and counted in the same way, and no other with it.
//
// Layout of the directory, all integers little-endian:
//
//	lock              held with flock by the process that has the journal open
//	meta              format version and epoch, a state file; replaced atomically
//	trim              epoch, trim mark and the last durable sequence, in two slots;
//	                  synced before a segment is removed
//	<20 digits>.seg   a segment, named after its first sequence; the last one is
//	                  appended to, the others are sealed
//	*.damaged-<n>     what was damaged, before it was salvaged; the newest two
//	*.tmp             left by a crash; removed at the next open
//
// DESIGN.md beside this file says why it is built so.
package journal
