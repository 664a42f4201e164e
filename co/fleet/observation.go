package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// An Observation says what is known of a deployment at its site, and as of when.
type Observation struct {
	Running      map[string]int `json:"running" doc:"versions that nodes keep up, with the number of nodes"`
	Installed    int            `json:"installed" doc:"nodes on which the desired version is INSTALLED"`
	DesiredNodes int            `json:"desiredNodes" doc:"nodes that should run it; without replicas those that the site has chosen"`
	Since        *time.Time     `json:"since,omitempty" doc:"when the state of a node, or what is desired, last changed, by the CO's clock"`
	Reason       string         `json:"reason,omitempty" doc:"why the state is not INSTALLED, is not what the deployments repo says, or may be outdated"`

	Generation         uint64     `json:"generation" doc:"of the site's desired state that last changed the deployment"`
	ObservedGeneration uint64     `json:"observedGeneration" doc:"of the desired state that the site last adopted"`
	SiteOnline         bool       `json:"siteOnline"` // whether the LO is connected to the CO
	ReportedAt         *time.Time `json:"reportedAt,omitempty" doc:"when the site last reported anything; absent: never"`

	// Of a site that is offline nothing is known of its nodes.
	NodesAway int             `json:"nodesAway,omitempty" doc:"nodes that hold it and are offline while the site is online, in a list as far as its first 100 nodes are looked at: what is shown of them is of before"`
	AwayNode  protocol.NodeID `json:"awayNode,omitempty" doc:"of which the one that has been offline for longest"`
	AwaySince *time.Time      `json:"awaySince,omitempty" doc:"since when AwayNode is offline, by the CO's clock: what is shown of it is as of then"`
}

// away says which nodes are offline, and what waits for them.
func (d *Deployment) away() string {
	node := "node " + string(d.AwayNode) + " is offline"
	if d.AwaySince != nil {
		node += " since " + d.AwaySince.UTC().Format(time.RFC3339)
	}
	if d.NodesAway > 1 {
		node = fmt.Sprintf("%d nodes that hold it are offline, of which %s", d.NodesAway, node)
	}
	if d.State == lifecycle.Deleting {
		return fmt.Sprintf("the removal waits until a node that is offline is back: %s; a node that does not come back is given up by: colony node remove %s/%s", node, d.Site, d.AwayNode)
	}
	return node + ", and shown as of then"
}

// Explain returns, for people, why a deployment is not INSTALLED, why it still is although the
// deployments repo does not have it, or why its state may be outdated. It is empty for a deployment
// that is INSTALLED at an online site, on online nodes. fault is what a node reported of a failure.
func (d *Deployment) Explain(fault string) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	switch {
	case d.Held != "" && d.Withdrawn:
		add("it stays until it is deleted by name, or deployed again: its removal was refused (proposal %s was withdrawn)", d.Held)
	case d.Held != "":
		add("removal held (proposal %s)", d.Held)
	}
	if d.State == lifecycle.Installed && d.Digest == "" && d.Problem != "" {
		add("%s", d.Problem)
	}
	if d.State != lifecycle.Installed && d.State != lifecycle.Deleted {
		if d.Problem != "" {
			add("%s", d.Problem)
		}
		if d.Generation > d.ObservedGeneration {
			add("site %s has adopted generation %d, and the last change is of %d", d.Site, d.ObservedGeneration, d.Generation)
		}
		if fault != "" {
			add("node %s", fault)
		}
		if d.Installed < d.DesiredNodes && d.Digest != "" && d.State != lifecycle.Deleting {
			add("%s runs on %d of %d nodes", d.AppVersion, d.Installed, d.DesiredNodes)
		}
	}
	if d.SiteOnline && d.NodesAway > 0 && d.State != lifecycle.Deleted {
		add("%s", d.away())
	}
	if !d.SiteOnline && d.State != lifecycle.Deleted {
		switch d.ReportedAt {
		case nil:
			add("site %s has never reported", d.Site)
		default:
			add("site %s is offline and reported last at %s", d.Site, d.ReportedAt.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(why, "; ")
}
