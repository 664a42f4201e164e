package protocol

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

// An Event is one thing that happened at a site, or one message of machine data. Its
// sender gives it the next sequence of its stream; the receiver has events in that
// order, each once.
type Event struct {
	// Seq counts from 1 without gaps within an epoch. It is not encoded: the position
	// in the journal, and in a Batch, says it.
	Seq uint64 `cbor:"-"`
	// UnixMillis is when it happened, in milliseconds since 1970 by the sender's
	// clock. It orders nothing.
	UnixMillis int64 `cbor:"2,keyasint"`
	// Kind says what the event reports.
	Kind EventKind `cbor:"3,keyasint"`
	// Node is the one that it is about; absent: the site itself.
	Node NodeID `cbor:"4,keyasint,omitempty"`
	// Body is the encoded message that Kind names; absent where it names none.
	Body cbor.RawMessage `cbor:"5,keyasint,omitempty"`
	// Unsynced says that the clock of UnixMillis was not synchronised. Absent: it was, or it is not
	// known. Machine data has no such mark. Since 0.3.0.
	Unsynced bool `cbor:"6,keyasint,omitempty"`
}

// An EventKind says what an Event reports and which message its body is.
type EventKind string

// The kinds of the stream of a site's events, sent by the LO.
const (
	LOStarted          EventKind = "lo_started"          // Presence of the LO
	NodeOnlineEvent    EventKind = "node_online"         // Presence
	NodeOfflineEvent   EventKind = "node_offline"        // Presence
	InventoryChanged   EventKind = "inventory"           // Inventory
	StatusEvent        EventKind = "deployment_status"   // DeploymentStatus
	PlacementEvent     EventKind = "placement"           // PlacementReport
	DesiredAdopted     EventKind = "desired_adopted"     // Adopted
	DesiredRefused     EventKind = "desired_refused"     // Adopted with Reason
	NodeEpochRaised    EventKind = "node_epoch_raised"   // EpochRaised
	NodeHoldings       EventKind = "node_holdings"       // Holdings: the record of the node begins anew
	NodeDecommissioned EventKind = "node_decommissioned" // Decommissioned
	NodeRestrictions   EventKind = "node_restrictions"   // restriction.Report: what restricts the node, whole
	NameConflict       EventKind = "name_conflict"       // NodeGateways: several gateways use the name of the node, or no longer
	StateDamaged       EventKind = "state_damaged"       // Loss, whose Class names the file, of the LO or of the node: it counts as not held
	AnomalyEvent       EventKind = "anomaly"             // DeploymentStatus that broke the table, or other bytes
	SnapshotEvent      EventKind = "snapshot"            // Snapshot
	MachineEnrolled    EventKind = "machine_enrolled"    // Enrolment
	MachineRefused     EventKind = "machine_refused"     // Enrolment with Code and Reason
	MachinePending     EventKind = "machine_pending"     // Enrolment with Device: a node without a join token waits to be approved
	RevocationsAdopted EventKind = "revocations_adopted" // RevocationsReport
	RevocationsRefused EventKind = "revocations_refused" // RevocationsReport with Reason
	ClocksDiffer       EventKind = "clocks_differ"       // ClocksReport
	ClientConnected    EventKind = "client_connected"    // ClientReport: a client of the site's broker that is no part of Colony
	ClientDisconnected EventKind = "client_disconnected" // ClientReport, mostly with Reason
	ClientsChanged     EventKind = "clients_changed"     // ClientReport of many at once, without their names
	CommandReceived    EventKind = "command_received"    // command.Received: the LO has it, or refuses it
	CommandResult      EventKind = "command_result"      // command.Result of a node
)

// The kinds of all streams.
const (
	DataLost   EventKind = "data_lost"  // Loss
	Superseded EventKind = "superseded" // no body: a later event of the same key replaced it
)

