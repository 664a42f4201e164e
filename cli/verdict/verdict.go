// Package verdict judges whether a deployment that a command waits for has settled, and
// whether it is healthy, and words for tables what is known of nodes. It is pure.
package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// A HealthWindow measures for how long a deployment has been healthy without a change.
type HealthWindow struct {
	seen  string    // what was compared last
	since time.Time // with a monotonic reading; when seen began
}

// Passed reports whether the deployment has been as it is now for at least healthy. A
// container that is not up has never been healthy: one that exited and that the agent is
// about to restart leaves the deployment INSTALLED. Nor has one of a site or a node that is
// offline: what is shown of it is of before.
func (w *HealthWindow) Passed(d fleet.Deployment, now time.Time, healthy time.Duration) bool {
	var b strings.Builder
	up := d.SiteOnline && d.NodesAway == 0
	for _, n := range d.Nodes {
		if n.State == lifecycle.Deleted {
			continue
		}
		fmt.Fprintf(&b, "%s %s %s %d\n", n.Node, n.State, n.Digest, n.Attempt)
		for _, c := range n.Components {
			fmt.Fprintf(&b, "%s %s %s %d\n", c.Component, c.Container, c.State, c.Restarts)
			up = up && (c.State == "running" || c.State == "healthy" || c.State == "completed")
		}
	}
	if b.String() != w.seen || !up {
		w.seen, w.since = b.String(), now
	}
	return up && now.Sub(w.since) >= healthy
}

// Judge reports whether a deployment has settled, and the error if it failed. It has
// not settled before its site has adopted the desired state; of a site that is
// offline only a problem counts.
func Judge(d fleet.Deployment, site fleet.Site) (settled bool, err error) {
	adopted := site.Adopted >= site.Generation
	if d.Problem != "" && (adopted || !site.Online) {
		return true, fmt.Errorf("%s/%s: %s%s", d.Site, d.Name, d.Problem, Reasons(d.Rejected))
	}
	if !adopted || d.Problem != "" || d.Digest == "" {
		return false, nil
	}
	there, failed := 0, ""
	for _, n := range d.Nodes {
		switch {
		case n.State == lifecycle.Deleted: // it ran there once
			continue
		case n.State == lifecycle.Installed && n.Digest == d.Digest:
		case n.State == lifecycle.Installed && n.Refused == d.Digest:
			failed = fmt.Sprintf("node %s went back to %s: %s: %s", n.Node, n.AppVersion, n.Code, n.Message)
		case n.State == lifecycle.Failed && n.Refused == d.Digest:
			failed = fmt.Sprintf("node %s gave up: %s: %s", n.Node, n.Code, n.Message)
		default:
			return false, nil
		}
		there++
	}
	if failed != "" {
		return true, fmt.Errorf("%s/%s: %s", d.Site, d.Name, failed)
	}
	return there > 0 && there >= d.DesiredNodes, nil
}

// Reasons lists, for people, why nodes were not chosen, each on a line of its own.
func Reasons(rejected map[string]string) string {
	var b strings.Builder
	for _, node := range slices.Sorted(maps.Keys(rejected)) {
		fmt.Fprintf(&b, "\n  %s: %s", node, rejected[node])
	}
	return b.String()
}
