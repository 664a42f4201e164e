package control

import (
	"time"

	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A NodeStatus is one node as the LO's status shows it.
type NodeStatus struct {
	Node   protocol.NodeID `json:"node"`
	Online bool            `json:"online"`
	// Changed is when Online changed last; zero: never.
	Changed time.Time `json:"changed,omitzero"`
	// Version is the agent's.
	Version string `json:"version,omitempty"`
	// Generation is of the last NodeDesired.
	Generation uint64 `json:"generation"`
	// Heartbeat is when the last one arrived in this run of the LO; zero: none did.
	Heartbeat   time.Time          `json:"heartbeat,omitzero"`
	Deployments []DeploymentStatus `json:"deployments"`
}

// A DeploymentStatus is one deployment of a NodeStatus.
type DeploymentStatus struct {
	Deployment protocol.DeploymentName `json:"deployment"`
	State      lifecycle.State         `json:"state"`
	Digest     protocol.Digest         `json:"digest,omitempty"`
	Attempt    uint32                  `json:"attempt,omitempty"`
	// Refused is the version that was given up; "": none was.
	Refused protocol.Digest `json:"refused,omitempty"`
	Code    protocol.Code   `json:"code,omitempty"`
	Message string          `json:"message,omitempty"`
	// RetryAt is when the next attempt is due; zero: none is planned.
	RetryAt time.Time `json:"retryAt,omitzero"`
}

// Status returns all nodes in the order of their names. It waits for no disk.
func (s *Site) Status() []NodeStatus {
	out := []NodeStatus{}
	for _, n := range s.sorted() {
		out = append(out, nodeStatus(n.shown.Load(), n.beat.Load().at))
	}
	return out
}

func nodeStatus(rec *nodes.Record, heartbeat time.Time) NodeStatus {
	s := NodeStatus{
		Node: rec.Node, Online: rec.Online(), Version: rec.Presence.Version, Generation: rec.Generation,
		Heartbeat: heartbeat, Deployments: []DeploymentStatus{},
	}
	if rec.ChangedMillis != 0 {
		s.Changed = time.UnixMilli(rec.ChangedMillis).UTC()
	}
	for _, name := range rec.Names() {
		d := rec.Deployments[name]
		ds := DeploymentStatus{
			Deployment: name, State: d.Status.State, Digest: d.Status.Digest, Attempt: d.Status.Attempt,
			Refused: d.Refused.Digest, Code: d.Status.Code, Message: d.Status.Message,
		}
		if d.RetryMillis != 0 {
			ds.RetryAt = time.UnixMilli(d.RetryMillis).UTC()
		}
		s.Deployments = append(s.Deployments, ds)
	}
	return s
}
