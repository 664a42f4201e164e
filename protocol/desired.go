package protocol

// SiteDesired is everything that should run at one site: whole state, retained
// on the site's topic. A deployment that is not listed is to be removed.
type SiteDesired struct {
	V    uint16 `cbor:"0,keyasint"`
	Site SiteID `cbor:"1,keyasint"`

	// Generation grows by at least one with each change. An LO ignores a
	// generation below the one it holds, unless Epoch differs.
	Generation uint64 `cbor:"2,keyasint"`

	// Epoch names the CO database that counts the generations. It changes when a
	// CO is set up anew, which makes an LO accept lower generations.
	Epoch string `cbor:"3,keyasint"`

	// Commit is the commit of the deployments repo that this was compiled from.
	Commit string `cbor:"4,keyasint,omitempty"`

	// Deployments are sorted by name. Nil and empty both mean: run nothing.
	Deployments []SiteEntry `cbor:"5,keyasint,omitempty"`

	// Data are the rules of the site's machine data, in the order in which they are
	// tried.
	Data []DataRule `cbor:"6,keyasint,omitempty"`

	// Digest is set where the state is too large to arrive with each connection: it
	// is the digest of an encoded SiteDesired of the same site, epoch and generation,
	// Size its length in bytes, and Deployments and Data stand there alone. An LO that
	// holds the generation needs nothing; one that does not fetches it by Digest, and
	// by theirs the specs that are not inside.
	Digest Digest `cbor:"7,keyasint,omitempty"`
	Size   uint64 `cbor:"8,keyasint,omitempty"`
}

func (m *SiteDesired) version() uint16 { return m.V }

// A SiteEntry is one deployment of a site: what to run, where, and what to do
// when it fails. Only the spec decides whether containers are replaced.
type SiteEntry struct {
	Deployment DeploymentName `cbor:"1,keyasint"`

	// Digest is the digest of the encoded DeploymentSpec, Size its length in bytes.
	Digest Digest `cbor:"2,keyasint"`
	Size   uint64 `cbor:"3,keyasint"`

	// Spec is the encoded DeploymentSpec. Nil means: fetch it by Digest.
	Spec []byte `cbor:"4,keyasint,omitempty"`

	// Signature is a detached COSE_Sign1 (RFC 9052, section 4.2) over Spec.
	// Absent where the fleet has no identity yet.
	Signature []byte `cbor:"5,keyasint,omitempty"`

	Placement Placement `cbor:"6,keyasint"`
	Policy    Policy    `cbor:"7,keyasint"`

	// Rollback says that a person asked to return to this earlier version, so
	// that nodes pass through ROLLINGBACK and not UPDATING.
	Rollback bool `cbor:"8,keyasint,omitempty"`

	// Retry grows each time a person asks to try again a version that was
	// refused; it lifts the refusal.
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

	// Constraints is a Margo deviceConstraints object (1.0.0-rc.3) as JSON.
	Constraints []byte `cbor:"4,keyasint,omitempty"`
}

// Policy says what the LO does about a failure.
type Policy struct {
	// Attempts is how often one version is tried on a node before it is given
	// up, at least 1. 0 means the default, 3.
	Attempts uint32 `cbor:"1,keyasint,omitempty"`

	// BackoffMillis is the wait before the second attempt; it doubles with each
	// further one, with jitter, up to 5 minutes. 0 means the default, 10 s.
	BackoffMillis uint32 `cbor:"2,keyasint,omitempty"`

	// NoRollback leaves a version that was given up FAILED instead of returning
	// to the last healthy one.
	NoRollback bool `cbor:"3,keyasint,omitempty"`
}

// NodeDesired is everything that should run on one node: whole state, retained
// on the node's topic. A deployment that is not listed is to be removed.
type NodeDesired struct {
	V    uint16 `cbor:"0,keyasint"`
	Node NodeID `cbor:"1,keyasint"`

	// Generation grows by at least one with each change. An EN ignores a
	// generation below the one it holds, unless Epoch differs.
	Generation uint64 `cbor:"2,keyasint"`

	// Epoch names the LO's state that counts the generations.
	Epoch string `cbor:"3,keyasint"`

	// Assignments are sorted by deployment name.
	Assignments []Assignment `cbor:"4,keyasint,omitempty"`
}

