package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Page asks for a part of a list. The zero Page is the first, of DefaultLimit.
type Page struct {
	Cursor string // what the page before gave as next; empty: from the beginning
	Limit  int    // 1 to MaxLimit; 0 means DefaultLimit
}

// The bounds of a Page.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Size returns how many items a limit asks for, within the bounds.
func Size(limit int) int {
	if limit <= 0 {
		return DefaultLimit
	}
	return min(limit, MaxLimit)
}

// A DeploymentFilter picks deployments. Empty fields pick all.
type DeploymentFilter struct {
	Site  protocol.SiteID
	App   string
	State lifecycle.State
	// Archived shows those as well that are removed from every node.
	Archived bool
}

// A NodeFilter picks nodes. Empty fields pick all.
type NodeFilter struct {
	Site   protocol.SiteID
	Labels map[string]string // all must match
}

// An EventFilter picks events. Empty fields pick all.
type EventFilter struct {
	After      int64 // only events with a greater id
	Site       protocol.SiteID
	Node       protocol.NodeID
	Deployment protocol.DeploymentName
	Kinds      []string
	Limit      int // 0 means DefaultLimit
	// Newest picks the last Limit events instead of the first; the order is the
	// same, oldest first.
	Newest bool
}

// A Transition is one recorded transition of a deployment on a node.
type Transition struct {
	Time       time.Time       `json:"time" doc:"the CO's clock"`
	SiteTime   *time.Time      `json:"siteTime,omitempty" doc:"the reporter's clock, not to be trusted"`
	Node       protocol.NodeID `json:"node"`
	From       lifecycle.State `json:"from,omitempty"`
	To         lifecycle.State `json:"to"`
	Actor      lifecycle.Actor `json:"actor"`
	Digest     protocol.Digest `json:"digest,omitempty"`
	AppVersion string          `json:"appVersion,omitempty"`
	Attempt    uint32          `json:"attempt,omitempty"`
	Code       protocol.Code   `json:"code,omitempty"`
	Message    string          `json:"message,omitempty"`
}

// A Revision is one commit that changed a deployment in the deployments repo.
type Revision struct {
	Commit     string    `json:"commit"`
	Time       time.Time `json:"time"`
	Author     string    `json:"author"`
	Message    string    `json:"message"`
	AppVersion string    `json:"appVersion,omitempty"`
	Removed    bool      `json:"removed,omitempty" doc:"the commit removed the deployment"`
}
