package protocol

import "github.com/colonyfleet/colony/protocol/lifecycle"

// DeploymentStatus is a node's report on one deployment. Times are for people:
// sequences order reports, clocks at the edge are wrong.
type DeploymentStatus struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Node is the one that the report is about, also where the LO made it.
	Node NodeID `cbor:"1,keyasint"`
	// Deployment is the one that it is about.
	Deployment DeploymentName `cbor:"2,keyasint"`

	// Agent names the agent's state directory: it changes when the agent is
	// installed anew, and Seq then begins again. Empty in reports made by the LO.
	Agent string `cbor:"3,keyasint,omitempty"`
	// Boot is the boot id of the node's kernel. Absent in reports made by the LO.
	Boot string `cbor:"4,keyasint,omitempty"`
	// Seq grows by one with each report of this agent. 0 in reports made by the LO.
	Seq uint64 `cbor:"5,keyasint,omitempty"`

	// Position is that of the NodeDesired that the node acts on. Absent in reports that are
	// about none. Key 6 was Generation.
	Position Position `cbor:"25,keyasint,omitzero"`

	// From is the state before; equal to State for progress. Absent: there was none.
	From lifecycle.State `cbor:"7,keyasint,omitempty"`
	// State is the state now.
	State lifecycle.State `cbor:"8,keyasint"`
	// Actor is the tier that made the transition, and the report.
	Actor lifecycle.Actor `cbor:"9,keyasint"`

	// Digest is the version that the state is about. After a rollback it is the
	// earlier one, and Refused the one that was given up. Absent: the state is about no
	// version.
	Digest Digest `cbor:"10,keyasint,omitempty"`
	// Refused is the version that was given up; absent: none.
	Refused Digest `cbor:"11,keyasint,omitempty"`
	// App is that of the DeploymentSpec, for people. Absent where the
	// spec is not known.
	App string `cbor:"12,keyasint,omitempty"`
	// AppVersion is the version of App. Absent where App is.
	AppVersion string `cbor:"13,keyasint,omitempty"`

	// Attempt is that of the Assignment; absent in reports that are about none.
	Attempt uint32 `cbor:"14,keyasint,omitempty"`

	// Phase is the step within INSTALLING, UPDATING or ROLLINGBACK. Absent in the other
	// states.
	Phase Phase `cbor:"15,keyasint,omitempty"`
	// PulledBytes is how much of the images is on the node, in bytes. Absent: none yet.
	PulledBytes uint64 `cbor:"16,keyasint,omitempty"`
	// TotalBytes is how large they are, in bytes; absent: not known yet.
	TotalBytes uint64 `cbor:"17,keyasint,omitempty"`

	// Code is set in FAILED, and after a rollback to say why. Absent: it did
	// not fail.
	Code Code `cbor:"18,keyasint,omitempty"`
	// Message says it for people. Absent where Code is.
	Message string `cbor:"19,keyasint,omitempty"`

	// Components are the containers; absent: there are none.
	Components []ComponentStatus `cbor:"20,keyasint,omitempty"`

	// UnixMillis is the reporter's clock, in milliseconds since 1970.
	UnixMillis int64 `cbor:"21,keyasint"`

	// Recovering is set in FAILED where the version was healthy for the minimum time
	// before. Its containers stay, and the node goes on to restart them: it reports
	// INSTALLED by itself once they work, and the LO neither tries again nor goes back.
	// Absent: the policy of the deployment decides what follows FAILED.
	Recovering bool `cbor:"22,keyasint,omitempty"`

	// Unassigned says that the node holds the deployment, and that the NodeDesired neither assigns
	// nor removes it: the deployment stays as it is. Absent: it is assigned, or to be removed.
	Unassigned bool `cbor:"23,keyasint,omitempty"`
	// Site is the position of the site's desired state that the node's version follows
	// from. Absent: not known.
	Site Position `cbor:"24,keyasint,omitzero"`

	// Unsynced says that the clock of UnixMillis was not synchronised. Absent: it was, or it is not
	// known. Since 0.3.0.
	Unsynced bool `cbor:"26,keyasint,omitempty"`

	// Running is the version whose containers are kept up where that is another one than Digest, or Digest is not INSTALLED: the one before an
	// update that pulls, or that failed and waits for its next attempt. Absent: Digest in INSTALLED, else none, or it is not known. Since 0.3.0.
	Running Digest `cbor:"27,keyasint,omitempty"`
	// RunningVersion is the AppVersion of Running. Absent where Running is. Since 0.3.0.
	RunningVersion string `cbor:"28,keyasint,omitempty"`
	// RetryMillis is when the LO makes the next attempt, by its clock, in milliseconds since 1970.
	// Absent: none is planned. Since 0.3.0.
	RetryMillis int64 `cbor:"29,keyasint,omitempty"`

	// Presumed is set with Recovering where the node does not know that the version was healthy: its record was lost, and it found
	// containers of the version. An LO that has never seen it INSTALLED at the node, but another version, takes it for one that has
	// failed as any. Absent: the node knows it. Since 0.3.0.
	Presumed bool `cbor:"30,keyasint,omitempty"`
}