func (m *NodeDesired) version() uint16 { return m.V }

// An Assignment tells a node to run one version of a deployment.
type Assignment struct {
	Deployment DeploymentName `cbor:"1,keyasint"`
	Digest     Digest         `cbor:"2,keyasint"`
	Spec       []byte         `cbor:"3,keyasint"`           // the encoded DeploymentSpec
	Signature  []byte         `cbor:"4,keyasint,omitempty"` // as in SiteEntry

	// Attempt counts the tries of this digest on this node, from 1. A node that
	// failed attempt n begins again only when it sees n+1.
	Attempt uint32 `cbor:"5,keyasint"`

	// Rollback makes the node pass through ROLLINGBACK to this version.
	Rollback bool `cbor:"6,keyasint,omitempty"`
}

// DeploymentSpec is one version of a deployment, compiled by the CO: independent
// of the node, images pinned by digest, parameters filled in. The digest of its
// encoding is the identity of the version: a node begins an update when, and only
// when, it changes. The update replaces the containers whose own part changed.
type DeploymentSpec struct {
	V          uint16         `cbor:"0,keyasint"`
	ID         string         `cbor:"1,keyasint"` // the Margo deployment id, a UUID
	Deployment DeploymentName `cbor:"2,keyasint"`
	App        string         `cbor:"3,keyasint"`
	AppVersion string         `cbor:"4,keyasint"`
	Profile    string         `cbor:"5,keyasint,omitempty"`

	// Components are installed in this order.
	Components []Component `cbor:"6,keyasint"`
}

func (m *DeploymentSpec) version() uint16 { return m.V }

// A Component is one Margo component: here a Compose project.
type Component struct {
	Name     string `cbor:"1,keyasint"`
	Revision string `cbor:"2,keyasint,omitempty"`

	// NoWait starts the next component without waiting for this one's health.
	NoWait bool `cbor:"3,keyasint,omitempty"`

	// TimeoutMillis bounds the way to health, pulls left out. 0 means 5 minutes.
	TimeoutMillis uint64 `cbor:"4,keyasint,omitempty"`

	// Containers are in start order: a container comes after those it depends on.
	Containers []Container `cbor:"5,keyasint"`
}

// A Container is what runs. Nil and zero mean: as the image says, or none.
type Container struct {
	Name       string   `cbor:"1,keyasint"`
	Image      string   `cbor:"2,keyasint"` // host/repo@sha256:…; the host is a hint, the digest decides
	Entrypoint []string `cbor:"3,keyasint,omitempty"`
	Command    []string `cbor:"4,keyasint,omitempty"`
	Env        []string `cbor:"5,keyasint,omitempty"` // NAME=value, sorted
	WorkingDir string   `cbor:"6,keyasint,omitempty"`
	User       string   `cbor:"7,keyasint,omitempty"`
	Hostname   string   `cbor:"8,keyasint,omitempty"`

	// Network is NetworkNone, NetworkHost, or empty for the deployment's own bridge.
	Network Network  `cbor:"9,keyasint,omitempty"`
	Ports   []Port   `cbor:"10,keyasint,omitempty"`
	Mounts  []Mount  `cbor:"11,keyasint,omitempty"`
	Devices []Device `cbor:"12,keyasint,omitempty"`
	Limits  Limits   `cbor:"13,keyasint,omitzero"`

	Restart   Restart      `cbor:"14,keyasint,omitzero"`
	Health    *Health      `cbor:"15,keyasint,omitempty"`
	DependsOn []Dependency `cbor:"16,keyasint,omitempty"`

	CapAdd     []string `cbor:"17,keyasint,omitempty"`
	CapDrop    []string `cbor:"18,keyasint,omitempty"`
	Privileged bool     `cbor:"19,keyasint,omitempty"`
	ReadOnly   bool     `cbor:"20,keyasint,omitempty"` // root file system

	StopSignal        string `cbor:"21,keyasint,omitempty"` // default the image's, then SIGTERM
	StopTimeoutMillis uint64 `cbor:"22,keyasint,omitempty"` // 0 means 10 s

	Labels map[string]string `cbor:"23,keyasint,omitempty"`

	// Aliases are further names under which the others of the deployment find it.
	Aliases []string `cbor:"24,keyasint,omitempty"`
	// ExtraHosts are lines "name=address" for /etc/hosts.
	ExtraHosts []string          `cbor:"25,keyasint,omitempty"`
	Sysctls    map[string]string `cbor:"27,keyasint,omitempty"`
	GroupAdd   []string          `cbor:"28,keyasint,omitempty"`
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
	Container uint16 `cbor:"1,keyasint"`
	Host      uint16 `cbor:"2,keyasint"`
	HostIP    string `cbor:"3,keyasint,omitempty"` // empty: all addresses
	Protocol  string `cbor:"4,keyasint,omitempty"` // tcp (empty) or udp
}

