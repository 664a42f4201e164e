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
	Description string   `json:"description,omitempty"` // of the newest version; absent: none
	Latest      string   `json:"latest" doc:"the greatest released version; among versions that are not SemVer, the one imported last"`
	Versions    []string `json:"versions"` // the newest first
	// Stages are those of the versions that are not active; absent: all are.
	Stages map[string]Stage `json:"stages,omitempty" doc:"version to stage, of those that are deprecated or retired"`
}

// A Stage says whether a version of an application may be deployed.
type Stage string

// The stages. Any may follow any other.
const (
	Active     Stage = "active"     // it may be deployed
	Deprecated Stage = "deprecated" // it may be deployed, with a warning, and is no application's latest version while another one is active
	Retired    Stage = "retired"    // it may run on where it is deployed, and be deployed nowhere else
)

// Stages are all, in the order in which a version goes through them.
var Stages = []Stage{Active, Deprecated, Retired}

// An AppVersion is one immutable version of an application.
type AppVersion struct {
	AppID       string          `json:"appId"`   // id of the application
	Version     string          `json:"version"` // as its description names it
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"` // absent: none
	Source      string          `json:"source" doc:"where it was imported from: git URL and commit, OCI reference, or directory"`
	Digest      protocol.Digest `json:"digest" doc:"digest of the margo.yaml"`
	Profiles    []Profile       `json:"profiles"`   // in the order of the description
	Parameters  []Parameter     `json:"parameters"` // in the order of the description
	Document    string          `json:"document,omitempty" doc:"the margo.yaml, byte for byte; only where one version is asked for"`
	ImportedAt  time.Time       `json:"importedAt"` // when it was imported
	Stage       Stage           `json:"stage" enum:"active,deprecated,retired"`
	StageReason string          `json:"stageReason,omitempty" doc:"why it is deprecated or retired, and what to deploy instead, in words of the person who did that"`
	StageSince  *time.Time      `json:"stageSince,omitempty"` // absent: it is active since its import
}

// Refusal says why a version that is retired is not deployed, and what to do.
func (v *AppVersion) Refusal() error {
	return protocol.Errorf(protocol.Denied, "application %s %s is retired%s: deploy another version, or make it active with colony app activate %s@%s", v.AppID, v.Version, v.because(), v.AppID, v.Version)
}

// Warning says that a version is deprecated; "": it is not.
func (v *AppVersion) Warning() string {
	if v.Stage != Deprecated {
		return ""
	}
	return fmt.Sprintf("application %s %s is deprecated%s", v.AppID, v.Version, v.because())
}

func (v *AppVersion) because() string {
	if v.StageReason == "" {
		return ""
	}
	return " (" + v.StageReason + ")"
}

// A Profile is one way to deploy an application.
type Profile struct {
	ID          string      `json:"id"`
	Type        string      `json:"type" enum:"helm,compose,custom"` // Colony runs compose
	Description string      `json:"description,omitempty"`           // absent: none
	Components  []Component `json:"components"`                      // in the order of the description
}

// A Component is one part of a profile.
type Component struct {
	Name       string `json:"name"`
	Repository string `json:"repository"` // the OCI repository of the component
	Revision   string `json:"revision"`   // its tag or digest there
}

// A Parameter is what a user may set.
type Parameter struct {
	Name        string `json:"name"`
	Label       string `json:"label,omitempty"`       // its name for people; absent: none
	Description string `json:"description,omitempty"` // for people; absent: none
	Default     any    `json:"default,omitempty"`     // absent: a deployment must set it, if it is required
	Immutable   bool   `json:"immutable,omitempty" doc:"may not change after the first install"`
	Schema      any    `json:"schema,omitempty" doc:"the Margo configuration schema of the value"`
}

// What needs an image of the CO's registry.
const (
	UsedByDeployment  = "deployment"  // one of the deployments repo
	UsedByNode        = "node"        // it has a specification that names it
	UsedByApplication = "application" // a version in the catalog
)

// An ImageUse is a user of content of the CO's registry.
type ImageUse struct {
	Kind  string `json:"kind" enum:"deployment,node,application"` // what uses the content
	Name  string `json:"name" doc:"SITE/DEPLOYMENT, SITE/NODE, or APP@VERSION"`
	Needs string `json:"needs" doc:"the image or archive as it is named there"`
}

