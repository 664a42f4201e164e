// Package projection folds the events of a site's journal into what the CO shows
// of the site: its nodes, and the state of each deployment on each of them. It is
// pure: from what is recorded and what is reported it computes what to record, which
// co/db/fleet then does.
//
// A report that breaks the lifecycle table changes nothing but the list of
// anomalies. While events are missing (Site.Gap) the record is known to be old,
// so that reports are applied as they come, until a snapshot replaces everything.
package projection

import (
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A Key names one deployment on one node of the site.
type Key struct {
	Deployment protocol.DeploymentName
	Node       protocol.NodeID
}

// A Site is what the journal says of the site itself.
type Site struct {
	Version string
	Adopted uint64
	Lost    uint64 // events that will never arrive
	Gap     bool   // events are missing, and no snapshot has come yet
}

// A Record is what is recorded of a site, as far as a batch of reports needs it.
type Record struct {
	Site   Site
	Nodes  map[protocol.NodeID]fleet.Node
	States map[Key]lifecycle.State
}

// A Transition is one transition of a deployment on a node.
type Transition struct {
	Deployment protocol.DeploymentName
	fleet.Transition
}

// An Anomaly is a report that could not be applied, with its bytes.
type Anomaly struct {
	Seq        uint64
	Kind       protocol.EventKind
	Node       protocol.NodeID
	Deployment protocol.DeploymentName
	Reason     string
	Body       []byte
}

// An App is what a report says of the application behind a deployment.
type App struct{ ID, Version string }

// Changes are what to record after a batch.
type Changes struct {
	Site        Site
	Events      []fleet.Event
	Transitions []Transition
	Anomalies   []Anomaly
	// Nodes and Statuses are new or changed.
	Nodes    map[protocol.NodeID]fleet.Node
	Statuses map[Key]fleet.DeploymentNode
	// RemovedNodes and RemovedStatuses are recorded, and missing in a snapshot.
	RemovedNodes    map[protocol.NodeID]bool
	RemovedStatuses map[Key]bool
	Placements      map[protocol.DeploymentName]protocol.PlacementReport
	// Apps has every deployment that Statuses and Placements name.
	Apps map[protocol.DeploymentName]App
}

// A Needs says what a Record must hold for a batch.
type Needs struct {
	All      bool // everything of the site: there is a snapshot in the batch
	Nodes    []protocol.NodeID
	Statuses []Key
}

// Needs returns what the record must hold for the reports.
func (b *Batch) Needs() Needs {
	n := Needs{}
	nodes, keys := map[protocol.NodeID]bool{}, map[Key]bool{}
	for i := range b.reports {
		r := &b.reports[i]
		switch m := r.message.(type) {
		case *protocol.Snapshot:
			n.All = true
		case *protocol.Presence, *protocol.Inventory:
			if r.Node != "" && !nodes[r.Node] {
				nodes[r.Node] = true
				n.Nodes = append(n.Nodes, r.Node)
			}
		case *protocol.DeploymentStatus:
			k := Key{m.Deployment, m.Node}
			if r.reason == "" && !keys[k] {
				keys[k] = true
				n.Statuses = append(n.Statuses, k)
			}
		}
	}
	return n
}
