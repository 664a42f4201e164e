package nodes

import "github.com/colonyfleet/colony/protocol"

// A Site is what the LO must find again of the site itself after a restart. It is
// stored as JSON.
type Site struct {
	// Epoch names this state: the generations of every NodeDesired count within it.
	Epoch string `json:"epoch"`
	// JournalEpoch and Checkpoint name the journal record up to which every event is
	// in the stored Records.
	JournalEpoch string `json:"journalEpoch,omitempty"`
	Checkpoint   uint64 `json:"checkpoint,omitempty"`
	// Reported are the digests of the placement reports that the journal holds.
	Reported map[protocol.DeploymentName]protocol.Digest `json:"reported,omitempty"`
	// AdoptedEpoch and AdoptedGeneration name the desired state that the journal
	// reports as adopted.
	AdoptedEpoch      string `json:"adoptedEpoch,omitempty"`
	AdoptedGeneration uint64 `json:"adoptedGeneration,omitempty"`
	// RefusedEpoch and RefusedGeneration name the desired state of which the journal
	// reports that its data rules are not wholly in force.
	RefusedEpoch      string `json:"refusedEpoch,omitempty"`
	RefusedGeneration uint64 `json:"refusedGeneration,omitempty"`
}