// A SpecUse is a specification of a deployment, and the nodes or sites that have it.
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
	Online      bool            `json:"online"` // whether the LO is connected to the CO
	OnlineSince *time.Time      `json:"onlineSince,omitempty" doc:"when Online last changed"`
	Version     string          `json:"version,omitempty" doc:"of the LO program"`
	Problem     string          `json:"problem,omitempty" doc:"what is wrong with the machine of its LO, and what to do, such as a full disk, as the LO said last"`
	// ClockUnsynced stands only in the answer for one site.
	ClockUnsynced bool `json:"clockUnsynced,omitempty" doc:"the clock of its LO was not synchronised when it wrote its last event: times that it gives may be wrong; only in the answer for one site"`

	Nodes        int        `json:"nodes"` // how many it has
	NodesOnline  int        `json:"nodesOnline" doc:"known to be online"`
	NodesUnknown int        `json:"nodesUnknown" doc:"of which the CO does not know whether they are online: all, while the site is offline"`
	Deployments  int        `json:"deployments"` // how many it has
	Generation   uint64     `json:"generation" doc:"of the desired state that the CO published last"`
	Adopted      uint64     `json:"adopted" doc:"generation that the LO reported last"`
	Commit       string     `json:"commit,omitempty" doc:"commit of the deployments repo behind Generation"`
	JournalEpoch string     `json:"journalEpoch,omitempty"` // of the LO's stream of events; absent: none has arrived
	JournalSeq   uint64     `json:"journalSeq" doc:"last sequence committed here"`
	EventsLost   uint64     `json:"eventsLost" doc:"events that the site reported as lost, ever"`
	LastEventAt  *time.Time `json:"lastEventAt,omitempty"` // when its last event arrived; absent: none has
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
	Labels     map[string]string   `json:"labels,omitempty"` // of its inventory
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
	App        string                  `json:"app"` // id of its application
	AppVersion string                  `json:"appVersion" doc:"the desired version; running says what runs"`
	Profile    string                  `json:"profile,omitempty"` // of the application; absent: the default one
	State      lifecycle.State         `json:"state"`
	Counts     map[lifecycle.State]int `json:"counts"` // how many nodes have it in each state
	Digest     protocol.Digest         `json:"digest,omitempty" doc:"desired version"`
	Commit     string                  `json:"commit,omitempty" doc:"last commit that changed it; also its ETag"`
	Problem    string                  `json:"problem,omitempty" doc:"why it cannot be compiled or placed"`
	Held       string                  `json:"held,omitempty" doc:"id of the proposal that holds its removal: it stays as it is until that is confirmed"`
	Withdrawn  bool                    `json:"withdrawn,omitempty" doc:"that proposal was withdrawn: it stays as it is until it is deleted by name, or deployed again"`
	Rejected   map[string]string       `json:"rejected,omitempty" doc:"node to reason, where a node was not chosen"`
	Notes      []string                `json:"notes,omitempty" doc:"in the answer to a change: what to know about it, as that its version is deprecated"`
	Nodes      []DeploymentNode        `json:"nodes,omitempty"` // in the view of one deployment alone
	CreatedAt  time.Time               `json:"createdAt"`       // when its file was first committed
	UpdatedAt  time.Time               `json:"updatedAt"`       // when its record last changed
	Archived   bool                    `json:"archived,omitempty" doc:"removed from the repo and from every node"`
	Observation
}

// A DeploymentNode is a deployment on one node.
type DeploymentNode struct {
	Node        protocol.NodeID `json:"node"`
	State       lifecycle.State `json:"state"`
	Phase       protocol.Phase  `json:"phase,omitempty"`
	PulledBytes uint64          `json:"pulledBytes,omitempty"` // of TotalBytes; absent: nothing is pulled
	TotalBytes  uint64          `json:"totalBytes,omitempty"`  // of the images that are pulled; absent: not known
	Digest      protocol.Digest `json:"digest,omitempty" doc:"the version that the state is about"`
	Refused     protocol.Digest `json:"refused,omitempty" doc:"the version that was given up"`
	AppVersion  string          `json:"appVersion,omitempty"` // that runs or is installed; absent: not known
	Attempt     uint32          `json:"attempt,omitempty"`    // at this version, from 1; absent: none yet
	Code        protocol.Code   `json:"code,omitempty"`
	Message     string          `json:"message,omitempty"` // of the last failure or progress; absent: none
	Waits       string          `json:"waits,omitempty" doc:"what is not carried out on the node as a person has drained or holds it, or the site is outside of its maintenance windows, and why; waits of the node has until when; absent: nothing waits"`

	Running        protocol.Digest `json:"running,omitempty" doc:"the version that the node keeps up; absent: none, or it is not known"`
	RunningVersion string          `json:"runningVersion,omitempty" doc:"the application version of running"`
	RetryAt        *time.Time      `json:"retryAt,omitempty" doc:"when the site makes the next attempt, by its clock; absent: none is planned"`

	Components []protocol.ComponentStatus `json:"components,omitempty"` // as the node reported them last
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
	Kind       string                  `json:"kind"` // one of EventKinds, or of protocol.EventKind
	Site       protocol.SiteID         `json:"site,omitempty"`
	Node       protocol.NodeID         `json:"node,omitempty"`
	Deployment protocol.DeploymentName `json:"deployment,omitempty"`
	From       lifecycle.State         `json:"from,omitempty"` // of a transition
	To         lifecycle.State         `json:"to,omitempty"`   // of a transition
	Phase      protocol.Phase          `json:"phase,omitempty"`
	Pulled     uint64                  `json:"pulledBytes,omitempty"` // bytes that are pulled, of a progress
	Total      uint64                  `json:"totalBytes,omitempty"`  // bytes to pull, of a progress
	AppVersion string                  `json:"appVersion,omitempty"`  // that the event is about; absent: none
	Code       protocol.Code           `json:"code,omitempty"`
	Message    string                  `json:"message,omitempty"` // for people; absent: none
}