func (m *DeploymentStatus) version() uint16 { return m.V }

// A Phase is a step within INSTALLING, UPDATING or ROLLINGBACK.
type Phase string

// The phases, in order.
const (
	Pulling  Phase = "pulling"  // images are downloaded
	Creating Phase = "creating" // containers are made
	Starting Phase = "starting" // containers are started
	Probing  Phase = "probing"  // the first healthy answer is awaited
)

// A Code says why a deployment failed. The list is closed. The comment of each says its
// cause and its cure; docs/reasons.md is made of them.
type Code string

// The codes.
const (
	// ImageNotFound: the registry does not have the image, or not under the digest that the
	// deployment names.
	// Cure: push the image to the registry, or correct the package; then try the version
	// again.
	ImageNotFound Code = "image_not_found"
	// ImageUnauthorized: the registry refuses the node access to the image.
	// Cure: give the site or the node credentials that may pull it; then try the version
	// again.
	ImageUnauthorized Code = "image_unauthorized"
	// DigestMismatch: what arrived has other bytes than its digest names: the registry
	// served something else, or the desired state was damaged on its way.
	// Cure: check the registry and the proxies before it; then try the version again.
	DigestMismatch Code = "digest_mismatch"
	// NoSpace: the disk of the node that holds images and volumes is full, or that of the registry
	// or the site's image cache from which it pulls.
	// Cure: free space on the disk that the message names, or give the machine a larger one; then
	// try the version again.
	NoSpace Code = "no_space"
	// CreateFailed: the engine could not create a container: a mount, a device or a limit
	// that the node does not have.
	// Cure: the message names what is missing: add it to the node or correct the package.
	CreateFailed Code = "create_failed"
	// StartFailed: a container could not be started, or exited while it was being started.
	// Cure: read the line of the container in the message; correct its command, its
	// ports or its configuration.
	StartFailed Code = "start_failed"
	// ProbeFailed: a container runs and its health check fails.
	// Cure: read the answer of the check in the message; correct the application, or the
	// command or times of its health check.
	ProbeFailed Code = "probe_failed"
	// CrashLoop: a container exited more often than its restart policy or the agent allows.
	// Cure: read the exit status and the line of the container in the message; correct the application.
	CrashLoop Code = "crash_loop"
	// Timeout: a component did not come up in its time; with agents before 0.3.0 also: no registry could be reached.
	// Cure: allow the component more time; then try the version again.
	Timeout Code = "timeout"
	// RegistryUnavailable: no registry could be reached, or it stalled, or had a fault of its own. Since 0.3.0.
	// Cure: restore the connection to the registry, or the registry: the site tries again until then, and does not
	// give up the version.
	RegistryUnavailable Code = "registry_unavailable"
	// NodeLost: the LO has had no connection to the node for longer than the grace time
	// while the node installed or updated.
	// Cure: restore the node or its connection: its own report replaces this one.
	NodeLost Code = "node_lost"
	// Incompatible: the node cannot run the version: its platform, its kernel or its agent
	// lacks what the version asks for.
	// Cure: the message names what is missing: choose another node, or upgrade this one.
	Incompatible Code = "incompatible"
	// SignatureInvalid: the node refused the version, as it does not follow from what the CO signed
	// for the node: the message begins with the reason. Cure: look for another client that writes
	// to the site's topics, or that has the LO's place; where it is unsigned or unknown_key,
	// upgrade the LO, and give CO, LO and EN keys of one fleet.
	SignatureInvalid Code = "signature_invalid"
	// EngineUnavailable: the container engine of the node does not answer.
	// Cure: start the engine, or correct its address in the agent's configuration: the agent
	// goes on by itself.
	EngineUnavailable Code = "engine_unavailable"
	// InternalError: a fault of Colony or of the engine that has no code of its own.
	// Cure: report it with the message and the log of the agent; try the version again.
	InternalError Code = "internal"
)

