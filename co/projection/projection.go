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
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// A Key names one deployment on one node of the site.
type Key struct {
	Deployment protocol.DeploymentName
	Node       protocol.NodeID
}

// A Site is what the journal says of the site itself.
type Site struct {
	ID         protocol.SiteID
	Version    string
	Adopted    protocol.Position
	Lost       uint64 // events that will never arrive
	Gap        bool   // events are missing, and no snapshot has come yet
	Incomplete bool   // something that was recorded is missing, and no snapshot has come yet
	// Held is what the site reported to hold; nil: the batch says nothing about it.
	Held *protocol.Held
	// Desired is the position of what is recorded as desired; Raised is what that was raised above last, zero: nothing.
	Desired, Raised protocol.Position
	// GapSaid says that an event has said of the gap what the snapshot will say.
	GapSaid bool
}

// A Record is what is recorded of a site, as far as a batch of reports needs it.
type Record struct {
	Site   Site
	Nodes  map[protocol.NodeID]fleet.Node
	States map[Key]lifecycle.State
	// Decommissions are the positions of those nodes whose removal was asked for and not
	// answered yet.
	Decommissions map[protocol.NodeID]protocol.Position
	// Decommissioned are the nodes that were removed.
	Decommissioned map[protocol.NodeID]bool
}

// A Transition is one transition of a deployment on a node.
type Transition struct {
	Deployment protocol.DeploymentName
	fleet.Transition
}

// An Anomaly is a report that could not be applied, with its bytes.
type Anomaly struct {
	Seq        uint64 // of the report in its stream
	Kind       protocol.EventKind
	Node       protocol.NodeID
	Deployment protocol.DeploymentName
	Reason     string // why it could not be applied
	Body       []byte // the encoded report
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
	// RemovedNodes and RemovedStatuses are recorded, and known to be no more.
	RemovedNodes    map[protocol.NodeID]bool
	RemovedStatuses map[Key]bool
	// Decommissions are the answers to removals of nodes: why the site keeps it, or "".
	Decommissions map[protocol.NodeID]string
	Placements    map[protocol.DeploymentName]protocol.PlacementReport
	// Enrolments are the certificates that the site's LO has issued to nodes, in their order.
	Enrolments []Enrolment
	// Pending are the nodes without a join token that wait at the site, in the order of the reports.
	Pending []Pending
	// Received and Results are what the site says of commands: each command, and each node of one, at most once.
	Received []fleet.CommandReceived
	Results  []fleet.CommandResult
	// Locals is what was done at the machine of the site's LO, in its order.
	Locals []Local
	// Revocations is the number of the list of revoked keys that the site goes by; 0: it has not said.
	Revocations uint64
	// Unrecorded are the deployments that a node has begun, or ceased, to have containers of without a record.
	Unrecorded map[protocol.DeploymentName]bool
	// Apps has every deployment that Statuses, Placements and Unrecorded name.
	Apps map[protocol.DeploymentName]App
}

// An Enrolment is a certificate of a node.
type Enrolment struct {
	Node     protocol.NodeID
	Key      string // SHA-256 of its public key, in hex
	Serial   string
	NotAfter time.Time // its end; zero: not known
}

// A Pending is a node without a join token that waits until its key is approved.
type Pending struct {
	Node   protocol.NodeID
	Key    string // SHA-256 of its public key, in hex
	Device string // serial number of the machine, as it says
	Remote string // the address that it asks from
}

// A Needs says what a Record must hold for a batch.
type Needs struct {
	All   bool // everything of the site: the batch has a snapshot, or what a node holds
	Joins bool // which nodes were removed: some come online, or are removed
	Nodes []protocol.NodeID
	// Machines are those of Nodes whose labels and inventory are needed, too.
	Machines map[protocol.NodeID]bool
	Statuses []Key
	// Deployments has every deployment that the reports name.
	Deployments []protocol.DeploymentName
}

// Needs returns what the record must hold for the reports.
func (b *Batch) Needs() Needs {
	n := Needs{Machines: map[protocol.NodeID]bool{}}
	nodes, keys, deployments := map[protocol.NodeID]bool{}, map[Key]bool{}, map[protocol.DeploymentName]bool{}
	deployment := func(d protocol.DeploymentName) {
		if !deployments[d] {
			deployments[d] = true
			n.Deployments = append(n.Deployments, d)
		}
	}
	for i := range b.reports {
		r := &b.reports[i]
		switch m := r.message.(type) {
		case *protocol.Snapshot, *protocol.Holdings:
			n.All = true
		case *protocol.Decommissioned:
			n.All, n.Joins = true, true
		case *protocol.Presence, *protocol.Inventory, *protocol.NodeGateways, *restriction.Report:
			n.Joins = n.Joins || r.Kind == protocol.NodeOnlineEvent
			if r.Node != "" && !nodes[r.Node] {
				nodes[r.Node] = true
				n.Nodes = append(n.Nodes, r.Node)
			}
			if _, ok := m.(*protocol.Inventory); ok {
				n.Machines[r.Node] = true
			}
		case *protocol.DeploymentStatus:
			k := Key{m.Deployment, m.Node}
			if r.reason == "" && !keys[k] {
				keys[k] = true
				n.Statuses = append(n.Statuses, k)
				deployment(m.Deployment)
			}
		case *protocol.PlacementReport:
			if r.reason == "" {
				deployment(m.Deployment)
			}
		}
	}
	return n
}
