package protocol

import "github.com/colonyfleet/colony/protocol/lifecycle"

// DeploymentStatus is a node's report on one deployment. Times are for people:
// sequences order reports, clocks at the edge are wrong.
type DeploymentStatus struct {
	V          uint16         `cbor:"0,keyasint"`
	Node       NodeID         `cbor:"1,keyasint"`
	Deployment DeploymentName `cbor:"2,keyasint"`

	// Agent names the agent's state directory: it changes when the agent is
	// installed anew, and Seq then begins again. Empty in reports made by the LO.
	Agent string `cbor:"3,keyasint,omitempty"`
	// Boot is the boot id of the node's kernel.
	Boot string `cbor:"4,keyasint,omitempty"`
	// Seq grows by one with each report of this agent. 0 in reports made by the LO.
	Seq uint64 `cbor:"5,keyasint,omitempty"`

	// Generation is the NodeDesired that the node acts on.
	Generation uint64 `cbor:"6,keyasint,omitempty"`

	From  lifecycle.State `cbor:"7,keyasint,omitempty"` // the state before; equal to State for progress
	State lifecycle.State `cbor:"8,keyasint"`
	Actor lifecycle.Actor `cbor:"9,keyasint"`

	// Digest is the version that the state speaks of. After a rollback it is the
	// earlier one, and Refused the one that was given up.
	Digest     Digest `cbor:"10,keyasint,omitempty"`
	Refused    Digest `cbor:"11,keyasint,omitempty"`
	App        string `cbor:"12,keyasint,omitempty"`
	AppVersion string `cbor:"13,keyasint,omitempty"`

	Attempt uint32 `cbor:"14,keyasint,omitempty"`

	// Phase, PulledBytes and TotalBytes show progress within INSTALLING, UPDATING
	// and ROLLINGBACK. TotalBytes is 0 while unknown.
	Phase       Phase  `cbor:"15,keyasint,omitempty"`
	PulledBytes uint64 `cbor:"16,keyasint,omitempty"`
	TotalBytes  uint64 `cbor:"17,keyasint,omitempty"`

	// Code and Message are set in FAILED, and after a rollback to say why.
	Code    Code   `cbor:"18,keyasint,omitempty"`
	Message string `cbor:"19,keyasint,omitempty"`

	Components []ComponentStatus `cbor:"20,keyasint,omitempty"`

	// UnixMillis is the reporter's clock.
	UnixMillis int64 `cbor:"21,keyasint"`
}

func (m *DeploymentStatus) version() uint16 { return m.V }

// A Phase is a step within INSTALLING, UPDATING or ROLLINGBACK.
type Phase string

// The phases, in order.
const (
	Pulling  Phase = "pulling"
	Creating Phase = "creating"
	Starting Phase = "starting"
	Probing  Phase = "probing"
)

// A Code says why a deployment failed. The list is closed.
type Code string

// The codes.
const (
	ImageNotFound     Code = "image_not_found"
	ImageUnauthorized Code = "image_unauthorized"
	DigestMismatch    Code = "digest_mismatch"
	NoSpace           Code = "no_space"
	CreateFailed      Code = "create_failed"
	StartFailed       Code = "start_failed"
	ProbeFailed       Code = "probe_failed"
	CrashLoop         Code = "crash_loop"
	Timeout           Code = "timeout"
	NodeLost          Code = "node_lost"
	Incompatible      Code = "incompatible"
	SignatureInvalid  Code = "signature_invalid"
	EngineUnavailable Code = "engine_unavailable"
	InternalError     Code = "internal"
)

// Codes lists every Code.
var Codes = []Code{
	ImageNotFound, ImageUnauthorized, DigestMismatch, NoSpace, CreateFailed, StartFailed, ProbeFailed,
	CrashLoop, Timeout, NodeLost, Incompatible, SignatureInvalid, EngineUnavailable, InternalError,
}

// ComponentStatus is the state of one container of a component.
type ComponentStatus struct {
	Component string `cbor:"1,keyasint" json:"component"`
	Container string `cbor:"2,keyasint" json:"container"`
	State     string `cbor:"3,keyasint" json:"state"` // pulling, created, running, healthy, unhealthy, exited, completed
	ExitCode  int32  `cbor:"4,keyasint,omitempty" json:"exitCode,omitempty"`
	Restarts  uint32 `cbor:"5,keyasint,omitempty" json:"restarts,omitempty"`
	Message   string `cbor:"6,keyasint,omitempty" json:"message,omitempty"` // the last line it wrote, or the probe's answer
}

// Presence says whether a node, or an LO, is connected. It is retained; the
// last will of the connection is the same message with Online false.
type Presence struct {
	V      uint16 `cbor:"0,keyasint"`
	Online bool   `cbor:"1,keyasint"`
	Agent  string `cbor:"2,keyasint,omitempty"` // as in DeploymentStatus; for an LO its journal epoch
	Boot   string `cbor:"3,keyasint,omitempty"`
	// Version is the program's version.
	Version string `cbor:"4,keyasint,omitempty"`
	// Session differs between any two connections, so that the late will of an
	// old connection is not taken for news of the new one.
	Session string `cbor:"5,keyasint,omitempty"`
}