// Codes lists every Code.
var Codes = []Code{
	ImageNotFound, ImageUnauthorized, DigestMismatch, NoSpace, CreateFailed, StartFailed, ProbeFailed,
	CrashLoop, Timeout, RegistryUnavailable, NodeLost, Incompatible, SignatureInvalid, EngineUnavailable, InternalError,
}

// OfVersion reports whether a failure says how the containers of a version behaved on the
// node, so that no rollback goes to it. Others pass, or are the node's.
func (c Code) OfVersion() bool {
	return c == StartFailed || c == ProbeFailed || c == CrashLoop || c == Timeout
}

// ComponentStatus is the state of one container of a component.
type ComponentStatus struct {
	// Component is its name in the DeploymentSpec.
	Component string `cbor:"1,keyasint" json:"component"`
	// Container is its name in the component.
	Container string `cbor:"2,keyasint" json:"container"`
	// State is pulling, created, running, healthy, unhealthy, exited or completed.
	State string `cbor:"3,keyasint" json:"state"`
	// ExitCode is that of the last exit; absent: 0, or it has not exited.
	ExitCode int32 `cbor:"4,keyasint,omitempty" json:"exitCode,omitempty"`
	// Restarts counts those that its restart policy made; absent: none.
	Restarts uint32 `cbor:"5,keyasint,omitempty" json:"restarts,omitempty"`
	// Message is the line by which it said why it ended, or the probe's answer; absent: none.
	Message string `cbor:"6,keyasint,omitempty" json:"message,omitempty"`
	// Ports are the published ones for which the node chose a port; absent: none.
	Ports []Port `cbor:"7,keyasint,omitempty" json:"ports,omitempty"`
}

// Presence says whether a node, or an LO, is connected. It is retained; the
// last will of the connection is the same message with Online false.
type Presence struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Online says whether it is connected.
	Online bool `cbor:"1,keyasint"`
	// Agent is as in DeploymentStatus; for an LO it is its journal's epoch. Absent: not
	// known.
	Agent string `cbor:"2,keyasint,omitempty"`
	// Boot is as in DeploymentStatus; absent for an LO.
	Boot string `cbor:"3,keyasint,omitempty"`
	// Version is the program's version. Absent: not known.
	Version string `cbor:"4,keyasint,omitempty"`
	// Session differs between any two connections, so that the late will of an old
	// connection is not mistaken for one of the new connection. Absent: not known.
	Session string `cbor:"5,keyasint,omitempty"`
	// Held is the desired state that the LO has in force; its zero value, where Online is
	// set: it has none. Absent in the presence of a node, whose NodeReport says it.
	Held Held `cbor:"6,keyasint,omitzero"`
	// Problem says, for people, what is wrong with the LO's machine and what to do, such as a full
	// disk, of which the journal cannot report. Absent: nothing is. Absent in the presence of a
	// node, whose Inventory says it. Since 0.3.0.
	Problem string `cbor:"7,keyasint,omitempty"`
}

func (m *Presence) version() uint16 { return m.V }

// NodeReport is everything that a node holds: whole state. A node sends it with each
// connection, after the reports that the LO had not acknowledged, and where it ignores a
// NodeDesired. Until it has arrived the LO publishes no NodeDesired and expects nothing
// of the node.
type NodeReport struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Node is the one that reports.
	Node NodeID `cbor:"1,keyasint"`
	// Agent, Boot and Seq are as in DeploymentStatus; those in Statuses are absent.
	Agent string `cbor:"2,keyasint"`
	// Boot is the boot id of the node's kernel. Absent: not known.
	Boot string `cbor:"3,keyasint,omitempty"`
	// Seq is one of the sequence of all reports of this agent.
	Seq uint64 `cbor:"4,keyasint"`
	// Held is the desired state that the node holds. Absent: none.
	Held Held `cbor:"5,keyasint,omitzero"`
	// Ignored is the position of the last NodeDesired that the node did not adopt since it
	// started, because it holds a later one or another one at this position. Absent: it
	// ignored none.
	Ignored Position `cbor:"6,keyasint,omitzero"`
	// Statuses are the states of all deployments that the node holds, sorted by name.
	// Absent: it holds none.
	Statuses []DeploymentStatus `cbor:"7,keyasint,omitempty"`
	// UnixMillis is the node's clock, in milliseconds since 1970.
	UnixMillis int64 `cbor:"8,keyasint"`
}

func (m *NodeReport) version() uint16 { return m.V }

