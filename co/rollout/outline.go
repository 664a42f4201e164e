package rollout

import "github.com/colonyfleet/colony/protocol"

// An Effect is what a revision does at a site, or on a node.
type Effect string

// The effects. A node has none of Conflict, and what it has of Reject no site has.
const (
	Place    Effect = "place"    // the deployment is new there
	Update   Effect = "update"   // it becomes another
	Same     Effect = "same"     // it is as it was
	Remove   Effect = "remove"   // the site, or the node, is not meant any more
	Conflict Effect = "conflict" // the site has a deployment of that name of its own, which stays
	Reject   Effect = "reject"   // the node is not chosen, and does not have it
)

// An Outline is what a fleet deployment would do, before it does.
type Outline struct {
	// ID is made of the head of the deployments repo, the files and the effects.
	ID     string                  `json:"id" doc:"of this plan: a change that names it is refused where the deployments repo, or what would be done, is another by then"`
	Commit string                  `json:"commit" doc:"head of the deployments repo that the plan is for"`
	Fleet  protocol.DeploymentName `json:"fleet"` // name of the fleet deployment
	// Effects are how many sites there are of each effect.
	Effects map[Effect]int `json:"effects" doc:"how many sites there are of each effect: place, update, same, remove, conflict"`
	// Nodes are how many nodes there are of each effect, at LookedAt sites.
	Nodes    map[Effect]int `json:"nodes" doc:"how many nodes there are of each effect: place, update, same, remove, reject; of the sites that were looked at"`
	LookedAt int            `json:"lookedAt" doc:"at how many sites the nodes were looked at: those that are named, up to 20,000 nodes"`
	Steps    []OutlineStep  `json:"steps" doc:"from which version to which sites go, by effect"`
	Held     []OutlineHold  `json:"held,omitempty" doc:"what would wait as a proposal, until a person confirms it; absent: nothing"`
	Waves    []OutlineWave  `json:"waves"` // in their order
	Sites    []OutlineSite  `json:"sites" doc:"those that it is removed from, then by wave, and within it in the sequence in which they are admitted; at most 1,000"`
	More     int            `json:"more" doc:"how many further sites there are"`
	Notes    []string       `json:"notes,omitempty" doc:"what may be a mistake, such as a target that is no site"`
}

// An OutlineStep are the sites that go from one version of the application to another by the same effect.
type OutlineStep struct {
	Effect Effect `json:"effect" enum:"place,update,same,remove"`
	From   string `json:"from,omitempty"` // version of the application; absent: it is new there
	To     string `json:"to,omitempty"`   // likewise; absent: it is removed
	Sites  int    `json:"sites"`          // how many there are
}

// An OutlineHold are changes that would wait until a person confirms them.
type OutlineHold struct {
	Cause string `json:"cause" doc:"why they are held"`
	Sites int    `json:"sites"` // how many there are
}

// An OutlineWave is a wave of an Outline.
type OutlineWave struct {
	Sites    int    `json:"sites"`              // how many sites it has
	Percent  int    `json:"percent,omitempty"`  // of all sites that have the revision once the wave is through; absent: none given
	Group    string `json:"group,omitempty"`    // as the file says; absent: none
	Bake     string `json:"bake,omitempty"`     // how long it must be healthy; absent: no time
	Approval bool   `json:"approval,omitempty"` // whether a person must promote it
}

// An OutlineSite is a site of an Outline.
type OutlineSite struct {
	Site   protocol.SiteID `json:"site"`
	Wave   int             `json:"wave" doc:"from 0; -1: of none"`
	Effect Effect          `json:"effect" enum:"place,update,same,remove,conflict"`
	Online bool            `json:"online"`              // whether its LO is connected
	From   string          `json:"from,omitempty"`      // version of the application that it may have now; absent: none
	To     string          `json:"to,omitempty"`        // that it would have; absent: none, or its own deployment stays
	Values bool            `json:"exception,omitempty"` // whether the site has values of its own in an exception
	Held   string          `json:"held,omitempty" doc:"why the change would wait there until a person confirms it; absent: it would not"`
	Nodes  []OutlineNode   `json:"nodes,omitempty" doc:"at most 100, those that change first; absent: none, or they were not looked at"`
	More   int             `json:"moreNodes,omitempty"` // how many further nodes there are; absent: none
}

// An OutlineNode is a node of an OutlineSite.
type OutlineNode struct {
	Node   protocol.NodeID `json:"node"`
	Effect Effect          `json:"effect" enum:"place,update,same,remove,reject"`
	From   string          `json:"from,omitempty"` // version that it runs; absent: none, or it is not known
	To     string          `json:"to,omitempty"`   // version that it would run; absent: none
	Why    string          `json:"why,omitempty"`  // why it is not chosen; absent: it is
}

// MaxOutlineSites bounds the sites that an Outline names, and MaxOutlineNodes the nodes of one.
const (
	MaxOutlineSites = 1000
	MaxOutlineNodes = 100
)
