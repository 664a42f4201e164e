package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Page asks for a part of a list. The zero Page is the first, of DefaultLimit.
type Page struct {
	Cursor string // what the page before gave as next; empty: from the beginning
	Limit  int    // 1 to MaxLimit; 0 means DefaultLimit
}

// The bounds of a Page.
const (
	DefaultLimit = 100  // where none is given
	MaxLimit     = 1000 // the largest that a client may ask for
)

// TimeCursor is the cursor of a page that goes on after an item, in a list that is ordered by time and id.
func TimeCursor(at time.Time, id string) string { return fmt.Sprintf("%d.%s", at.UnixMicro(), id) }

// ParseTimeCursor reads a cursor of TimeCursor.
func ParseTimeCursor(cursor string) (at time.Time, id string, err error) {
	micros, id, ok := strings.Cut(cursor, ".")
	n, err := strconv.ParseInt(micros, 10, 64)
	if at = time.UnixMicro(n).UTC(); !ok || err != nil || at.Year() < 1 || at.Year() > 9999 {
		return at, "", NotACursor(cursor)
	}
	return at, id, nil
}

// Cut cuts a list to a page of n; one more than n items were read. It returns with the page the cursor of the next
// one, which cursor makes of the last item; "" where there is no next page.
func Cut[T any](list []T, n int, cursor func(last T) string) (page []T, next string) {
	if len(list) <= n {
		return list, ""
	}
	return list[:n], cursor(list[n-1])
}

// NotACursor returns the error of a page whose cursor no page of its list gave as next.
func NotACursor(cursor string) error {
	return protocol.Errorf(protocol.Invalid, "cursor %q is not one of this list's: take it from the page before", cursor)
}

// Size returns how many items a limit asks for, within the bounds.
func Size(limit int) int {
	if limit <= 0 {
		return DefaultLimit
	}
	return min(limit, MaxLimit)
}

// A Choice picks values: those listed, or with Not all others. The zero Choice picks all.
type Choice struct {
	Values []string
	Not    bool
}

// Only returns the Choice of one value; of all where it is empty.
func Only(value string) Choice {
	if value == "" {
		return Choice{}
	}
	return Choice{Values: []string{value}}
}

// All reports whether every value is picked.
func (c Choice) All() bool { return len(c.Values) == 0 }

// Single returns the only value that is picked; ok is false where there may be others.
func (c Choice) Single() (value string, ok bool) {
	if len(c.Values) != 1 || c.Not {
		return "", false
	}
	return c.Values[0], true
}

// Has reports whether a value is picked.
func (c Choice) Has(value string) bool { return c.All() || slices.Contains(c.Values, value) != c.Not }

// A SiteFilter picks sites. Empty fields pick all.
type SiteFilter struct {
	Within  siteset.Set
	Online  *bool // nil: all
	Version Choice
	Text    string // a part of the id
}

// A DeploymentFilter picks deployments. Empty fields pick all.
type DeploymentFilter struct {
	Site    protocol.SiteID
	Within  siteset.Set // does not restrict Site
	App     Choice
	Version Choice // that is desired
	State   Choice // of lifecycle.States
	Text    string // a part of site/name
	// Archived shows those as well that are removed from every node.
	Archived bool
}

// States returns the states that are picked, in the order of lifecycle.States. Those
// that are removed from every node are picked only where that is asked for.
func (f DeploymentFilter) States() []lifecycle.State {
	var out []lifecycle.State
	named := !f.State.Not && !f.State.All()
	for _, s := range lifecycle.States {
		if f.State.Has(string(s)) && (s != lifecycle.Deleted || named || f.Archived) {
			out = append(out, s)
		}
	}
	return out
}

// The states of a node, as the CO knows them.
const (
	NodeOnline  = "online"  // connected to its LO, and the LO to the CO
	NodeOffline = "offline" // not connected to its LO
	NodeUnknown = "unknown" // the site is offline
)

// NodeStates lists them.
var NodeStates = []string{NodeOnline, NodeOffline, NodeUnknown}

// A NodeFilter picks nodes. Empty fields pick all.
type NodeFilter struct {
	Site    protocol.SiteID
	Within  siteset.Set       // as that of a DeploymentFilter
	Labels  map[string]string // all must match
	State   Choice            // of NodeStates
	Version Choice            // of the agent
	Text    string            // a part of site/id
}

// A Total is the number of what a filter picks.
type Total struct {
	Count   int
	AtLeast bool // there may be more: it was not counted to the end
}

// A Summary counts the fleet.
type Summary struct {
	Sites, SitesOnline               int
	Nodes, NodesOnline, NodesUnknown int
	Apps                             int
	Deployments                      map[lifecycle.State]int // without those that are removed from every node
}

// SiteGauges say how a site is, for metrics.
type SiteGauges struct {
	Site   protocol.SiteID
	Online bool
	Nodes  int
	// NodesOnline is 0 where the site is offline: it is not known then.
	NodesOnline int
	Deployments map[lifecycle.State]int // without those that are removed from every node, and states that none has
	NotAdopted  bool                    // the site has not adopted what was published last
	Problem     bool                    // its LO reports one of its machine
	EventsLost  int64                   // ever
	// Backlog is how many events the site holds that are not here, as it said last, and BacklogSeconds the age of the oldest of them.
	Backlog        int64
	BacklogSeconds float64
	// CommandsOpen is how many commands have not ended at the site.
	CommandsOpen int
}

// An EventFilter picks events. Empty fields pick all.
type EventFilter struct {
	After      int64 // only events with a greater id
	Site       protocol.SiteID
	Within     siteset.Set // as that of a DeploymentFilter; events of no site are in the set of all sites alone
	Node       protocol.NodeID
	Deployment protocol.DeploymentName
	Kinds      []string
	// WithoutResults leaves out what single nodes reported of commands: it is one event for each node of a fleet.
	WithoutResults bool
	Limit          int // 0 means DefaultLimit
	// Newest picks the last Limit events instead of the first; the order is the
	// same, oldest first.
	Newest bool
}

// A Transition is one recorded transition of a deployment on a node.
type Transition struct {
	Time       time.Time       `json:"time" doc:"the CO's clock"`
	SiteTime   *time.Time      `json:"siteTime,omitempty" doc:"the reporter's clock, not to be trusted"`
	Unsynced   bool            `json:"siteTimeUnsynced,omitempty" doc:"the clock of siteTime was not synchronised"`
	Node       protocol.NodeID `json:"node"`
	From       lifecycle.State `json:"from,omitempty"` // the state before; absent: there was none
	To         lifecycle.State `json:"to"`             // the state after
	Actor      lifecycle.Actor `json:"actor"`
	Digest     protocol.Digest `json:"digest,omitempty"`
	AppVersion string          `json:"appVersion,omitempty"` // that it was about; absent: not known
	Attempt    uint32          `json:"attempt,omitempty"`    // at this version, from 1; absent: none
	Code       protocol.Code   `json:"code,omitempty"`
	Message    string          `json:"message,omitempty"` // for people; absent: none
}

// A Revision is one commit that changed a deployment in the deployments repo.
type Revision struct {
	Commit     string    `json:"commit"` // its hash
	Time       time.Time `json:"time"`
	Author     string    `json:"author"`               // name of the author, not verified
	Message    string    `json:"message"`              // of the commit
	AppVersion string    `json:"appVersion,omitempty"` // that the file asks for; absent: it was removed
	Removed    bool      `json:"removed,omitempty" doc:"the commit removed the deployment"`
}