func (m *Presence) version() uint16 { return m.V }

// Heartbeat is a node's vital signs, under 64 bytes. It never enters the journal.
type Heartbeat struct {
	V            uint16 `cbor:"0,keyasint"`
	Load1        uint32 `cbor:"1,keyasint,omitempty"` // 1-minute load, hundredths
	MemAvailable uint64 `cbor:"2,keyasint,omitempty"` // bytes
	DiskFree     uint64 `cbor:"3,keyasint,omitempty"` // bytes, where the engine stores images
	MilliCelsius int32  `cbor:"4,keyasint,omitempty"` // hottest sensor; 0: none
	UptimeSec    uint64 `cbor:"5,keyasint,omitempty"`
	UnixMillis   int64  `cbor:"6,keyasint,omitempty"`
	// StatusDigest covers what the node last reported of all its deployments, so
	// that an LO sees whether it missed something.
	StatusDigest uint64 `cbor:"7,keyasint,omitempty"`
}

func (m *Heartbeat) version() uint16 { return m.V }

// Inventory is what a node is: hardware, system, labels. Retained, sent on change.
type Inventory struct {
	V            uint16            `cbor:"0,keyasint" json:"-"`
	Node         NodeID            `cbor:"1,keyasint" json:"node"`
	Labels       map[string]string `cbor:"2,keyasint,omitempty" json:"labels,omitempty"`
	AgentVersion string            `cbor:"3,keyasint,omitempty" json:"agentVersion,omitempty"`

	Hostname      string       `cbor:"4,keyasint,omitempty" json:"hostname,omitempty"`
	OS            string       `cbor:"5,keyasint,omitempty" json:"os,omitempty"` // PRETTY_NAME of os-release
	Kernel        string       `cbor:"6,keyasint,omitempty" json:"kernel,omitempty"`
	Architecture  string       `cbor:"7,keyasint,omitempty" json:"architecture,omitempty"` // GOARCH words: amd64, arm64, arm, riscv64
	CPUModel      string       `cbor:"8,keyasint,omitempty" json:"cpuModel,omitempty"`
	Cores         uint32       `cbor:"9,keyasint,omitempty" json:"cores,omitempty"` // logical
	MemoryBytes   uint64       `cbor:"10,keyasint,omitempty" json:"memoryBytes,omitempty"`
	Engine        string       `cbor:"11,keyasint,omitempty" json:"engine,omitempty"` // containerd
	EngineVersion string       `cbor:"12,keyasint,omitempty" json:"engineVersion,omitempty"`
	Disks         []Disk       `cbor:"13,keyasint,omitempty" json:"disks,omitempty"`
	Interfaces    []Interface  `cbor:"14,keyasint,omitempty" json:"interfaces,omitempty"`
	Peripherals   []Peripheral `cbor:"15,keyasint,omitempty" json:"peripherals,omitempty"`
	Vendor        string       `cbor:"16,keyasint,omitempty" json:"vendor,omitempty"` // from DMI or the device tree
	Model         string       `cbor:"17,keyasint,omitempty" json:"model,omitempty"`
	Serial        string       `cbor:"18,keyasint,omitempty" json:"serial,omitempty"`
	StorageBytes  uint64       `cbor:"19,keyasint,omitempty" json:"storageBytes,omitempty"` // size of the file system of the engine's images
}

func (m *Inventory) version() uint16 { return m.V }

// A Disk is a mounted file system.
type Disk struct {
	Mount      string `cbor:"1,keyasint" json:"mount"`
	Device     string `cbor:"2,keyasint,omitempty" json:"device,omitempty"`
	FileSystem string `cbor:"3,keyasint,omitempty" json:"fileSystem,omitempty"`
	TotalBytes uint64 `cbor:"4,keyasint,omitempty" json:"totalBytes,omitempty"`
}

// An Interface is a network interface.
type Interface struct {
	Name      string   `cbor:"1,keyasint" json:"name"`
	Type      string   `cbor:"2,keyasint,omitempty" json:"type,omitempty"` // ethernet, wifi, cellular, can, other
	MAC       string   `cbor:"3,keyasint,omitempty" json:"mac,omitempty"`
	Addresses []string `cbor:"4,keyasint,omitempty" json:"addresses,omitempty"`
}

// A Peripheral is a device of interest to applications.
type Peripheral struct {
	Type         string `cbor:"1,keyasint" json:"type"` // gpu, serial, can, camera
	Path         string `cbor:"2,keyasint,omitempty" json:"path,omitempty"`
	Manufacturer string `cbor:"3,keyasint,omitempty" json:"manufacturer,omitempty"`
	Model        string `cbor:"4,keyasint,omitempty" json:"model,omitempty"`
}
