package fleet

import "github.com/colonyfleet/colony/protocol"

// A SiteHeld is what a site reported to hold of its desired state.
type SiteHeld struct {
	Site protocol.SiteID
	Held protocol.Held
	// Lost says that it holds nothing, although it had adopted something.
	Lost bool
	// Unfollowed says that the record went on above what the site holds, and was not compared
	// with the deployments repo since.
	Unfollowed bool
	// Awaited says that the record was restored from a backup, and the site has not reported since what it holds.
	Awaited bool
	// Beyond says that the record was restored from a backup, and that the site holds a later state than the backup has, also where the
	// record is above that by now; or that it has lost what it held, which may have been one.
	Beyond bool
}

// Kinds of events about the positions of desired states.
const (
	// DesiredEpochRaised: the site holds a desired state that the CO does not remember, and the
	// CO goes on above it.
	DesiredEpochRaised = "desired_epoch_raised"
	// DesiredPositionRefused: the same, and a person is to decide whether the CO goes on.
	DesiredPositionRefused = "desired_position_refused"
)

// A Raise says how the CO goes on above what a site holds.
type Raise struct {
	// Accepted: a person has accepted a position however far it is.
	Accepted bool
	// Followed: the record was compared with the deployments repo, as of Commit.
	Followed bool
	Commit   string
}
