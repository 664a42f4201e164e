package nodes

import "github.com/colonyfleet/colony/protocol"

// A Site is what the LO must find again of the site itself after a restart. It is
// stored as JSON.
type Site struct {
	// JournalEpoch and Checkpoint name the journal record up to which every event is
	// in the stored Records.
	JournalEpoch string `json:"journalEpoch,omitempty"`
	Checkpoint   uint64 `json:"checkpoint,omitempty"`
	// Reported are the digests of the placement reports that the journal holds.
	Reported map[protocol.DeploymentName]protocol.Digest `json:"reported,omitempty"`
	// Placed are the nodes on which each deployment was placed last.
	Placed map[protocol.DeploymentName][]protocol.NodeID `json:"placed,omitempty"`
	// Adopted is the position of the desired state that the journal reports as adopted.
	Adopted protocol.Position `json:"adopted,omitzero"`
	// RulesRefused is the position of the desired state of which the journal reports that
	// its data rules are not wholly in force.
	RulesRefused protocol.Position `json:"rulesRefused,omitzero"`
	// Decommissioned is the greatest position of a Decommission that was carried out.
	Decommissioned protocol.Position `json:"decommissioned,omitzero"`
	// Contested are the names that several gateways use, as the journal reports.
	Contested map[protocol.NodeID][]protocol.Gateway `json:"contested,omitempty"`
}
