// Package downlink is the CO's end of machine data on its way to the sites. What a
// client of the CO's broker publishes for a site is in PostgreSQL before it is
// acknowledged, and stays there until the site has it.
//
// Nothing is sent to a site before it says where it stands: a batch without events
// asks, the Ack answers. The contract is that of package stream. From there the batches of each rule follow one another in
// order, a few at a time; the Acks move on, and where none comes what was sent is
// sent again. So a lost, doubled or late batch does no harm: the site accepts what
// follows its position and ignores the rest. Of several replicas of the CO that a
// site's messages reach, one sends; another takes over when that one has been
// silent for half a minute, or the site connects to it.
//
// How long a message is still valid is counted by the clock of PostgreSQL alone,
// from its arrival to the moment that it is sent.
//
// There is one goroutine for each connected site with something to send, and none
// for the others.
package downlink
