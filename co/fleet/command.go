package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// The states of a command at a site. Those of a node are of package command.
const (
	CommandWaiting   = "waiting"   // the site has not reported that it has it
	CommandRunning   = "running"   // some nodes have not ended
	CommandEnded     = "ended"     // each node that is meant has ended
	CommandRefused   = "refused"   // the site refuses it as a whole; Code says why
	CommandExpired   = "expired"   // the CO gave it up: its deadline is over, and not all results came
	CommandCancelled = "cancelled" // it was cancelled before the site reported anything
)

// CommandOpen reports whether something may still come of a command at a site.
func CommandOpen(state string) bool { return state == CommandWaiting || state == CommandRunning }

// A CommandTarget says which nodes of a site are meant by a command: one of the three is set.
type CommandTarget struct {
	Site     protocol.SiteID   `json:"site"`
	Nodes    []protocol.NodeID `json:"nodes,omitempty" doc:"those that are meant, by name"`
	Selector map[string]string `json:"selector,omitempty" doc:"labels that each node that is meant has"`
	All      bool              `json:"all,omitempty" doc:"every node of the site is meant"`
}

// CommandCounts count the nodes that are meant, by what became of the command there.
type CommandCounts struct {
	Nodes   int `json:"nodes" doc:"that are meant, as far as it is known"`
	Running int `json:"running"` // nodes on which it has begun
	Done    int `json:"done"`    // nodes on which it succeeded
	Failed  int `json:"failed"`  // nodes on which it failed
	Refused int `json:"refused"` // nodes that refused it
	Expired int `json:"expired"` // nodes on which it did not begin before its deadline
	Unknown int `json:"unknown"` // nodes on which it began, without a known end
}

// Ended is the number of nodes where it has ended.
func (c CommandCounts) Ended() int { return c.Done + c.Failed + c.Refused + c.Expired + c.Unknown }

// A Command is what an operator asked of nodes once.
type Command struct {
	ID        command.ID    `json:"id"`
	Kind      command.Kind  `json:"kind"`
	Args      any           `json:"args,omitempty" doc:"as the kind defines them; absent: it has none"`
	Actor     string        `json:"actor,omitempty" doc:"whose token was shown; absent: the CO does without tokens"`
	CreatedAt time.Time     `json:"createdAt"` // when the CO recorded it
	Deadline  time.Time     `json:"deadline" doc:"until when it may begin on a node"`
	Budget    uint64        `json:"budget,omitempty" doc:"what it may send live, in bytes; absent: as much as its kind may"`
	State     string        `json:"state" enum:"open,ended" doc:"open while something may still come of it"`
	Counts    CommandCounts `json:"counts"` // of all sites
	SiteCount int           `json:"siteCount" doc:"sites that are meant"`
	// RefusedSites are those that refused it as a whole, and RefusedCode is why one of them did.
	RefusedSites int          `json:"refusedSites,omitempty" doc:"sites that refused it as a whole"`
	RefusedCode  command.Code `json:"refusedCode,omitempty" doc:"why one of these did, for programs"`
	// Sites stand only in the answer for one command.
	Sites []CommandSite `json:"sites,omitempty" doc:"only where one command is asked for"`
}

// The states of a command.
const (
	CommandStateOpen  = "open"  // something may still come of it
	CommandStateEnded = "ended" // nothing more comes of it
)

// A CommandSite is a command at a site.
type CommandSite struct {
	CommandTarget
	State       string        `json:"state" enum:"waiting,running,ended,refused,expired,cancelled"` // of the command at this site
	Counts      CommandCounts `json:"counts"`                                                       // of this site
	Code        command.Code  `json:"code,omitempty" doc:"why the site refuses it, for programs"`
	Message     string        `json:"message,omitempty" doc:"why the site refuses it"`
	ReceivedAt  *time.Time    `json:"receivedAt,omitempty" doc:"when the CO learned that the site has it"`
	CancelledAt *time.Time    `json:"cancelledAt,omitempty" doc:"when it was cancelled; what had begun goes on"`
}

// The tiers that make the result of a command on a node.
const (
	ByNode = "node" // the node
	ByLO   = "lo"   // the node did not answer
	ByCO   = "co"   // the site did not
)

// A CommandResult is what became of a command on a node.
type CommandResult struct {
	Command  command.ID      `json:"-"` // of the command
	Site     protocol.SiteID `json:"site"`
	Node     protocol.NodeID `json:"node"`
	State    command.State   `json:"state" enum:"running,done,failed,refused,expired,unknown"`
	Code     command.Code    `json:"code,omitempty" doc:"why it did not do what was asked, for programs"`
	Message  string          `json:"message,omitempty" doc:"the same for people"`
	Output   string          `json:"output,omitempty" doc:"what it gives, as text"`
	Cut      bool            `json:"cut,omitempty" doc:"output was longer"`
	Duration uint64          `json:"durationMillis,omitempty" doc:"how long it took, in milliseconds"`
	By       string          `json:"by" enum:"node,lo,co" doc:"the tier that reports it: the node, or the LO of the site, or the CO, as none of those answered"`
	At       time.Time       `json:"at" doc:"when it was recorded"`
}

// Rank says which of two results of a node counts: that of the greater rank, and of equal ones the first.
// What has ended does not run again, and a node knows better than those above it.
func (r *CommandResult) Rank() int {
	switch {
	case !r.State.Ended():
		return 0
	case r.By == ByCO:
		return 1
	case r.By == ByLO:
		return 2
	}
	return rankOfNode
}

const rankOfNode = 3

// Maker returns the tier that made a result of a rank.
func Maker(rank int) string {
	switch rank {
	case 1:
		return ByCO
	case 2:
		return ByLO
	}
	return ByNode
}

// A CommandReceived is what a site reports of a command that it has.
type CommandReceived struct {
	Command command.ID
	Meant   uint64 // nodes that are
	Code    command.Code
	Message string
}

// A NewCommand is a command that is to be recorded.
type NewCommand struct {
	Command
	Encoded []byte // the arguments, as the nodes get them
	Targets []CommandTarget
}

// A PendingCommand is a command at a site whose broker may have something of it.
type PendingCommand struct {
	CommandTarget
	ID        command.ID
	Kind      command.Kind
	Encoded   []byte // its arguments
	Actor     string
	CreatedAt time.Time
	Deadline  time.Time
	Budget    uint64
	State     string
	Cancelled bool
	ChangedAt time.Time // of what the record says of it and its site
}

// A CommandFilter picks commands. Empty fields pick all.
type CommandFilter struct {
	Site   protocol.SiteID
	Within siteset.Set // as that of a DeploymentFilter
	Kind   string
	State  string // open or ended
	Since  time.Time
	Text   string // a part of the id, the actor or the arguments
}

// A ResultFilter picks results of a command. Empty fields pick all.
type ResultFilter struct {
	Site   protocol.SiteID
	Within siteset.Set
	State  string
}
