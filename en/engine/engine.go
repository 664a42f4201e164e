// Package engine is the port to what runs containers on a node: the words that
// the agent and the container engines share, and the two interfaces between
// them. It does no I/O. The engines are engine/containerd for gateways and
// engine/memory for simulations; engine/enginetest holds both to one behaviour.
package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/colonyfleet/colony/en/engine/logs"
	"github.com/colonyfleet/colony/protocol"
)

// Engine runs containers. All methods may be called concurrently; calls about
// one container are done one after another. Everything that an engine knows
// outlives the process that calls it: containers keep running while the agent
// is dead, and List finds them again.
//
// Errors say by CodeOf what a deployment status should report. An engine that
// cannot be reached answers with protocol.EngineUnavailable; the same call may
// succeed later.
type Engine interface {
	// Pull makes the image ref, host/repo@sha256:…, present and unpacked. It is
	// idempotent, and resumes what an earlier call left half done. Report, which
	// may be nil, is called on one goroutine and never after Pull returned.
	Pull(ctx context.Context, ref string, report func(Progress)) error

	// Start makes c run: it creates the container if there is none, and starts the container if it
	// does not run; a start after an exit counts as a restart. If the container runs already with
	// the same Digest, Start returns nil at once; only a lost record of its network is then made
	// anew. A container of another Digest is an error of kind protocol.Conflict: Remove it first.
	// The image must have been pulled.
	Start(ctx context.Context, c Container) error

	// Stop ends a container: it sends the image's stop signal, waits for grace,
	// then kills; a grace of 0 is the one that its spec says. It returns when the
	// container has exited. The container stays and may be started again. One that
	// does not run, or does not exist, is stopped already.
	Stop(ctx context.Context, id ID, grace time.Duration) error

	// Remove kills the container if it runs, and removes all that belongs to it
	// alone: file system, network attachment. Its log is retained for a while. What its creation left half
	// done goes as well. A container that does not exist is removed already.
	Remove(ctx context.Context, id ID) error

	// List returns all containers of ours, sorted by id.
	List(ctx context.Context) ([]Status, error)

	// Exec runs a command in a running container and waits for it. If ctx ends
	// first the command is killed and ctx's error returned. A container that
	// does not run is an error of kind protocol.NotFound.
	Exec(ctx context.Context, id ID, command []string) (ExecResult, error)

	// Events returns the exits of containers from now on. The channel is closed
	// when ctx ends or the engine is lost: call again, then List, for what was
	// missed. A slow reader delays events; none is dropped.
	Events(ctx context.Context) (<-chan Event, error)
}

// Host is what an engine knows about its node beyond single containers.
type Host interface {
	// Info returns what the engine is.
	Info(ctx context.Context) (Info, error)

	// Vacant returns an error, with the code protocol.StartFailed, where a container of a deployment
	// could not publish one of the ports: a container of another deployment or a program of the node
	// has it. Those that the deployment publishes itself count as free, and so do those that the
	// node chooses.
	Vacant(ctx context.Context, d protocol.DeploymentName, ports []protocol.Port) error

	// Sweep removes what no deployment needs any more: containers and networks of the
	// deployments that were removed, what is left of containers that do not exist, and
	// images that are neither kept nor used by a container. Volumes stay. It goes on after
	// an error and joins them all.
	Sweep(ctx context.Context, o SweepOptions) error

	// Volumes returns the volumes on the node, sorted.
	Volumes(ctx context.Context) ([]Volume, error)

	// VolumeBytes returns the size of a volume, in bytes: 0 for one that does not exist. It
	// reads all of its directories.
	VolumeBytes(ctx context.Context, v Volume) (uint64, error)

	// Logs returns what reads the output of the containers.
	Logs() logs.Reader

	// RemoveVolume removes a volume that no container mounts. One that does not exist is
	// removed already.
	RemoveVolume(ctx context.Context, v Volume) error
}

// Positions are up to where deployments were followed on a node.
type Positions interface {
	// Followed returns up to which position of the site's desired state each deployment was
	// followed, as Follow stored it. It is kept beside the volumes: files of the agent that are of
	// before do not say it.
	Followed(ctx context.Context) (map[protocol.DeploymentName]protocol.Position, error)

	// Follow stores, durably, up to which position a deployment is followed, where that is later
	// than what is stored. It is called before a container of that position writes to a volume.
	Follow(ctx context.Context, d protocol.DeploymentName, at protocol.Position) error

	// Forget removes what Follow stored of a deployment of which there are no containers and no volumes.
	Forget(ctx context.Context, d protocol.DeploymentName) error
}

