package protocol

// SiteDesired is everything that should run at one site: whole state, retained
// on the site's topic. A deployment that is not listed is to be removed.
type SiteDesired struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Site is the site that it is for.
	Site SiteID `cbor:"1,keyasint"`

	// Generation grows by at least one with each change. An LO ignores a
	// generation below the one it holds, unless Epoch differs.
	Generation uint64 `cbor:"2,keyasint"`

	// Epoch names the CO database that counts the generations. It changes when a
	// CO is set up anew, which makes an LO accept lower generations.
	Epoch string `cbor:"3,keyasint"`

	// Commit is the commit of the deployments repo that this was compiled from. Absent: it
	// was not compiled from a repo.
	Commit string `cbor:"4,keyasint,omitempty"`

	// Deployments are sorted by name. Nil and empty both mean: run nothing.
	Deployments []SiteEntry `cbor:"5,keyasint,omitempty"`

	// Data are the rules of the site's machine data, in the order in which they are tried.
	// Absent: the site has none.
	Data []DataRule `cbor:"6,keyasint,omitempty"`

	// Digest is set where the state is too large to arrive with each connection: it is the
	// digest of an encoded SiteDesired of the same site, epoch and generation, Size its
	// length in bytes, and Deployments and Data stand there alone. An LO that holds the
	// generation needs nothing; one that does not fetches it by Digest, and by theirs the
	// specs that are not inside. Absent: the state is whole.
	Digest Digest `cbor:"7,keyasint,omitempty"`
	// Size is absent where Digest is.
	Size uint64 `cbor:"8,keyasint,omitempty"`
}

func (m *SiteDesired) version() uint16 { return m.V }

// A SiteEntry is one deployment of a site: what to run, where, and what to do
// when it fails. Only the spec decides whether containers are replaced.
type SiteEntry struct {
	// Deployment is the deployment's name, unique at the site.
	Deployment DeploymentName `cbor:"1,keyasint"`

	// Digest is the digest of the encoded DeploymentSpec, Size its length in bytes.
	Digest Digest `cbor:"2,keyasint"`
	// Size is in bytes.
	Size uint64 `cbor:"3,keyasint"`

	// Spec is the encoded DeploymentSpec. Nil means: fetch it by Digest.
	Spec []byte `cbor:"4,keyasint,omitempty"`

	// Signature is a detached COSE_Sign1 (RFC 9052, section 4.2) over Spec.
	// Absent where the fleet has no identity yet.
	Signature []byte `cbor:"5,keyasint,omitempty"`

	// Placement says which nodes run it.
	Placement Placement `cbor:"6,keyasint"`
	// Policy says what follows on a failure.
	Policy Policy `cbor:"7,keyasint"`

	// Rollback says that a person asked to return to this earlier version, so that nodes
	// pass through ROLLINGBACK and not UPDATING. Absent: it is an update.
	Rollback bool `cbor:"8,keyasint,omitempty"`

	// Retry grows each time a person asks to try again a version that was refused; it
	// lifts the refusal. Absent: nobody has asked.
	Retry uint32 `cbor:"9,keyasint,omitempty"`
}

// Placement says which nodes of the site run a deployment. All that is given
// must hold.
type Placement struct {
	// Node names the one node, for a deployment made for it. Empty: any.
	Node NodeID `cbor:"1,keyasint,omitempty"`

	// Selector holds labels that a node must have with these values. Nil: any node.
	Selector map[string]string `cbor:"2,keyasint,omitempty"`

	// Replicas is how many nodes run it. 0 means every node that matches.
	Replicas uint32 `cbor:"3,keyasint,omitempty"`

	// Constraints is a Margo deviceConstraints object (1.0.0-rc.3) as JSON. Absent: none.
	Constraints []byte `cbor:"4,keyasint,omitempty"`
}