// The kinds of streams of machine data, in both directions. Between RetainedBegin and
// RetainedEnd come all messages that the sender has retained under the stream: what
// the receiver has of it and they do not name, it deletes.
const (
	DataEvent     EventKind = "data"           // DataMessage
	DataExpired   EventKind = "data_expired"   // no body: it expired before it could be sent
	RetainedBegin EventKind = "retained_begin" // no body
	RetainedEnd   EventKind = "retained_end"   // no body
)

// Enrolment says that the LO has issued a certificate to a node, refused to, or has it wait. Since 0.3.0.
type Enrolment struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Key is the SHA-256 of the node's public key (SubjectPublicKeyInfo). Absent: not known.
	Key []byte `cbor:"1,keyasint,omitempty"`

	Serial    string `cbor:"2,keyasint,omitempty"` // serial number of the certificate, in hex; absent: there is none
	EndMillis int64  `cbor:"3,keyasint,omitempty"` // when the certificate ends, in milliseconds since 1970; absent: there is none
	Remote    string `cbor:"4,keyasint,omitempty"` // the address that the node asked from; absent: not known
	Code      string `cbor:"5,keyasint,omitempty"` // why it was refused, by the codes of package identity; absent: it was not
	Reason    string `cbor:"6,keyasint,omitempty"` // Code for people; absent: it was not refused
	// Renewal says that the node had a certificate of this key before, or that one that waits was reported
	// before. Absent: it is newly enrolled, or waits since now.
	Renewal bool `cbor:"7,keyasint,omitempty"`

	Device string `cbor:"8,keyasint,omitempty"` // serial number of the machine that waits, as it says; absent: it said none, or does not wait
}

func (m *Enrolment) version() uint16 { return m.V }

// RevocationsReport says which list of revoked keys the LO goes by, or why it refused one. Since
// 0.3.0.
type RevocationsReport struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version

	Number uint64 `cbor:"1,keyasint,omitempty"` // that of the Revocations in force; absent: there are none
	Keys   uint32 `cbor:"2,keyasint,omitempty"` // how many keys they have; absent: none
	Reason string `cbor:"3,keyasint,omitempty"` // why a list was refused, for people; absent: it was not
}

func (m *RevocationsReport) version() uint16 { return m.V }

// ClocksReport says that the certificate of the CO begins so far ahead of the LO's clock that one of the two clocks is
// wrong by as much, or that this is over. Since 0.3.0.
type ClocksReport struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version

	AheadMillis int64 `cbor:"1,keyasint,omitempty"` // how far, in milliseconds; absent: the clocks agree again
}

func (m *ClocksReport) version() uint16 { return m.V }

// ClientReport says what a client of the site's broker did, or how many did something within some seconds. Since 0.3.0.
type ClientReport struct {
	V            uint16 `cbor:"0,keyasint"`           // protocol version, see Version
	Client       string `cbor:"1,keyasint,omitempty"` // MQTT client id; absent: the report is of many
	User         string `cbor:"2,keyasint,omitempty"` // name of its account, or of its certificate or token; absent: the report is of many
	From         string `cbor:"3,keyasint,omitempty"` // its network address, and the name of the listener; absent: the report is of many
	Reason       string `cbor:"4,keyasint,omitempty"` // why its connection ended, for people; absent: it disconnected in order, or is connected
	Changes      uint32 `cbor:"5,keyasint,omitempty"` // connects and disconnects since its last report; absent: one
	Connected    uint32 `cbor:"6,keyasint,omitempty"` // clients that connected and were not there at the last report; absent: none, or the report is of one
	Disconnected uint32 `cbor:"7,keyasint,omitempty"` // clients that were there and are no more; absent: none, or the report is of one
}

func (m *ClientReport) version() uint16 { return m.V }