// A Volume names a volume on its node.
type Volume struct {
	// Deployment is the one whose containers mount it.
	Deployment protocol.DeploymentName
	// Name is as in the source of a mount.
	Name string
}

// Compare orders volumes by deployment and name.
func (v Volume) Compare(other Volume) int {
	return cmp.Or(cmp.Compare(v.Deployment, other.Deployment), cmp.Compare(v.Name, other.Name))
}

// String returns deployment/name.
func (v Volume) String() string { return string(v.Deployment) + "/" + v.Name }

// A Container is what Start makes run.
type Container struct {
	ID ID

	// Digest is the container's identity. It decides whether a container that
	// exists is the wanted one.
	Digest protocol.Digest

	// Site is the position of the site's desired state that the version is of. It is no part of the
	// identity: a container that exists has that of the Start that made it.
	Site protocol.Position

	Spec protocol.Container
}

// An ID names a container on its node.
type ID struct {
	Deployment protocol.DeploymentName
	Component  string
	Name       string
}

// String returns deployment/component/name.
func (id ID) String() string {
	return string(id.Deployment) + "/" + id.Component + "/" + id.Name
}

// Compare orders ids by deployment, component and name.
func (id ID) Compare(other ID) int {
	switch {
	case id == other:
		return 0
	case id.Deployment != other.Deployment:
		return order(id.Deployment < other.Deployment)
	case id.Component != other.Component:
		return order(id.Component < other.Component)
	default:
		return order(id.Name < other.Name)
	}
}

func order(less bool) int {
	if less {
		return -1
	}
	return 1
}

// A State says whether a container runs.
type State string

// The states.
const (
	// Created is a container without a process, whose process, if it ever had one,
	// left no exit code: it was never started, or the machine went down.
	Created State = "created"
	Running State = "running" // its process runs
	// Exited is a container whose process ended; it stays so over reboots.
	Exited State = "exited"
)

// A Status is what List says of one container.
type Status struct {
	ID     ID
	Digest protocol.Digest // as given to Start
	Image  string          // as given to Start
	// Site is as given to the Start that made the container. Zero: it is not known, as of an agent before 0.3.0.
	Site  protocol.Position
	State State

	// ExitCode and ExitedAt are set in Exited. A process that died of a signal
	// has the exit code 128 + signal.
	ExitCode int32
	ExitedAt time.Time

	// OutOfMemory says that the kernel killed a process of it because its limit of memory,
	// or the node's memory, was used up. Only set in Exited.
	OutOfMemory bool

	// StartedAt is when the process was started. Zero in Created.
	StartedAt time.Time

	// IP is the container's address on its deployment's bridge, empty without one.
	// A container on the host's network is reached on 127.0.0.1.
	IP string

	// NetworkLost says that the record of its network, or of its name servers, was damaged or lost:
	// IP and Ports may not be known until Start has made it anew. Only set in Running.
	NetworkLost bool

	// Ports are the published ports in the order of its spec, with the ports of the node
	// where the engine chose them. Empty where the container has no network now.
	Ports []protocol.Port

	// Restarts counts the starts after the first.
	Restarts uint32

	// Message is the line of stderr by which the last run of the container says why it ended, or else of
	// stdout: the last one, but where that is a stack trace. It has at most MaxMessage bytes. Only set in Exited.
	Message string
}

// MaxMessage bounds Status.Message, in bytes.
const MaxMessage = 512

// MaxOutput bounds ExecResult.Output, in bytes.
const MaxOutput = 4096

// Progress is how far a pull has come. Total is 0 while it is not known; it may
// grow while the image's parts become known.
type Progress struct {
	Pulled uint64 // bytes
	Total  uint64 // bytes
}

// An ExecResult is how a command in a container ended.
type ExecResult struct {
	ExitCode int32
	Output   []byte // the last MaxOutput bytes that it wrote to stdout and stderr
}

// An Event is the exit of a container.
type Event struct {
	ID       ID
	ExitCode int32
	At       time.Time
}

// Info is what an engine is.
type Info struct {
	Name    string // containerd
	Version string
	// Storage is the directory of images, where disk space matters. Empty if the
	// engine has none.
	Storage string
}

// SweepOptions name what Sweep removes, and what it must leave.
type SweepOptions struct {
	// Removed are the deployments whose containers and networks are removed. Those of all
	// others stay, whether the agent knows them or not.
	Removed []protocol.DeploymentName
	// KeepImages are refs as given to Pull, of versions that may be started soon. Images
	// of containers that exist are kept anyway.
	KeepImages []string
	// KeepAllImages leaves every image: not all that is needed may be known.
	KeepAllImages bool
}