// Heartbeat is a node's vital signs, under 64 bytes. It never enters the journal. An
// absent field is 0, or could not be measured.
type Heartbeat struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Load1 is the load of the last minute, in hundredths.
	Load1 uint32 `cbor:"1,keyasint,omitempty"`
	// MemAvailable is the memory that applications can have without swapping, in bytes.
	MemAvailable uint64 `cbor:"2,keyasint,omitempty"`
	// DiskFree is what is free where the engine stores images, in bytes.
	DiskFree uint64 `cbor:"3,keyasint,omitempty"`
	// MilliCelsius is the hottest sensor, in thousandths of a degree; absent: no sensor.
	MilliCelsius int32 `cbor:"4,keyasint,omitempty"`
	// UptimeSec is the time since the boot, in seconds.
	UptimeSec uint64 `cbor:"5,keyasint,omitempty"`
	// UnixMillis is the node's clock, in milliseconds since 1970.
	UnixMillis int64 `cbor:"6,keyasint,omitempty"`
	// StatusDigest covers what the node last reported of all its deployments, for people and programs that read along. An LO has no use for
	// it: it misses nothing, as a report counts once it is in the journal, else the node says it again, and says everything with each connection;
	// and it could not be compared, as a report may be on its way that the digest covers.
	StatusDigest uint64 `cbor:"7,keyasint,omitempty"`
}

func (m *Heartbeat) version() uint16 { return m.V }

// Inventory is what a node is: hardware, system, labels. Retained, sent on change. An
// absent field could not be found out.
type Inventory struct {
	V uint16 `cbor:"0,keyasint" json:"-"` // protocol version, see Version
	// Node is the node's id.
	Node NodeID `cbor:"1,keyasint" json:"node"`
	// Labels are those of the agent's configuration, for selectors; absent: none.
	Labels map[string]string `cbor:"2,keyasint,omitempty" json:"labels,omitempty"`
	// AgentVersion is the agent program's version.
	AgentVersion string `cbor:"3,keyasint,omitempty" json:"agentVersion,omitempty"`

	// Hostname is the kernel's.
	Hostname string `cbor:"4,keyasint,omitempty" json:"hostname,omitempty"`
	// OS is PRETTY_NAME of os-release.
	OS string `cbor:"5,keyasint,omitempty" json:"os,omitempty"`
	// Kernel is the kernel's release.
	Kernel string `cbor:"6,keyasint,omitempty" json:"kernel,omitempty"`
	// Architecture is as GOARCH has it: amd64, arm64, arm, riscv64.
	Architecture string `cbor:"7,keyasint,omitempty" json:"architecture,omitempty"`
	// CPUModel is as the kernel names it.
	CPUModel string `cbor:"8,keyasint,omitempty" json:"cpuModel,omitempty"`
	// Cores counts logical ones.
	Cores uint32 `cbor:"9,keyasint,omitempty" json:"cores,omitempty"`
	// MemoryBytes is all memory that the kernel manages, in bytes.
	MemoryBytes uint64 `cbor:"10,keyasint,omitempty" json:"memoryBytes,omitempty"`
	// Engine is the name of the container engine, such as containerd.
	Engine string `cbor:"11,keyasint,omitempty" json:"engine,omitempty"`
	// EngineVersion is as the engine says.
	EngineVersion string `cbor:"12,keyasint,omitempty" json:"engineVersion,omitempty"`
	// Disks are the mounted file systems.
	Disks []Disk `cbor:"13,keyasint,omitempty" json:"disks,omitempty"`
	// Interfaces are the network interfaces.
	Interfaces []Interface `cbor:"14,keyasint,omitempty" json:"interfaces,omitempty"`
	// Peripherals are devices that applications may ask for.
	Peripherals []Peripheral `cbor:"15,keyasint,omitempty" json:"peripherals,omitempty"`
	// Vendor, Model and Serial are from DMI or the device tree.
	Vendor string `cbor:"16,keyasint,omitempty" json:"vendor,omitempty"`
	// Model is the product.
	Model string `cbor:"17,keyasint,omitempty" json:"model,omitempty"`
	// Serial is the serial number.
	Serial string `cbor:"18,keyasint,omitempty" json:"serial,omitempty"`
	// StorageBytes is the size of the file system of the engine's images, in bytes.
	StorageBytes uint64 `cbor:"19,keyasint,omitempty" json:"storageBytes,omitempty"`

	// EngineFault says why the container engine does not answer; absent while it does.
	// Containers that run go on meanwhile, unsupervised.
	EngineFault string `cbor:"20,keyasint,omitempty" json:"engineFault,omitempty"`

	// Volumes are those that outlived their deployments, sorted by deployment and name, at
	// most MaxVolumes of them. Absent: there are none.
	Volumes []Volume `cbor:"21,keyasint,omitempty" json:"volumes,omitempty"`
	// VolumeCount is how many there are, also those that Volumes leaves out. Absent: none.
	VolumeCount uint32 `cbor:"22,keyasint,omitempty" json:"volumeCount,omitempty"`

	// Unknown are the deployments whose containers are on the node and which the agent has
	// no record of, sorted: the record was lost. They stay until a desired state names
	// them. Absent: there are none.
	Unknown []DeploymentName `cbor:"23,keyasint,omitempty" json:"unknown,omitempty"`
	// Damaged are the files of the agent's state that were found damaged when it started:
	// their content counts as not held. Absent: none was.
	Damaged []string `cbor:"24,keyasint,omitempty" json:"damaged,omitempty"`
	// Problem says, for people, what is wrong with what the agent keeps its state on and what to
	// do, such as a full disk. Absent: nothing is. Since 0.3.0.
	Problem string `cbor:"25,keyasint,omitempty" json:"problem,omitempty"`
	// ClockUnsynced says that the node's clock is not synchronised: times that it gives may be
	// wrong. Absent: it is, or it is not known. Since 0.3.0.
	ClockUnsynced bool `cbor:"26,keyasint,omitempty" json:"clockUnsynced,omitempty"`
}