// PlacementReport says where the LO placed a deployment, and why nowhere else.
type PlacementReport struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Deployment is the one that was placed.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Nodes are those that were chosen; absent: none.
	Nodes []NodeID `cbor:"2,keyasint,omitempty"`
	// Rejected holds one reason, for people, for each node that was not chosen. Absent:
	// all were chosen.
	Rejected map[NodeID]string `cbor:"3,keyasint,omitempty"`
	// Problem says, for people, why fewer nodes match than are asked for; absent:
	// enough do.
	Problem string `cbor:"4,keyasint,omitempty"`
}

func (m *PlacementReport) version() uint16 { return m.V }

// NodeGateways says which gateways use the name of a node.
type NodeGateways struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Gateways are those that used it lately, the one that has it now first. Absent: a single one does.
	Gateways []Gateway `cbor:"1,keyasint,omitempty"`
}

func (m *NodeGateways) version() uint16 { return m.V }

// Problem says, for people, which gateways use the name and what to do; "": a single gateway does.
func (m *NodeGateways) Problem() string {
	if len(m.Gateways) == 0 {
		return ""
	}
	who, agents, cure := []string{}, map[string]bool{}, "give each its own name (node in the configuration of its agent)"
	for _, g := range m.Gateways {
		who = append(who, fmt.Sprintf("agent %s at %s (boot %s)", g.Agent, cmp.Or(g.Address, "an unknown address"), cmp.Or(g.Boot, "unknown")))
		agents[g.Agent] = true
	}
	if len(agents) < len(who) {
		cure = "those with the same agent run with copies of one disk: decide which one is the original, and give every other one its own identity: remove its state directory, and enrol it anew with a name of its own"
	}
	return fmt.Sprintf("%d gateways use this name: %s; the first has it, the others are refused: %s", len(who), strings.Join(who, ", "), cure)
}

// A Gateway is a machine whose agent uses the name of a node.
type Gateway struct {
	// Agent names the agent's state directory, as in DeploymentStatus.
	Agent string `cbor:"1,keyasint"`
	// Address is where it connects from, as the LO's broker sees it, without the port. Absent: not known.
	Address string `cbor:"2,keyasint,omitempty"`
	// Boot is as in DeploymentStatus; copies of one disk differ in it. Absent: not known. Since 0.3.0.
	Boot string `cbor:"3,keyasint,omitempty"`
}

// Adopted says which desired state the LO has adopted, or refused. Key 1 was Generation.
type Adopted struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Position is that of the SiteDesired. Absent: what was refused has none.
	Position Position `cbor:"4,keyasint,omitzero"`
	// Commit is that of the SiteDesired; absent where that has none.
	Commit string `cbor:"2,keyasint,omitempty"`
	// Reason says, for people, why it was refused; absent: it was not.
	Reason string `cbor:"3,keyasint,omitempty"`
	// Held is what is in force now. Absent: nothing is. In a DesiredRefused without a digest:
	// what nodes follow from, while the state at Position is in force and earlier.
	Held Held `cbor:"5,keyasint,omitzero"`
	// Overtaken says that it was refused because Held is later, or another state at the same position. Absent: it was
	// refused for another reason, or the LO is of an earlier release. Since 0.3.0.
	Overtaken bool `cbor:"6,keyasint,omitempty"`
}

func (m *Adopted) version() uint16 { return m.V }

// EpochRaised says that a node held a desired state which the LO does not remember: the
// LO was restored, or has lost its record of the node.
type EpochRaised struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Held is what the node held.
	Held Held `cbor:"1,keyasint"`
	// Last is what the LO had published last, as far as it knows. Absent: nothing.
	Last Held `cbor:"2,keyasint,omitzero"`
	// Position is at which the LO goes on. Absent where Reason is set.
	Position Position `cbor:"3,keyasint,omitzero"`
	// Reason says, for people, why the LO does not go on; absent: it does.
	Reason string `cbor:"4,keyasint,omitempty"`
}

func (m *EpochRaised) version() uint16 { return m.V }