// A Mount brings files into a container. Exactly one of Volume, Bind, Tmpfs and
// Content is meant, as Kind says.
type Mount struct {
	Kind     MountKind `cbor:"1,keyasint"`
	Target   string    `cbor:"2,keyasint"`
	Source   string    `cbor:"3,keyasint,omitempty"` // volume name, or host path of a bind
	ReadOnly bool      `cbor:"4,keyasint,omitempty"`
	Size     uint64    `cbor:"5,keyasint,omitempty"` // bytes, of a tmpfs; 0 means no limit
	Content  []byte    `cbor:"6,keyasint,omitempty"` // of a file
	Mode     uint32    `cbor:"7,keyasint,omitempty"` // of a file; 0 means 0444
}

// A MountKind is a sort of Mount.
type MountKind string

// The mount kinds.
const (
	MountVolume MountKind = "volume" // kept over updates, removed with the deployment
	MountBind   MountKind = "bind"
	MountTmpfs  MountKind = "tmpfs"
	MountFile   MountKind = "file" // a read-only file with Content
)

// A Device is a device node of the host that a container may use.
type Device struct {
	Host        string `cbor:"1,keyasint"`
	Container   string `cbor:"2,keyasint"`
	Permissions string `cbor:"3,keyasint,omitempty"` // of r, w, m; empty: rwm
}

// Limits bound what a container takes. 0 means no limit.
type Limits struct {
	NanoCPUs    uint64 `cbor:"1,keyasint,omitempty"` // 1e9 is one core
	MemoryBytes uint64 `cbor:"2,keyasint,omitempty"`
	Pids        uint64 `cbor:"3,keyasint,omitempty"`
}

// Restart says what the agent does when a container exits.
type Restart struct {
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
// container is healthy while it runs.
type Health struct {
	// Command is executed in the container; exit status 0 is healthy. Mutually
	// exclusive with HTTP and TCP.
	Command []string `cbor:"1,keyasint,omitempty"`
	// HTTP is a path fetched from the container on Port; 2xx and 3xx are healthy.
	HTTP string `cbor:"2,keyasint,omitempty"`
	// Port is the port of HTTP; alone, a TCP connection that opens is healthy.
	Port uint16 `cbor:"3,keyasint,omitempty"`

	IntervalMillis      uint64 `cbor:"4,keyasint,omitempty"` // 0 means 30 s
	TimeoutMillis       uint64 `cbor:"5,keyasint,omitempty"` // 0 means 30 s
	StartPeriodMillis   uint64 `cbor:"6,keyasint,omitempty"`
	StartIntervalMillis uint64 `cbor:"7,keyasint,omitempty"` // 0 means 1 s
	Retries             uint32 `cbor:"8,keyasint,omitempty"` // 0 means 3
}

// A Dependency is another container of the component that must come first.
type Dependency struct {
	Container string    `cbor:"1,keyasint"`
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