// Policy says what the LO does about a failure.
type Policy struct {
	// Attempts is how often one version is tried on a node before it is given
	// up, at least 1. 0 means the default, 3.
	Attempts uint32 `cbor:"1,keyasint,omitempty"`

	// BackoffMillis is the wait before the second attempt, in milliseconds; it doubles with each
	// further one, with jitter, up to 5 minutes. 0 means the default, 10 s.
	BackoffMillis uint32 `cbor:"2,keyasint,omitempty"`

	// NoRollback leaves a version that was given up FAILED instead of returning to the
	// last healthy one. Absent: the node returns to it.
	NoRollback bool `cbor:"3,keyasint,omitempty"`
}

// NodeDesired is everything that should run on one node: whole state, retained
// on the node's topic. A deployment that is not listed is to be removed.
type NodeDesired struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Node is the node that it is for.
	Node NodeID `cbor:"1,keyasint"`

	// Generation grows by at least one with each change. An EN ignores a
	// generation below the one it holds, unless Epoch differs.
	Generation uint64 `cbor:"2,keyasint"`

	// Epoch names the LO's state that counts the generations.
	Epoch string `cbor:"3,keyasint"`

	// Assignments are sorted by deployment name. Absent: run nothing.
	Assignments []Assignment `cbor:"4,keyasint,omitempty"`
}

func (m *NodeDesired) version() uint16 { return m.V }

// An Assignment is one version of a deployment that a node is to run.
type Assignment struct {
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Digest is the digest of Spec.
	Digest Digest `cbor:"2,keyasint"`
	// Spec is the encoded DeploymentSpec.
	Spec []byte `cbor:"3,keyasint"`
	// Signature is as in SiteEntry. Absent where the fleet has no identity yet.
	Signature []byte `cbor:"4,keyasint,omitempty"`

	// Attempt counts the tries of this digest on this node, from 1. A node that
	// failed attempt n begins again only when it sees n+1.
	Attempt uint32 `cbor:"5,keyasint"`

	// Rollback makes the node pass through ROLLINGBACK to this version. Absent: it is an
	// update.
	Rollback bool `cbor:"6,keyasint,omitempty"`
}

