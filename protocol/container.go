package protocol

import (
	"cmp"
	"math"
	"net/netip"
)

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

	// DNS are the name servers that it asks about names outside of the deployment; absent:
	// the node's.
	DNS []string `cbor:"29,keyasint,omitempty"`
	// DNSSearch are the domains that are put behind a name; absent: the node's. A dot
	// alone means none.
	DNSSearch []string `cbor:"30,keyasint,omitempty"`
	// DNSOptions are options of resolv.conf; absent: the node's.
	DNSOptions []string `cbor:"31,keyasint,omitempty"`

	// NetworkOf is the container of the component whose network it shares, in the place of
	// one of its own; absent: Network says it.
	NetworkOf string `cbor:"32,keyasint,omitempty"`
	// HostNamespaces are the namespaces of the node that it is in: HostPID, HostIPC.
	HostNamespaces []HostNamespace `cbor:"33,keyasint,omitempty"`

	// Init runs an init process before its program, which reaps orphans and passes signals on.
	Init bool `cbor:"34,keyasint,omitempty"`
	// TTY gives it a terminal for its output.
	TTY bool `cbor:"35,keyasint,omitempty"`
	// Stdin keeps its standard input open, on which nothing comes. Absent: it is at its end.
	Stdin bool `cbor:"36,keyasint,omitempty"`
	// ShmBytes is the size of /dev/shm, in bytes; absent: 64 MiB.
	ShmBytes uint64 `cbor:"37,keyasint,omitempty"`
	// Ulimits are its limits of resources, sorted by name; absent ones are the engine's.
	Ulimits []Ulimit `cbor:"38,keyasint,omitempty"`

	// NoNewPrivileges keeps its processes from gaining privileges by execve.
	NoNewPrivileges bool `cbor:"39,keyasint,omitempty"`
	// Seccomp is a profile of system calls as JSON in Docker's form, or SeccompUnconfined;
	// absent: the engine's.
	Seccomp string `cbor:"40,keyasint,omitempty"`
	// AppArmor is the name of a profile: one that the node has loaded, or AppArmorProfile;
	// absent: none.
	AppArmor string `cbor:"41,keyasint,omitempty"`
	// AppArmorProfile is the text of the profile, which the node loads; absent: the node has it.
	// Since 0.3.0: an earlier agent loads none, and refuses the container.
	AppArmorProfile string `cbor:"49,keyasint,omitempty"`

	// Platform is os/architecture, with /variant or without, that the node must have;
	// absent: any.
	Platform string `cbor:"42,keyasint,omitempty"`
	// Reservations are what a node must have at the least; the memory is also what the
	// kernel leaves to it when memory is short.
	Reservations Limits `cbor:"43,keyasint,omitzero"`

	// Networks are those of the component that it is on, sorted by name; absent: the one
	// that all of the deployment share. Only where Network is the bridge.
	Networks []Attachment `cbor:"44,keyasint,omitempty"`

	// OOMScoreAdj is added to the score by which the kernel chooses what to end when memory is
	// short, from -1000 to 1000; absent: 0. Since 0.3.0.
	OOMScoreAdj int `cbor:"45,keyasint,omitempty"`
	// Domainname is the NIS domain name that it has for itself; absent: none. Since 0.3.0.
	Domainname string `cbor:"46,keyasint,omitempty"`
	// Addressing says which addresses the bridge that all of the deployment share has. Absent: the
	// engine chooses. Since 0.3.0: an earlier agent chooses, too.
	Addressing *Addressing `cbor:"48,keyasint,omitempty"`
	// Annotations are passed on to the runtime, in the terms of OCI. Absent: none beside Labels.
	// Since 0.3.0.
	Annotations map[string]string `cbor:"47,keyasint,omitempty"`
	// NoCommand leaves the image's command out, where Command is absent. Absent: it runs. Since
	// 0.3.0: an earlier agent runs it.
	NoCommand bool `cbor:"50,keyasint,omitempty"`
}