// Kinds of events that the CO makes itself; the others are protocol.EventKind.
const (
	AppImported       = "app_imported"       // a version of an application was imported
	AppRemoved        = "app_removed"        // a version of an application was removed
	AppStageChanged   = "app_stage_changed"  // a version of an application was deprecated, retired, or made active; Message says which, and why
	DeploymentCreated = "deployment_created" // the deployments repo has a new deployment
	DeploymentChanged = "deployment_changed" // the file of a deployment has changed
	DeploymentRemoved = "deployment_removed" // the file of a deployment was removed
	DeploymentInvalid = "deployment_invalid" // a bad file in the deployments repo; Message says where
	// DeploymentWaiting is a file that cannot be compiled because a part, as a registry,
	// is away; Message says which.
	DeploymentWaiting = "deployment_waiting"
	FileIgnored       = "file_ignored" // in no place of the deployments repo that is read, or under no such name
	SiteAdded         = "site_added"   // because the deployments repo has files for it
	SiteOnline        = "site_online"  // an LO has connected
	SiteOffline       = "site_offline" // an LO has disconnected
	// SiteProblem and NodeProblem say what is wrong with the machine of an LO or a node, or
	// that it is over.
	SiteProblem = "site_problem"
	NodeProblem = "node_problem"
	// RetryPlanned and GivenUp are what an LO decides about a deployment that is FAILED on a node:
	// when it tries again, or that it does not; Message says it.
	RetryPlanned   = "retry_planned"
	GivenUp        = "given_up"
	JournalGap     = "journal_gap"     // events that will never arrive, with their number
	GitUnreachable = "git_unreachable" // the deployments repo cannot be read
	GitReachable   = "git_reachable"   // the deployments repo can be read again
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
	ProposalConfirmed  = "proposal_confirmed"  // a person confirmed a proposal
	ProposalSuperseded = "proposal_superseded" // a later commit replaced a proposal
	ProposalWithdrawn  = "proposal_withdrawn"  // a person, or a commit, withdrew a proposal

	// RolloutStarted and the others are about revisions of a fleet deployment, which Deployment names; Message says which
	// one, and why.
	RolloutStarted  = "rollout_started"
	RolloutWave     = "rollout_wave"     // a wave of a rollout has begun
	RolloutPaused   = "rollout_paused"   // a person, or a failure, paused a rollout
	RolloutHeld     = "rollout_held"     // by a gate
	RolloutResumed  = "rollout_resumed"  // a person resumed a rollout
	RolloutPromoted = "rollout_promoted" // a person let a rollout go on to its next wave
	RolloutAborted  = "rollout_aborted"  // a rollout was aborted
	RolloutDone     = "rollout_done"     // the last wave of a rollout is through
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
	AppImported, AppRemoved, AppStageChanged, DeploymentCreated, DeploymentChanged, DeploymentRemoved, DeploymentInvalid, DeploymentWaiting, FileIgnored,
	SiteAdded, SiteOnline, SiteOffline, SiteProblem, NodeProblem, RetryPlanned, GivenUp, JournalGap, GitUnreachable, GitReachable, CountersRepaired, MachineEnrolled, MachineRefused, MachinePending, MachineApproved, MachineRejected, MachineRevoked, string(protocol.RevocationsAdopted), string(protocol.RevocationsRefused), string(protocol.ClocksDiffer),
	string(protocol.ClientConnected), string(protocol.ClientDisconnected), string(protocol.ClientsChanged), string(protocol.CommandReceived), string(protocol.CommandResult),
	DataRulesChanged, DataRulesInvalid, DevicesChanged, MaintenanceChanged, DataDropped,
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
	// Open says that the proposal waits for a person.
	Open bool
}

// A Hold says why a deployment stays as it was although the deployments repo says otherwise.
// The zero Hold holds nothing.
type Hold struct {
	Proposal string // its id
	Commit   string // which asks for the change
	Cause    string // as in package proposal
}