// Holdings is everything that a node holds, as it reported to an LO whose record of it was not whole, as it was lost, or older than what
// the node does, or that had sent a Snapshot before in which the node was not Complete. The CO forgets what it has of the node besides. It may have that of events which the LO has lost.
type Holdings struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Deployments are sorted. Absent: the node holds nothing.
	Deployments []DeploymentName `cbor:"1,keyasint,omitempty"`
	// Restrictions is an encoded restriction.Report: all that restricts the node. Absent: an LO of an earlier release. Since 0.3.0.
	Restrictions cbor.RawMessage `cbor:"2,keyasint,omitempty"`
}

func (m *Holdings) version() uint16 { return m.V }

// Decommissioned answers a Decommission: the LO has forgotten the node, or says why not.
type Decommissioned struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Position is that of the Decommission.
	Position Position `cbor:"1,keyasint"`
	// Reason says, for people, why the LO keeps the node; absent: it has forgotten it.
	Reason string `cbor:"2,keyasint,omitempty"`
}

func (m *Decommissioned) version() uint16 { return m.V }

// Loss counts records that the sender dropped under a declared limit, or could not
// read any more.
type Loss struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Class says why: bytes and age are limits; corrupt is damage of the queue itself;
	// in StateDamaged it names the file, such as "lo/node gw-1".
	Class string `cbor:"1,keyasint"`
	// Records is how many. In StateDamaged: how many are lost, or more; 0: none.
	Records uint64 `cbor:"2,keyasint"`
	// Bytes is how much they occupied on the sender's disk, in bytes.
	Bytes uint64 `cbor:"3,keyasint"`
	// Uncounted says in StateDamaged that how much is lost, if anything, is not known: Records is 1 then. Absent: it is
	// known, or the LO is of an earlier release, whose Records is never 0. Since 0.3.0.
	Uncounted bool `cbor:"4,keyasint,omitempty"`
}

func (m *Loss) version() uint16 { return m.V }

// Limit reports that the records were dropped under a declared limit. Otherwise the
// disk of the site did not keep them.
func (m *Loss) Limit() bool { return m.Class == "bytes" || m.Class == "age" }

// Snapshot is the whole current state of a site as far as the LO knows it, for a CO that
// has lost events. It replaces what the CO holds of the nodes that are Complete. Of others,
// and of nodes that it does not name, absence says nothing: the LO may have lost its record.
type Snapshot struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Nodes are all nodes that the LO knows; absent: none.
	Nodes []NodeSnapshot `cbor:"1,keyasint,omitempty"`
	// Statuses are the current ones of all deployments; absent: none are known.
	Statuses []DeploymentStatus `cbor:"2,keyasint,omitempty"`
	// Lost is how many events before the snapshot the CO will never receive. Absent: none, as far as the LO knows.
	Lost uint64 `cbor:"3,keyasint,omitempty"`
	// Cause says, for people, why the LO began a new journal epoch with it. Absent: it did not. Since 0.3.0.
	Cause string `cbor:"4,keyasint,omitempty"`
	// Adopted is the position of the desired state that the LO adopted last. Absent: none, or not said. Since 0.3.0.
	Adopted Position `cbor:"5,keyasint,omitzero"`
}

func (m *Snapshot) version() uint16 { return m.V }

// NodeSnapshot is the current state of one node.
type NodeSnapshot struct {
	Node      NodeID    `cbor:"1,keyasint"` // the node's id
	Presence  Presence  `cbor:"2,keyasint"` // the last that the LO received
	Inventory Inventory `cbor:"3,keyasint"` // the last that the LO received
	// Gateways is as in NodeGateways; absent: a single gateway uses the node's name.
	Gateways []Gateway `cbor:"4,keyasint,omitempty"`
	// Complete says that the node has reported everything that it holds since the LO started, so that what Statuses lacks of it is not there. Absent: that is not known.
	Complete bool `cbor:"5,keyasint,omitempty"`
	// Restrictions is an encoded restriction.Report. Absent: nothing restricts the node. Since 0.3.0.
	Restrictions cbor.RawMessage `cbor:"6,keyasint,omitempty"`
}

