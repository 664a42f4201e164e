package protocol

import "github.com/fxamacker/cbor/v2"

// An Event is one thing that happened at a site. The LO gives it the next
// sequence number of its journal; the CO commits events in that order, each once.
type Event struct {
	// Seq counts from 1 without gaps within an epoch. It is not encoded: the place
	// in the journal, and in a Batch, says it.
	Seq        uint64    `cbor:"-"`
	UnixMillis int64     `cbor:"2,keyasint"` // the LO's clock; orders nothing
	Kind       EventKind `cbor:"3,keyasint"`
	Node       NodeID    `cbor:"4,keyasint,omitempty"` // empty: the site itself
	// Body is the encoded message that Kind names.
	Body cbor.RawMessage `cbor:"5,keyasint,omitempty"`
}

// An EventKind says what an Event tells and which message its body is.
type EventKind string

// The kinds.
const (
	LOStarted        EventKind = "lo_started"        // Presence of the LO
	NodeOnlineEvent  EventKind = "node_online"       // Presence
	NodeOfflineEvent EventKind = "node_offline"      // Presence
	InventoryChanged EventKind = "inventory"         // Inventory
	StatusEvent      EventKind = "deployment_status" // DeploymentStatus
	PlacementEvent   EventKind = "placement"         // PlacementReport
	DesiredAdopted   EventKind = "desired_adopted"   // Adopted
	DesiredRefused   EventKind = "desired_refused"   // Adopted with Reason
	DataLost         EventKind = "data_lost"         // Loss
	StateDamaged     EventKind = "state_damaged"     // Loss, whose Class names the file: it counts as not held
	AnomalyEvent     EventKind = "anomaly"           // DeploymentStatus that broke the table, or other bytes
	SnapshotEvent    EventKind = "snapshot"          // Snapshot
	Superseded       EventKind = "superseded"        // no body: a later event of the same key took its place

	// In the lanes of machine data. Between RetainedBegin and RetainedEnd come all
	// messages that the sender has retained under this lane: what the receiver has
	// and they do not name, it deletes.
	DataEvent     EventKind = "data"           // DataMessage
	DataExpired   EventKind = "data_expired"   // no body: its time was up before it could be sent
	RetainedBegin EventKind = "retained_begin" // no body
	RetainedEnd   EventKind = "retained_end"   // no body
)

// PlacementReport says where the LO placed a deployment, and why nowhere else.
type PlacementReport struct {
	V          uint16         `cbor:"0,keyasint"`
	Deployment DeploymentName `cbor:"1,keyasint"`
	Nodes      []NodeID       `cbor:"2,keyasint,omitempty"`
	// Rejected holds one reason for each node that was not chosen.
	Rejected map[NodeID]string `cbor:"3,keyasint,omitempty"`
	// Problem is set where fewer nodes match than are asked for.
	Problem string `cbor:"4,keyasint,omitempty"`
}

func (m *PlacementReport) version() uint16 { return m.V }

// Adopted says which desired state the LO holds.
type Adopted struct {
	V          uint16 `cbor:"0,keyasint"`
	Generation uint64 `cbor:"1,keyasint"`
	Commit     string `cbor:"2,keyasint,omitempty"`
	Reason     string `cbor:"3,keyasint,omitempty"` // why it was refused
}

func (m *Adopted) version() uint16 { return m.V }

// Loss counts records that were dropped under a declared limit, or could not be
// read any more.
type Loss struct {
	V uint16 `cbor:"0,keyasint"`
	// Class says why: bytes and age are limits; corrupt is damage of the queue itself;
	// in StateDamaged it names the file, such as "lo/node gw-1".
	Class   string `cbor:"1,keyasint"`
	Records uint64 `cbor:"2,keyasint"`
	Bytes   uint64 `cbor:"3,keyasint"`
}

func (m *Loss) version() uint16 { return m.V }

// Limit reports that the records were dropped under a declared limit. Otherwise the
// disk of the site did not keep them.
func (m *Loss) Limit() bool { return m.Class == "bytes" || m.Class == "age" }

// Snapshot is the whole current state of a site, for a CO that has lost events:
// it replaces what the CO holds of the site's nodes and deployments.
type Snapshot struct {
	V        uint16             `cbor:"0,keyasint"`
	Nodes    []NodeSnapshot     `cbor:"1,keyasint,omitempty"`
	Statuses []DeploymentStatus `cbor:"2,keyasint,omitempty"`
	// Lost is how many events before the snapshot the CO will never see.
	Lost uint64 `cbor:"3,keyasint,omitempty"`
}

func (m *Snapshot) version() uint16 { return m.V }

// NodeSnapshot is the current state of one node.
type NodeSnapshot struct {
	Node      NodeID    `cbor:"1,keyasint"`
	Presence  Presence  `cbor:"2,keyasint"`
	Inventory Inventory `cbor:"3,keyasint"`
}

// A Batch carries consecutive events of one lane of a site's journal to the CO, or
// machine data from the CO to a site. A batch that was lost, doubled or reordered
// does no harm: the receiver commits the events that follow its last sequence,
// ignores those it has, and answers with an Ack. Each lane has an epoch and a
// sequence of its own.
type Batch struct {
	V uint16 `cbor:"0,keyasint"`
	// Epoch names the journal. A new one begins when a journal was lost.
	Epoch string `cbor:"1,keyasint"`
	// First is the sequence of the first event, Count the number of events.
	First uint64 `cbor:"2,keyasint"`
	Count uint32 `cbor:"3,keyasint"`
	// Events is the CBOR sequence (RFC 8742) of the events, compressed as Encoding
	// says. The n-th has the sequence First+n.
	Events   []byte `cbor:"4,keyasint"`
	Encoding string `cbor:"5,keyasint,omitempty"` // zstd, or empty for none
	// Trimmed is the highest sequence that the LO no longer holds. A CO whose last
	// sequence is lower has a gap that only a Snapshot can close.
	Trimmed uint64 `cbor:"6,keyasint,omitempty"`

	// Stream is empty for the events of the site, and DataLane for machine data.
	Stream string `cbor:"7,keyasint,omitempty"`
	// SentMillis is the sender's clock when it sent the batch: the age of an event
	// is SentMillis less its UnixMillis, whatever the receiver's clock says.
	SentMillis int64 `cbor:"8,keyasint,omitempty"`
	// Backlog tells of the lane at that moment.
	Backlog Backlog `cbor:"9,keyasint,omitzero"`
}

func (m *Batch) version() uint16 { return m.V }

// Ack is the CO's answer: everything up to Seq is in its database. Only then may
// the LO forget. An Ack of another epoch, or lower than an earlier one, tells the
// LO that the CO lost state.
type Ack struct {
	V     uint16 `cbor:"0,keyasint"`
	Epoch string `cbor:"1,keyasint"`
	Seq   uint64 `cbor:"2,keyasint"`

	// Stream is that of the Batch.
	Stream string `cbor:"3,keyasint,omitempty"`
	// Ask makes the sender of batches tell its Backlog now, with a batch of Count 0.
	// Epoch and Seq mean nothing then.
	Ask bool `cbor:"4,keyasint,omitempty"`
}

func (m *Ack) version() uint16 { return m.V }
