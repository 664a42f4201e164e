// Package fleet holds the words of the CO: applications, sites, nodes,
// deployments and events, as its database keeps them and as its API shows them.
// It does no I/O.
package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// An App is an application of the catalog with its versions, newest first.
type App struct {
	ID          string   `json:"id" doc:"Margo application id"`
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Latest      string   `json:"latest" doc:"the greatest released version; among versions that are not SemVer, the one imported last"`
	Versions    []string `json:"versions"`
}

// An AppVersion is one immutable version of an application.
type AppVersion struct {
	AppID       string          `json:"appId"`
	Version     string          `json:"version"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Source      string          `json:"source" doc:"where it was imported from: git URL and commit, OCI reference, or directory"`
	Digest      protocol.Digest `json:"digest" doc:"digest of the margo.yaml"`
	Profiles    []Profile       `json:"profiles"`
	Parameters  []Parameter     `json:"parameters"`
	Document    string          `json:"document,omitempty" doc:"the margo.yaml, byte for byte; only where one version is asked for"`
	ImportedAt  time.Time       `json:"importedAt"`
}

// A Profile is one way to deploy an application.
type Profile struct {
	ID          string      `json:"id"`
	Type        string      `json:"type" enum:"helm,compose,custom"`
	Description string      `json:"description,omitempty"`
	Components  []Component `json:"components"`
}

// A Component is one part of a profile.
type Component struct {
	Name       string `json:"name"`
	Repository string `json:"repository"`
	Revision   string `json:"revision"`
}

// A Parameter is what a user may set.
type Parameter struct {
	Name        string `json:"name"`
	Label       string `json:"label,omitempty"`
	Description string `json:"description,omitempty"`
	Default     any    `json:"default,omitempty"`
	Immutable   bool   `json:"immutable,omitempty" doc:"may not change after the first install"`
	Schema      any    `json:"schema,omitempty" doc:"the Margo configuration schema of the value"`
}

// What needs an image of the CO's registry.
const (
	UsedByDeployment  = "deployment"  // one of the deployments repo
	UsedByNode        = "node"        // it has a specification that names it
	UsedByApplication = "application" // a version in the catalog
)

// An ImageUse is somebody who needs what the CO's registry has.
type ImageUse struct {
	Kind  string `json:"kind" enum:"deployment,node,application"`
	Name  string `json:"name" doc:"SITE/DEPLOYMENT, SITE/NODE, or APP@VERSION"`
	Needs string `json:"needs" doc:"the image or archive as it is named there"`
}

// A SpecUse is a specification of a deployment, and who has it.
type SpecUse struct {
	Site       protocol.SiteID
	Deployment protocol.DeploymentName
	Desired    bool              // the deployment is to run it
	Nodes      []protocol.NodeID // which reported last that they have it
	Spec       []byte            // encoded
}

// A Site is one LO and its nodes.
type Site struct {
	ID          protocol.SiteID `json:"id"`
	Online      bool            `json:"online"`
	OnlineSince *time.Time      `json:"onlineSince,omitempty" doc:"when Online last changed"`
	Version     string          `json:"version,omitempty" doc:"of the LO program"`
	Problem     string          `json:"problem,omitempty" doc:"what is wrong with the machine of its LO, and what to do, such as a full disk, as the LO said last"`
	// ClockUnsynced stands only in the answer for one site.
	ClockUnsynced bool `json:"clockUnsynced,omitempty" doc:"the clock of its LO was not synchronised when it wrote its last event: times that it gives may be wrong; only in the answer for one site"`

	Nodes        int        `json:"nodes"`
	NodesOnline  int        `json:"nodesOnline" doc:"known to be online"`
	NodesUnknown int        `json:"nodesUnknown" doc:"of which the CO does not know whether they are online: all, while the site is offline"`
	Deployments  int        `json:"deployments"`
	Generation   uint64     `json:"generation" doc:"of the desired state that the CO published last"`
	Adopted      uint64     `json:"adopted" doc:"generation that the LO reported last"`
	Commit       string     `json:"commit,omitempty" doc:"commit of the deployments repo behind Generation"`
	JournalEpoch string     `json:"journalEpoch,omitempty"`
	JournalSeq   uint64     `json:"journalSeq" doc:"last sequence committed here"`
	EventsLost   uint64     `json:"eventsLost" doc:"events that the site reported as lost, ever"`
	LastEventAt  *time.Time `json:"lastEventAt,omitempty"`
	ReportedAt   *time.Time `json:"reportedAt,omitempty" doc:"when the site last reported anything: what is shown of it is as of then, or of now where it is online and has nothing queued"`
}

// A Node is one gateway.
type Node struct {
	Site       protocol.SiteID     `json:"site"`
	ID         protocol.NodeID     `json:"id"`
	State      string              `json:"state" enum:"online,offline,unknown" doc:"unknown while the site is offline"`
	Online     bool                `json:"online" doc:"known to be online"`
	ChangedAt  *time.Time          `json:"changedAt,omitempty" doc:"when State last changed, by the CO's clock"`
	Version    string              `json:"version,omitempty" doc:"of the agent"`
	Problem    string              `json:"problem,omitempty" doc:"what is wrong with it, and what to do, such as several gateways of one name"`
	Labels     map[string]string   `json:"labels,omitempty"`
	Inventory  *protocol.Inventory `json:"inventory,omitempty"`
	ReportedAt *time.Time          `json:"reportedAt,omitempty" doc:"when the site last reported anything"`
	// Report has what a person has restricted about the node, and what waits because of that.
	restriction.Report
	// Decommissioning stands only in the answer for one node.
	Decommissioning *Decommissioning `json:"decommissioning,omitempty" doc:"of a node whose removal was asked for: done and without a refusal, it has connected again since; only where one node is asked for"`
}

// Problems returns, for people, what is wrong with a node: what its LO reported of it, and what
// the node reported of its machine; "": nothing is.
func (n *Node) Problems() string {
	var all []string
	if n.Problem != "" {
		all = append(all, n.Problem)
	}
	if inv := n.Inventory; inv != nil {
		if inv.Problem != "" {
			all = append(all, inv.Problem)
		}
		if inv.EngineFault != "" {
			all = append(all, "the container engine does not answer: "+inv.EngineFault)
		}
		if len(inv.Damaged) > 0 {
			all = append(all, fmt.Sprintf("files of the agent's state were damaged when it started, and set aside (%s): what they held is learnt anew; check the disk", strings.Join(inv.Damaged, ", ")))
		}
	}
	return strings.Join(all, "; ")
}

// A Deployment is one application at one site. State is derived from its nodes, and is
// INSTALLED only where the desired version runs on as many nodes as desired and the
// site has adopted the last change.
type Deployment struct {
	Site       protocol.SiteID         `json:"site"`
	Name       protocol.DeploymentName `json:"name"`
	ID         string                  `json:"id" doc:"Margo deployment id"`
	App        string                  `json:"app"`
	AppVersion string                  `json:"appVersion" doc:"the desired version; running says what runs"`
	Profile    string                  `json:"profile,omitempty"`
	State      lifecycle.State         `json:"state"`
	Counts     map[lifecycle.State]int `json:"counts"`
	Digest     protocol.Digest         `json:"digest,omitempty" doc:"desired version"`
	Commit     string                  `json:"commit,omitempty" doc:"last commit that changed it; also its ETag"`
	Problem    string                  `json:"problem,omitempty" doc:"why it cannot be compiled or placed"`
	Held       string                  `json:"held,omitempty" doc:"id of the proposal that holds its removal: it stays as it is until that is confirmed"`
	Rejected   map[string]string       `json:"rejected,omitempty" doc:"node to reason, where a node was not chosen"`
	Nodes      []DeploymentNode        `json:"nodes,omitempty"`
	CreatedAt  time.Time               `json:"createdAt"`
	UpdatedAt  time.Time               `json:"updatedAt"`
	Archived   bool                    `json:"archived,omitempty" doc:"removed from the repo and from every node"`
	Observation
}

// A DeploymentNode is a deployment on one node.
type DeploymentNode struct {
	Node        protocol.NodeID `json:"node"`
	State       lifecycle.State `json:"state"`
	Phase       protocol.Phase  `json:"phase,omitempty"`
	PulledBytes uint64          `json:"pulledBytes,omitempty"`
	TotalBytes  uint64          `json:"totalBytes,omitempty"`
	Digest      protocol.Digest `json:"digest,omitempty" doc:"the version that the state is about"`
	Refused     protocol.Digest `json:"refused,omitempty" doc:"the version that was given up"`
	AppVersion  string          `json:"appVersion,omitempty"`
	Attempt     uint32          `json:"attempt,omitempty"`
	Code        protocol.Code   `json:"code,omitempty"`
	Message     string          `json:"message,omitempty"`
	Waits       string          `json:"waits,omitempty" doc:"what is not carried out on the node as a person has drained or holds it, and why; absent: nothing waits"`

	Running        protocol.Digest `json:"running,omitempty" doc:"the version that the node keeps up; absent: none, or it is not known"`
	RunningVersion string          `json:"runningVersion,omitempty" doc:"the application version of running"`
	RetryAt        *time.Time      `json:"retryAt,omitempty" doc:"when the site makes the next attempt, by its clock; absent: none is planned"`

	Components []protocol.ComponentStatus `json:"components,omitempty"`
	UpdatedAt  time.Time                  `json:"updatedAt" doc:"when the node was last reported"`
	Since      time.Time                  `json:"since" doc:"when state or digest last changed, by the CO's clock"`
}

// Fault is what a node reported of a failure, for people; empty where it said nothing.
func (n *DeploymentNode) Fault() string {
	if n.Code == "" || n.Message == "" {
		return string(n.Code) + n.Message
	}
	return string(n.Code) + ": " + n.Message
}

// Runs returns the version that the node keeps up, with its application version: that of an
// INSTALLED deployment, or the one before an update. Both are empty where there is none.
func (n *DeploymentNode) Runs() (protocol.Digest, string) {
	if n.State == lifecycle.Installed {
		return n.Digest, n.AppVersion
	}
	return n.Running, n.RunningVersion
}

// An Event is one thing that happened, in the order in which the CO recorded it.
type Event struct {
	ID         int64                   `json:"id" doc:"grows; the SSE event id"`
	Time       time.Time               `json:"time" doc:"the CO's clock"`
	SiteTime   *time.Time              `json:"siteTime,omitempty" doc:"the site's clock, not to be trusted"`
	Unsynced   bool                    `json:"siteTimeUnsynced,omitempty" doc:"the clock of siteTime was not synchronised"`
	Kind       string                  `json:"kind"`
	Site       protocol.SiteID         `json:"site,omitempty"`
	Node       protocol.NodeID         `json:"node,omitempty"`
	Deployment protocol.DeploymentName `json:"deployment,omitempty"`
	From       lifecycle.State         `json:"from,omitempty"`
	To         lifecycle.State         `json:"to,omitempty"`
	Phase      protocol.Phase          `json:"phase,omitempty"`
	Pulled     uint64                  `json:"pulledBytes,omitempty"`
	Total      uint64                  `json:"totalBytes,omitempty"`
	AppVersion string                  `json:"appVersion,omitempty"`
	Code       protocol.Code           `json:"code,omitempty"`
	Message    string                  `json:"message,omitempty"`
}

// Kinds of events that the CO makes itself; the others are protocol.EventKind.
const (
	AppImported       = "app_imported"
	AppRemoved        = "app_removed"
	DeploymentCreated = "deployment_created"
	DeploymentChanged = "deployment_changed"
	DeploymentRemoved = "deployment_removed"
	DeploymentInvalid = "deployment_invalid" // a bad file in the deployments repo; Message says where
	// DeploymentWaiting is a file that cannot be compiled because a part, as a registry,
	// is away; Message says which.
	DeploymentWaiting = "deployment_waiting"
	FileIgnored       = "file_ignored" // in no place of the deployments repo that is read
	SiteAdded         = "site_added"   // because the deployments repo has files for it
	SiteOnline        = "site_online"
	SiteOffline       = "site_offline"
	// SiteProblem and NodeProblem say what is wrong with the machine of an LO or a node, or
	// that it is over.
	SiteProblem = "site_problem"
	NodeProblem = "node_problem"
	// RetryPlanned and GivenUp say what an LO makes of a deployment that is FAILED on a node:
	// when it tries again, or that it does not; Message says it.
	RetryPlanned   = "retry_planned"
	GivenUp        = "given_up"
	JournalGap     = "journal_gap" // events that will never arrive, with their number
	GitUnreachable = "git_unreachable"
	GitReachable   = "git_reachable"
	// MachineEnrolled and MachineRefused are about certificates of machines, LOs' by the CO and nodes'
	// by the LOs of their sites; Message says with which join token, or why not.
	MachineEnrolled = string(protocol.MachineEnrolled)
	MachineRefused  = string(protocol.MachineRefused)
	// MachinePending says that a node without a join token waits; Message has its key. MachineApproved and
	// MachineRejected are what was decided about it, and by whom.
	MachinePending  = string(protocol.MachinePending)
	MachineApproved = "machine_approved"
	MachineRejected = "machine_rejected"
	// MachineRevoked says that the certificates of a machine no longer count.
	MachineRevoked = "machine_revoked"
	// CountersRepaired is a difference between what lists count and the rows that they
	// count; Message says what differed.
	CountersRepaired = "counters_repaired"

	// ProposalOpened and the others are about removals that wait to be confirmed; Message
	// names the proposal.
	ProposalOpened     = "proposal_opened"
	ProposalConfirmed  = "proposal_confirmed"
	ProposalSuperseded = "proposal_superseded"
	ProposalWithdrawn  = "proposal_withdrawn"

	// RolloutStarted and the others are about revisions of a fleet deployment, which Deployment names; Message says which
	// one, and why.
	RolloutStarted  = "rollout_started"
	RolloutWave     = "rollout_wave"
	RolloutPaused   = "rollout_paused"
	RolloutHeld     = "rollout_held" // by a gate
	RolloutResumed  = "rollout_resumed"
	RolloutPromoted = "rollout_promoted"
	RolloutAborted  = "rollout_aborted"
	RolloutDone     = "rollout_done"
	RolloutRefused  = "rollout_refused"  // nothing of the revision was published
	RolloutConflict = "rollout_conflict" // a site's own deployment has the name
)

// NoProblem is the message of a SiteProblem or a NodeProblem that is over.
const NoProblem = "the problem that was reported before is over"

// EventKinds are all kinds of events, those of the sites first.
var EventKinds = []string{
	string(protocol.LOStarted), string(protocol.NodeOnlineEvent), string(protocol.NodeOfflineEvent), string(protocol.InventoryChanged),
	string(protocol.StatusEvent), string(protocol.PlacementEvent), string(protocol.DesiredAdopted), string(protocol.DesiredRefused),
	string(protocol.NodeEpochRaised), string(protocol.NodeHoldings), string(protocol.NodeDecommissioned), string(protocol.NodeRestrictions), string(protocol.NameConflict), string(protocol.StateDamaged), string(protocol.AnomalyEvent), string(protocol.SnapshotEvent), string(protocol.DataLost),
	AppImported, AppRemoved, DeploymentCreated, DeploymentChanged, DeploymentRemoved, DeploymentInvalid, DeploymentWaiting, FileIgnored,
	SiteAdded, SiteOnline, SiteOffline, SiteProblem, NodeProblem, RetryPlanned, GivenUp, JournalGap, GitUnreachable, GitReachable, CountersRepaired, MachineEnrolled, MachineRefused, MachinePending, MachineApproved, MachineRejected, MachineRevoked, string(protocol.RevocationsAdopted), string(protocol.RevocationsRefused),
	string(protocol.ClientConnected), string(protocol.ClientDisconnected), string(protocol.ClientsChanged), string(protocol.CommandTaken), string(protocol.CommandResult),
	DataRulesChanged, DataRulesInvalid, DevicesChanged, DataDropped,
	ProposalOpened, ProposalConfirmed, ProposalSuperseded, ProposalWithdrawn,
	RolloutStarted, RolloutWave, RolloutPaused, RolloutHeld, RolloutResumed, RolloutPromoted, RolloutAborted, RolloutDone, RolloutRefused, RolloutConflict,
	DesiredEpochRaised, DesiredPositionRefused, NodeReturned, SiteRemoved, SiteKept,
}

// A Desired is what the CO wants of one deployment, compiled from one file of
// the deployments repo.
type Desired struct {
	Site       protocol.SiteID
	Name       protocol.DeploymentName
	ID         string
	App        string
	AppVersion string
	Profile    string
	Commit     string // last commit that changed the file
	// Entry is ready to publish. Its Digest is empty where the file never compiled.
	Entry protocol.SiteEntry
	// Problem says why the file does not compile; Entry is then the last good one.
	Problem string
	// Waiting says that Problem is not about the file: a part is away. It is not recorded.
	Waiting bool
	// Hold is set where the repo no longer wants this, and it stays until that is confirmed.
	Hold Hold
}

// A Standing is what a proposal holds of a deployment, or held until it was confirmed.
type Standing struct {
	Site       protocol.SiteID
	Deployment protocol.DeploymentName
	Hold
	// Confirmed says that the deployment is to follow the repo.
	Confirmed bool
	// Open says that the proposal waits for somebody.
	Open bool
}

// A Hold says why a deployment stays as it was although the deployments repo says otherwise.
// The zero Hold holds nothing.
type Hold struct {
	Proposal string // its id
	Commit   string // which asks for the change
	Cause    string // as in package proposal
}
