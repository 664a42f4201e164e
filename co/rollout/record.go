package rollout

import (
	"fmt"
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A Rollout is a revision of a fleet deployment, and how far it has spread.
type Rollout struct {
	Fleet    protocol.DeploymentName `json:"fleet" doc:"name of the fleet deployment"`
	Revision int64                   `json:"revision" doc:"1 is the first of the fleet deployment"`
	Digest   string                  `json:"digest" doc:"of what runs at its sites: equal ones run the same"`
	Asks     string                  `json:"-"` // digest of that and of the targets
	Problem  string                  `json:"problem,omitempty" doc:"why its sites cannot be found anew: those that it has stay; absent: they can"`
	App      string                  `json:"app,omitempty"`        // id of the application; absent: the files have a fault
	Version  string                  `json:"appVersion,omitempty"` // of the application; absent likewise
	Commit   string                  `json:"commit" doc:"of the deployments repo that made it"`
	State    State                   `json:"state" enum:"running,paused,done,aborted,superseded,refused"`
	Wave     int                     `json:"wave" doc:"the current wave, from 0"`
	Settled  *time.Time              `json:"settledAt,omitempty" doc:"since when all of the wave works; absent: it does not"`
	Promoted int                     `json:"promoted" doc:"how many waves a person let pass"`
	Reason   string                  `json:"reason" doc:"what it waits for, or why it ended"`
	By       string                  `json:"by,omitempty" doc:"who paused, resumed, promoted or aborted it last"`
	Created  time.Time               `json:"createdAt"` // when the revision was recorded
	Changed  time.Time               `json:"changedAt"` // when the rollout last changed
	// Waves are the counts of each wave; only the latest rollout of a fleet deployment has sites.
	Waves []Counts `json:"waves" doc:"sites of each wave by where they stand; empty but for the latest rollout of a fleet deployment"`
}

// PausedReason is the reason of a rollout that a person has paused.
const PausedReason = "paused by a person"

// RemovedReason is the reason of a rollout that has ended because its fleet deployment was removed.
const RemovedReason = "the fleet deployment was removed"

// Name names a rollout in a message.
func (r *Rollout) Name() string { return fmt.Sprintf("revision %d of %s", r.Revision, r.Fleet) }

// Progress returns what Decide wants to know.
func (r *Rollout) Progress(recent int, answers []Answer) Progress {
	g := Progress{Answers: answers, State: r.State, Reason: r.Reason, Changed: r.Changed, Wave: r.Wave, Promoted: r.Promoted, Recent: recent, Counts: r.Waves}
	if r.Settled != nil {
		g.Settled = *r.Settled
	}
	return g
}

// A SiteState is where a site stands in the latest rollout.
type SiteState string

// The states of a site. Each but Left is one of Counts.
const (
	SiteWaiting  SiteState = "waiting"  // not admitted yet
	SiteMoving   SiteState = "moving"   // admitted and online, and not running the revision yet
	SiteAway     SiteState = "away"     // admitted and offline
	SiteHealthy  SiteState = "healthy"  // it runs the revision
	SiteFailed   SiteState = "failed"   // the revision does not work there
	SiteConflict SiteState = "conflict" // the site has a deployment of its own under the name
	SiteLeft     SiteState = "left"     // not meant any more
)

// A Member is a site of a fleet deployment.
type Member struct {
	Site     protocol.SiteID `json:"site"`
	Revision int64           `json:"revision" doc:"that it may have; 0: none"`
	// Digest is that of the revision: a number may mean another one in a record that was set back, or after a removal.
	Digest   string     `json:"-"`
	Wave     int        `json:"wave" doc:"of the latest rollout, from 0"`
	State    SiteState  `json:"state" enum:"waiting,moving,away,healthy,failed,conflict,left" doc:"in the latest rollout; left: it is not meant any more"`
	Reason   string     `json:"reason,omitempty"`     // why it is in its state; absent: none
	Admitted *time.Time `json:"admittedAt,omitempty"` // when it was admitted; absent: it was not
	Changed  time.Time  `json:"changedAt"`            // when its state last changed
	// Groups are those that the revision names, and that the site was in when it was admitted.
	Groups []string `json:"groups,omitempty"`
}

// A Placed is a site with its wave in a new rollout.
type Placed struct {
	Site   protocol.SiteID
	Groups []string // groups of the site that the file names
	Wave   int      // its index
	Rank   uint64   // the smaller ones are admitted first
}

// Seen is the state of a rollout that a person saw before acting on it. The zero Seen is anything.
type Seen struct {
	// Revision is that of the rollout; 0: any.
	Revision int64
	// Wave is the current one, from 0; nil: any.
	Wave *int
}

// Check returns a Conflict where a rollout is another one than was seen.
func (s Seen) Check(r *Rollout) error {
	switch {
	case s.Revision != 0 && s.Revision != r.Revision:
		return protocol.Errorf(protocol.Conflict, "the rollout is that of revision %d, and not of %d any more: look at it once more", r.Revision, s.Revision)
	case s.Wave != nil && *s.Wave != r.Wave:
		return protocol.Errorf(protocol.Conflict, "%s is in wave %d, and not in wave %d: look at it once more", r.Name(), r.Wave+1, *s.Wave+1)
	}
	return nil
}

// An Action is what a person has a rollout do.
type Action string

// The actions.
const (
	Pause   Action = "pause"   // admit no further sites
	Resume  Action = "resume"  // go on after a pause
	Promote Action = "promote" // go on to the next wave
	Abort   Action = "abort"   // end the rollout; sites keep what they have unless it is rolled back
)