// An Attachment puts a container on a network of its component, which reaches no other.
type Attachment struct {
	// Network is its name in the component.
	Network string `cbor:"1,keyasint"`
	// Internal says that the network does not lead out through the node. Absent: it does.
	Internal bool `cbor:"2,keyasint,omitempty"`
	// Addressing says which addresses its bridge has. Absent: the engine chooses. Since 0.3.0: an
	// earlier agent chooses, too.
	Addressing *Addressing `cbor:"3,keyasint,omitempty"`
}

// An Addressing says which addresses a bridge has, where the node has them free; else the engine
// chooses them. Since 0.3.0.
type Addressing struct {
	// Subnet is the IPv4 prefix of the bridge, a /24 of private addresses (RFC 1918).
	Subnet string `cbor:"1,keyasint" json:"subnet"`
	// Address is that of the container. Absent: one from From to To.
	Address string `cbor:"2,keyasint,omitempty" json:"address,omitempty"`
	// From is the first of the addresses that no container has by its Address.
	From string `cbor:"3,keyasint" json:"from"`
	// To is the last of them.
	To string `cbor:"4,keyasint" json:"to"`
}

// A Network is how a container is attached.
type Network string

// The networks beside the deployment's own bridge, which is the empty Network.
const (
	NetworkBridge Network = ""     // the bridge of the deployment
	NetworkHost   Network = "host" // the network of the node
	NetworkNone   Network = "none" // no network but the loopback
)

// SeccompUnconfined is the Seccomp of a container without a profile.
const SeccompUnconfined = "unconfined"

// A HostNamespace is one of the node's that a container is in.
type HostNamespace string

// The host namespaces.
const (
	HostPID HostNamespace = "pid" // processes
	HostIPC HostNamespace = "ipc" // shared memory and semaphores
)

// A Ulimit bounds a resource of a container's processes.
type Ulimit struct {
	// Name is as in setrlimit(2), in lower case and without RLIMIT_.
	Name string `cbor:"1,keyasint"`
	// Soft is in the unit of the resource; -1 means no limit.
	Soft int64 `cbor:"2,keyasint"`
	// Hard is how far a process may raise Soft; -1 means no limit.
	Hard int64 `cbor:"3,keyasint"`
}

// A Port publishes a container's port on the node.
type Port struct {
	// Container is the port in the container.
	Container uint16 `cbor:"1,keyasint" json:"container"`
	// Host is the port on the node. 0: the node chooses a free one.
	Host uint16 `cbor:"2,keyasint" json:"host"`
	// HostIP is the address on the node, of IPv4 or IPv6; 0.0.0.0 and :: are all of one kind;
	// absent: all. An agent before 0.3.0 publishes on IPv4 alone, and refuses others.
	HostIP string `cbor:"3,keyasint,omitempty" json:"hostIp,omitempty"`
	// Protocol is tcp or udp; absent: tcp.
	Protocol string `cbor:"4,keyasint,omitempty" json:"protocol,omitempty"`
}

// Meets reports whether two ports cannot be published both on one node.
func (p Port) Meets(q Port) bool {
	if p.Host != q.Host || cmp.Or(p.Protocol, "tcp") != cmp.Or(q.Protocol, "tcp") {
		return false
	}
	a, aerr := netip.ParseAddr(p.HostIP)
	b, berr := netip.ParseAddr(q.HostIP)
	if aerr != nil || berr != nil { // one is on all addresses
		return true
	}
	return a == b || a.Is4() == b.Is4() && (a.IsUnspecified() || b.IsUnspecified())
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
	// Mode is the permissions of a file, absent: 0444; or of a tmpfs, absent: 1777, read-only 0755.
	Mode uint32 `cbor:"7,keyasint,omitempty"`
	// Files are what a volume begins with, in the place of what the image has at Target.
	// A later version brings its files along, but for those that were changed meanwhile.
	// Absent: it begins with what the image has.
	Files []File `cbor:"8,keyasint,omitempty"`
	// NoExec keeps the files of a tmpfs from being executed. Absent: they can be.
	NoExec bool `cbor:"9,keyasint,omitempty"`
	// NoCopy has a volume begin empty. Absent: it begins with what the image has at Target.
	NoCopy bool `cbor:"10,keyasint,omitempty"`
	// UID is the number of the user that owns a file, a tmpfs, or a new volume with what is in it. Absent:
	// 0; of a volume without GID, as the image has it. Since 0.3.0: earlier agents know it of files alone.
	UID uint32 `cbor:"11,keyasint,omitempty"`
	// GID is the number of the group that owns it, as UID. Absent: 0. Since 0.3.0.
	GID uint32 `cbor:"12,keyasint,omitempty"`
	// Subpath is what of a volume is mounted: a path in it that exists, without "..". Absent: all
	// of it. Since 0.3.0: an earlier agent mounts all.
	Subpath string `cbor:"13,keyasint,omitempty"`
}

