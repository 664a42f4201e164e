package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
)

// A RequestKind says what a Request asks for.
type RequestKind string

// The kinds of requests.
const (
	// RequestRemoval asks for the tombstone of a deployment that the deployments repo does
	// not have.
	RequestRemoval RequestKind = "remove"
	// RequestPurge asks to remove volumes that outlived their deployment.
	RequestPurge RequestKind = "purge"
	// RequestDecommission asks to forget a node.
	RequestDecommission RequestKind = "decommission"
	// RequestSite asks to forget a site that has no files in the deployments repo.
	RequestSite RequestKind = "site"
)

// A Request is what a person asks for by name, and no commit says.
type Request struct {
	Site       protocol.SiteID
	Kind       RequestKind
	Node       protocol.NodeID         // of a purge or a decommission
	Deployment protocol.DeploymentName // of a removal or a purge
	Volume     string                  // of a purge; empty: all volumes of the deployment
	Volumes    bool                    // of a removal: its volumes go with it
}

// A KeptVolume is a volume that outlived its deployment, on a node.
type KeptVolume struct {
	Site       protocol.SiteID         `json:"site"`
	Node       protocol.NodeID         `json:"node"`
	Deployment protocol.DeploymentName `json:"deployment" doc:"to which it belonged; one of the same name finds it again"`
	Volume     string                  `json:"volume"` // its name
	Bytes      uint64                  `json:"bytes,omitempty" doc:"roughly; absent where it is empty or not known"`
	Unsynced   bool                    `json:"removedAtUnsynced,omitempty" doc:"the clock of removedAt was not synchronised"`
	RemovedAt  *time.Time              `json:"removedAt,omitempty" doc:"since when the node keeps it, by its clock, which may be wrong: when the deployment was removed, or, where the record of it was lost, when the node found the volume"`
	Purging    bool                    `json:"purging" doc:"its removal was asked for, and the node has not reported it yet"`
	NodeState  string                  `json:"nodeState" enum:"online,offline,unknown"` // of the node
	ReportedAt *time.Time              `json:"reportedAt,omitempty" doc:"when the site last reported anything"`
}

// A NodeUse is what goes with a node.
type NodeUse struct {
	// Runs is what it runs, Named what is placed on it by its name.
	Runs, Named []protocol.DeploymentName
}

// A Decommissioning is what became of the removal of a node.
type Decommissioning struct {
	RequestedAt time.Time  `json:"requestedAt"` // when a person asked for it
	DoneAt      *time.Time `json:"doneAt,omitempty" doc:"when the site reported that it has forgotten the node, or why not; absent: it has not reported"`
	Refused     string     `json:"refused,omitempty" doc:"why the site keeps the node"`
}

// Kinds of events about nodes and sites that were removed.
const (
	NodeReturned = "node_returned" // it was removed, and has connected again
	SiteRemoved  = "site_removed"  // the site and all of its nodes were removed
	// SiteKept is a site whose removal was asked for and is void; Message says why.
	SiteKept = "site_kept"
)
