// Package nodestatus is what an LO shows of its nodes, on /status and at its socket. It is pure.
package nodestatus

import (
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// A NodeStatus is one node as the LO's status shows it.
type NodeStatus struct {
	Node   protocol.NodeID `json:"node"`
	Online bool            `json:"online"`
	// Changed is when Online changed last; zero: never.
	Changed time.Time `json:"changed,omitzero"`
	// Version is the agent's.
	Version string `json:"version,omitempty"`
	// Position is of the last NodeDesired.
	Position protocol.Position `json:"position"`
	// Reported says that the node has reported everything that it holds since the start of
	// the LO. Until then it gets no NodeDesired.
	Reported bool `json:"reported"`
	// Problem says that several gateways use the name of the node, or why nothing is
	// decided about it, and what to do; "": neither.
	Problem string `json:"problem,omitempty"`
	// Heartbeat is when the last one arrived in this run of the LO; zero: none did.
	Heartbeat time.Time `json:"heartbeat,omitzero"`
	// Restrictions are what a person has restricted about it, and Waits what is not carried out because of them.
	Restrictions []restriction.Restriction `json:"restrictions,omitempty"`
	Waits        []restriction.Wait        `json:"waits,omitempty"`
	Deployments  []DeploymentStatus        `json:"deployments"` // by name
}

// A DeploymentStatus is one deployment of a NodeStatus.
type DeploymentStatus struct {
	Deployment protocol.DeploymentName `json:"deployment"`
	State      lifecycle.State         `json:"state"`
	Digest     protocol.Digest         `json:"digest,omitempty"`
	Attempt    uint32                  `json:"attempt,omitempty"` // at this version, from 1; absent: none yet
	// Refused is the version that was given up; "": none was.
	Refused protocol.Digest `json:"refused,omitempty"`
	Code    protocol.Code   `json:"code,omitempty"`
	Message string          `json:"message,omitempty"` // of the last failure or progress; absent: none
	// Unassigned says that the node holds the deployment, and that neither its assignment nor its
	// removal is desired: it stays as it is.
	Unassigned bool `json:"unassigned,omitempty"`
	// RetryAt is when the next attempt is due; zero: none is planned.
	RetryAt time.Time `json:"retryAt,omitzero"`
}

// Of returns the status of a node by its record; heartbeat is when the last one arrived, zero: none did.
func Of(rec *nodes.Record, heartbeat time.Time) NodeStatus {
	s := NodeStatus{
		Node: rec.Node, Online: rec.Online(), Version: rec.Presence.Version, Position: rec.Position, Problem: rec.Ahead,
		Heartbeat: heartbeat, Deployments: []DeploymentStatus{}, Restrictions: rec.RestrictionReport().Restrictions, Waits: rec.Waits,
	}
	if rec.ChangedMillis != 0 {
		s.Changed = time.UnixMilli(rec.ChangedMillis).UTC()
	}
	for _, name := range rec.Names() {
		d := rec.Deployments[name]
		ds := DeploymentStatus{
			Deployment: name, State: d.Status.State, Digest: d.Status.Digest, Attempt: d.Status.Attempt,
			Refused: d.Refused.Digest, Code: d.Status.Code, Message: d.Status.Message,
			Unassigned: d.Status.Unassigned,
		}
		if d.RetryMillis != 0 {
			ds.RetryAt = time.UnixMilli(d.RetryMillis).UTC()
		}
		s.Deployments = append(s.Deployments, ds)
	}
	return s
}

// Offline returns those of some nodes that are not online, in their order. One that is was let in by a certificate, although
// an LO that lost its record of enrolled nodes does not know it before it renews.
func Offline(all []NodeStatus) (out []protocol.NodeID) {
	for _, n := range all {
		if !n.Online {
			out = append(out, n.Node)
		}
	}
	return out
}