// DeploymentSpec is one version of a deployment, compiled by the CO: independent
// of the node, images pinned by digest, parameters filled in. The digest of its
// encoding is the identity of the version: a node begins an update when, and only
// when, it changes. The update replaces the containers whose own part changed.
type DeploymentSpec struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// ID is the Margo deployment id, a UUID.
	ID string `cbor:"1,keyasint"`
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"2,keyasint"`
	// App is the id of the Margo application.
	App string `cbor:"3,keyasint"`
	// AppVersion is its version.
	AppVersion string `cbor:"4,keyasint"`
	// Profile is the id of the deployment profile that was chosen; absent: the deployment names
	// none.
	Profile string `cbor:"5,keyasint,omitempty"`

	// Components are installed in this order.
	Components []Component `cbor:"6,keyasint"`
}

func (m *DeploymentSpec) version() uint16 { return m.V }

// A Component is one Margo component: here a Compose project.
type Component struct {
	// Name is the Margo component's.
	Name string `cbor:"1,keyasint"`
	// Revision is its version; absent: it has none.
	Revision string `cbor:"2,keyasint,omitempty"`

	// NoWait starts the next component without waiting for this one's health. Absent: it
	// waits.
	NoWait bool `cbor:"3,keyasint,omitempty"`

	// TimeoutMillis bounds the way to health, in milliseconds, pulls left out. 0 means 5 minutes.
	TimeoutMillis uint64 `cbor:"4,keyasint,omitempty"`

	// Containers are in start order: a container comes after those it depends on.
	Containers []Container `cbor:"5,keyasint"`
}

// A Container is what runs. An absent field means: as the image says, or none.
type Container struct {
	// Name is the Compose service.
	Name string `cbor:"1,keyasint"`
	// Image is host/repo@sha256:…; the host is a hint, the digest decides.
	Image string `cbor:"2,keyasint"`
	// Entrypoint replaces the image's.
	Entrypoint []string `cbor:"3,keyasint,omitempty"`
	// Command replaces the image's.
	Command []string `cbor:"4,keyasint,omitempty"`
	// Env are NAME=value, sorted; each replaces the image's of that name.
	Env []string `cbor:"5,keyasint,omitempty"`
	// WorkingDir replaces the image's.
	WorkingDir string `cbor:"6,keyasint,omitempty"`
	// User replaces the image's: a name or id, with :group or without.
	User string `cbor:"7,keyasint,omitempty"`
	// Hostname is the name that it has for itself; absent: one that the engine makes.
	Hostname string `cbor:"8,keyasint,omitempty"`

	// Network is NetworkNone, NetworkHost, or empty for the deployment's own bridge.
	Network Network `cbor:"9,keyasint,omitempty"`
	// Ports are those published on the node.
	Ports []Port `cbor:"10,keyasint,omitempty"`
	// Mounts are files and folders from outside the image.
	Mounts []Mount `cbor:"11,keyasint,omitempty"`
	// Devices are device nodes of the host.
	Devices []Device `cbor:"12,keyasint,omitempty"`
	// Limits bound what it uses.
	Limits Limits `cbor:"13,keyasint,omitzero"`

	// Restart says what follows on its exit.
	Restart Restart `cbor:"14,keyasint,omitzero"`
	// Health is how its health is found out; absent: it is healthy while it runs.
	Health *Health `cbor:"15,keyasint,omitempty"`
	// DependsOn are those that come first.
	DependsOn []Dependency `cbor:"16,keyasint,omitempty"`

	// CapAdd are Linux capabilities beside the default ones.
	CapAdd []string `cbor:"17,keyasint,omitempty"`
	// CapDrop are capabilities that it does not get.
	CapDrop []string `cbor:"18,keyasint,omitempty"`
	// Privileged gives it all capabilities and devices.
	Privileged bool `cbor:"19,keyasint,omitempty"`
	// ReadOnly mounts its root file system so.
	ReadOnly bool `cbor:"20,keyasint,omitempty"`

	// StopSignal is a signal's name; absent: the image's, then SIGTERM.
	StopSignal string `cbor:"21,keyasint,omitempty"`
	// StopTimeoutMillis is the wait between it and SIGKILL, in milliseconds; absent: 10 s.
	StopTimeoutMillis uint64 `cbor:"22,keyasint,omitempty"`

	// Labels are passed on to the engine.
	Labels map[string]string `cbor:"23,keyasint,omitempty"`

	// Aliases are further names under which the others of the deployment find it.
	Aliases []string `cbor:"24,keyasint,omitempty"`
	// ExtraHosts are lines "name=address" for /etc/hosts.
	ExtraHosts []string `cbor:"25,keyasint,omitempty"`
	// Sysctls are set in its namespaces.
	Sysctls map[string]string `cbor:"27,keyasint,omitempty"`
	// GroupAdd are further groups of its user, by name or id.
	GroupAdd []string `cbor:"28,keyasint,omitempty"`
}

// A Network is how a container is attached.
type Network string

// The networks beside the deployment's own bridge, which is the empty Network.
const (
	NetworkBridge Network = ""
	NetworkHost   Network = "host"
	NetworkNone   Network = "none"
)

// A Port publishes a container's port on the node.
type Port struct {
	// Container is the port in the container.
	Container uint16 `cbor:"1,keyasint"`
	// Host is the port on the node.
	Host uint16 `cbor:"2,keyasint"`
	// HostIP is the address on the node; absent: all.
	HostIP string `cbor:"3,keyasint,omitempty"`
	// Protocol is tcp or udp; absent: tcp.
	Protocol string `cbor:"4,keyasint,omitempty"`
}

// A Mount brings files into a container. Exactly one of Volume, Bind, Tmpfs and
// Content is meant, as Kind says.
type Mount struct {
	// Kind says what is mounted.
	Kind MountKind `cbor:"1,keyasint"`
	// Target is the path in the container.
	Target string `cbor:"2,keyasint"`
	// Source is the name of a volume, or the host path of a bind. Absent for the other
	// kinds.
	Source string `cbor:"3,keyasint,omitempty"`
	// ReadOnly mounts it so. Absent: it is writable.
	ReadOnly bool `cbor:"4,keyasint,omitempty"`
	// Size bounds a tmpfs, in bytes; absent: no limit.
	Size uint64 `cbor:"5,keyasint,omitempty"`
	// Content is that of a file. Absent: it is empty.
	Content []byte `cbor:"6,keyasint,omitempty"`
	// Mode is the permissions of a file; absent: 0444.
	Mode uint32 `cbor:"7,keyasint,omitempty"`
}

// A MountKind is a sort of Mount.
type MountKind string

// The mount kinds.
const (
	MountVolume MountKind = "volume" // stays over updates, removed with the deployment
	MountBind   MountKind = "bind"
	MountTmpfs  MountKind = "tmpfs"
	MountFile   MountKind = "file" // a read-only file with Content
)

// A Device is a device node of the host that a container may use.
type Device struct {
	// Host is the path on the node.
	Host string `cbor:"1,keyasint"`
	// Container is the path in the container.
	Container string `cbor:"2,keyasint"`
	// Permissions are of r, w and m; absent: rwm.
	Permissions string `cbor:"3,keyasint,omitempty"`
}

// Limits bound what a container uses. 0 means no limit.
type Limits struct {
	// NanoCPUs is processor time: 1e9 is one core.
	NanoCPUs uint64 `cbor:"1,keyasint,omitempty"`
	// MemoryBytes bounds its memory, in bytes.
	MemoryBytes uint64 `cbor:"2,keyasint,omitempty"`
	// Pids bounds its processes and threads.
	Pids uint64 `cbor:"3,keyasint,omitempty"`
}

// Restart says what the agent does when a container exits.
type Restart struct {
	// Policy is one of Compose's; absent: no.
	Policy RestartPolicy `cbor:"1,keyasint,omitempty"`
	// Max bounds the restarts of RestartOnFailure. 0 means no bound.
	Max uint32 `cbor:"2,keyasint,omitempty"`
}

// A RestartPolicy is one of Compose's.
type RestartPolicy string

// The restart policies. RestartNo is Compose's default; a container under it
// that exits with 0 is complete and counts as healthy.
const (
	RestartNo            RestartPolicy = ""
	RestartAlways        RestartPolicy = "always"
	RestartOnFailure     RestartPolicy = "on-failure"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
)

// Health is how the agent finds out whether a container works. Without one, a
// container is healthy while it runs. One of Command, HTTP and Port is set, the others
// are absent.
type Health struct {
	// Command is executed in the container; exit status 0 is healthy. Mutually
	// exclusive with HTTP and TCP.
	Command []string `cbor:"1,keyasint,omitempty"`
	// HTTP is a path fetched from the container on Port; 2xx and 3xx are healthy.
	HTTP string `cbor:"2,keyasint,omitempty"`
	// Port is the port of HTTP; alone, a TCP connection that opens is healthy.
	Port uint16 `cbor:"3,keyasint,omitempty"`

	// IntervalMillis is the time between two probes, in milliseconds; absent: 30 s.
	IntervalMillis uint64 `cbor:"4,keyasint,omitempty"`
	// TimeoutMillis bounds one probe, in milliseconds; absent: 30 s.
	TimeoutMillis uint64 `cbor:"5,keyasint,omitempty"`
	// StartPeriodMillis is how long failures do not count after the start, in
	// milliseconds; absent: they count at once.
	StartPeriodMillis uint64 `cbor:"6,keyasint,omitempty"`
	// StartIntervalMillis is that in the start period, in milliseconds; absent: 1 s.
	StartIntervalMillis uint64 `cbor:"7,keyasint,omitempty"`
	// Retries is how many failures in a row make it unhealthy; absent: 3.
	Retries uint32 `cbor:"8,keyasint,omitempty"`
}

// A Dependency is another container of the component that must come first.
type Dependency struct {
	// Container is the name of the other container.
	Container string `cbor:"1,keyasint"`
	// Condition is what it waits for; absent: that the other was started.
	Condition Condition `cbor:"2,keyasint,omitempty"`
}

// A Condition is what a container waits for in another.
type Condition string

// The conditions, as Compose names them.
const (
	ServiceStarted   Condition = "" // service_started
	ServiceHealthy   Condition = "service_healthy"
	ServiceCompleted Condition = "service_completed_successfully"
)