func (m *Inventory) version() uint16 { return m.V }

// MaxVolumes bounds the Volumes of an Inventory.
const MaxVolumes = 256

// A Volume is one that outlived its deployment.
type Volume struct {
	// Deployment is the one that it belonged to.
	Deployment DeploymentName `cbor:"1,keyasint" json:"deployment"`
	// Name is the volume's.
	Name string `cbor:"2,keyasint" json:"name"`
	// Bytes is roughly its size, in bytes: a step of about a tenth. Absent: it is empty, or
	// not known yet.
	Bytes uint64 `cbor:"3,keyasint,omitempty" json:"bytes,omitempty"`
	// RemovedMillis is when the deployment was removed, in milliseconds since 1970 by the
	// node's clock, which may be wrong. Absent: not known.
	RemovedMillis int64 `cbor:"4,keyasint,omitempty" json:"removedMillis,omitempty"`
	// Unsynced says that the clock of RemovedMillis was not synchronised. Absent: it was, or it is
	// not known. Since 0.3.0.
	Unsynced bool `cbor:"5,keyasint,omitempty" json:"unsynced,omitempty"`
}

// A Disk is a mounted file system. An absent field could not be found out.
type Disk struct {
	// Mount is where it is mounted.
	Mount string `cbor:"1,keyasint" json:"mount"`
	// Device is what is mounted.
	Device string `cbor:"2,keyasint,omitempty" json:"device,omitempty"`
	// FileSystem is its type, such as ext4.
	FileSystem string `cbor:"3,keyasint,omitempty" json:"fileSystem,omitempty"`
	// TotalBytes is its size, in bytes.
	TotalBytes uint64 `cbor:"4,keyasint,omitempty" json:"totalBytes,omitempty"`
}

// An Interface is a network interface. An absent field could not be found out.
type Interface struct {
	// Name is the kernel's.
	Name string `cbor:"1,keyasint" json:"name"`
	// Type is ethernet, wifi, cellular, can or other.
	Type string `cbor:"2,keyasint,omitempty" json:"type,omitempty"`
	// MAC is the hardware address; absent: it has none.
	MAC string `cbor:"3,keyasint,omitempty" json:"mac,omitempty"`
	// Addresses are with their prefix lengths; absent: none.
	Addresses []string `cbor:"4,keyasint,omitempty" json:"addresses,omitempty"`
}

// A Peripheral is a device of interest to applications. An absent field could not be
// found out.
type Peripheral struct {
	// Type is gpu, serial, can or camera.
	Type string `cbor:"1,keyasint" json:"type"`
	// Path is its device node; absent: it has none.
	Path string `cbor:"2,keyasint,omitempty" json:"path,omitempty"`
	// Manufacturer is as the device says.
	Manufacturer string `cbor:"3,keyasint,omitempty" json:"manufacturer,omitempty"`
	// Model is as the device says.
	Model string `cbor:"4,keyasint,omitempty" json:"model,omitempty"`
}