// A File is one that a volume begins with.
type File struct {
	// Path is relative to the volume, without "..".
	Path string `cbor:"1,keyasint"`
	// Content is absent where it is empty.
	Content []byte `cbor:"2,keyasint,omitempty"`
	// Exec says that the file can be executed. Absent: it cannot.
	Exec bool `cbor:"3,keyasint,omitempty"`
}

// A MountKind is a sort of Mount.
type MountKind string

// The mount kinds.
const (
	MountVolume MountKind = "volume" // stays over updates, and outlives the deployment
	MountBind   MountKind = "bind"   // a path of the node
	MountTmpfs  MountKind = "tmpfs"  // memory
	MountFile   MountKind = "file"   // a read-only file with Content
)

// A Device is a device node of the host that a container may use, or what the node knows as
// a device by the Container Device Interface (CDI).
type Device struct {
	// Host is the path on the node, which begins with a slash, or the qualified name of a CDI
	// device, vendor/class=name, with Container and Permissions empty. Names came in release
	// 0.3.0: an earlier agent has no such device.
	Host string `cbor:"1,keyasint"`
	// Container is the path in the container.
	Container string `cbor:"2,keyasint"`
	// Permissions are of r, w and m; absent: rwm.
	Permissions string `cbor:"3,keyasint,omitempty"`
}

// UnlimitedSwap is the MemorySwapBytes of a container whose swap is not bounded.
const UnlimitedSwap = math.MaxUint64

// Limits bound what a container uses. 0 means no limit.
type Limits struct {
	// NanoCPUs is processor time: 1e9 is one core.
	NanoCPUs uint64 `cbor:"1,keyasint,omitempty"`
	// MemoryBytes bounds its memory, in bytes.
	MemoryBytes uint64 `cbor:"2,keyasint,omitempty"`
	// Pids bounds its processes and threads.
	Pids uint64 `cbor:"3,keyasint,omitempty"`
	// MemorySwapBytes bounds memory and swap together, in bytes, or is UnlimitedSwap; absent:
	// twice MemoryBytes.
	MemorySwapBytes uint64 `cbor:"4,keyasint,omitempty"`
	// CPUShares is its weight where processors are short, from 2 to 262144; absent: 1024. Since
	// 0.3.0.
	CPUShares uint64 `cbor:"5,keyasint,omitempty"`
	// CPUSet are the processors that it may use, as 0-3,5; absent: all. Since 0.3.0.
	CPUSet string `cbor:"6,keyasint,omitempty"`
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
	RestartAlways        RestartPolicy = "always"         // restart after every exit
	RestartOnFailure     RestartPolicy = "on-failure"     // restart after an exit with another code than 0
	RestartUnlessStopped RestartPolicy = "unless-stopped" // as always, but not after a stop
)

// Health is how the agent finds out whether a container works. Without one, a
// container is healthy while it runs. One of Command, HTTP and Port is set, the others
// are absent.
type Health struct {
	// Command is executed in the container; exit status 0 is healthy. Mutually
	// exclusive with HTTP and Port.
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
	// Restart replaces the container too where an update replaces the other one. Absent: it
	// stays.
	Restart bool `cbor:"3,keyasint,omitempty"`
}

// A Condition is what a container waits for in another.
type Condition string

// The conditions, as Compose names them.
const (
	ServiceStarted   Condition = ""                               // service_started
	ServiceHealthy   Condition = "service_healthy"                // it is healthy
	ServiceCompleted Condition = "service_completed_successfully" // it has exited with 0
)