// A Batch carries consecutive events of one stream: from a site's LO to the CO, or
// machine data from the CO to a site. A batch that is lost, doubled or reordered
// does no harm: the receiver accepts the events that follow its position in the
// stream, ignores those it has, and answers with an Ack. Package stream has the
// contract.
type Batch struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Epoch names the sender's numbering. A new one begins where the sender lost it.
	Epoch string `cbor:"1,keyasint"`
	// First is the sequence of the first event.
	First uint64 `cbor:"2,keyasint"`
	// Count is the number of events. A batch of none asks where the receiver stands,
	// and reports the Backlog.
	Count uint32 `cbor:"3,keyasint"`
	// Events is the CBOR sequence (RFC 8742) of the events, compressed as Encoding
	// says. The n-th, from 0, has the sequence First+n.
	Events []byte `cbor:"4,keyasint"`
	// Encoding is zstd (RFC 8878); absent: Events is not compressed.
	Encoding string `cbor:"5,keyasint,omitempty"`
	// Trimmed is the highest sequence that the sender no longer holds, set where the
	// receiver lacks it: the receiver has a gap, and the sender sends its state.
	// Absent: no gap is declared.
	Trimmed uint64 `cbor:"6,keyasint,omitempty"`

	// Stream is the name of the stream: DataStream for machine data; absent: the
	// events of the site.
	Stream string `cbor:"7,keyasint,omitempty"`
	// SentMillis is when the batch was sent, in milliseconds since 1970 by the sender's clock: the
	// age of an event is SentMillis less its UnixMillis, independent of the receiver's clock.
	// Absent: not known, and no age is counted.
	SentMillis int64 `cbor:"8,keyasint,omitempty"`
	// Backlog is what the sender holds of the stream at that moment; absent: it does
	// not report it.
	Backlog Backlog `cbor:"9,keyasint,omitzero"`
	// Previous is the epoch with whose numbers Epoch goes on, set where the receiver stands in another one. Absent: it is
	// not known, or there is none. Since 0.3.0.
	Previous PreviousEpoch `cbor:"10,keyasint,omitzero"`
}

// A PreviousEpoch is an epoch that a sender gave up, and whose numbers the new epoch continues, as when the sender cannot tell
// which numbers it gave last. Up to Through both epochs have the same events under the same numbers. Since 0.3.0.
type PreviousEpoch struct {
	Epoch   string `cbor:"1,keyasint"` // the epoch that was given up
	Through uint64 `cbor:"2,keyasint"` // the last sequence of it that the sender still knows
}

func (m *Batch) version() uint16 { return m.V }

// Ack is the receiver's answer to a Batch: everything up to Seq is durable with it. Only then may the sender
// forget. An Ack of another epoch, or lower than an earlier one, shows the sender that one of the two lost state.
type Ack struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Epoch is that of the receiver's position; empty where nothing has arrived.
	Epoch string `cbor:"1,keyasint"`
	// Seq is the highest sequence of the epoch that the receiver has, without a gap.
	Seq uint64 `cbor:"2,keyasint"`

	// Stream is that of the Batch. Absent: the stream of events.
	Stream string `cbor:"3,keyasint,omitempty"`
	// Ask makes the LO report the Backlog of every stream now, each with a batch of Count 0. Epoch and Seq mean nothing then. Absent: this is an answer.
	Ask bool `cbor:"4,keyasint,omitempty"`
	// Retired is the epoch of the Batch, where the receiver gave it up for a later one and never follows it again: the
	// sender begins a new one. Absent: it follows the Batch's, would follow it, or is of a release that does not say. Since 0.3.0.
	Retired string `cbor:"5,keyasint,omitempty"`
	// Resync asks for a Snapshot: the receiver's record lacks something. Absent: it does not ask. Since 0.3.0.
	Resync bool `cbor:"6,keyasint,omitempty"`
}

func (m *Ack) version() uint16 { return m.V }
