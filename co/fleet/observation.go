package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// An Observation says what is known of a deployment at its site, and as of when.
type Observation struct {
	Running      map[string]int `json:"running" doc:"versions that are INSTALLED, with the number of nodes"`
	Installed    int            `json:"installed" doc:"nodes on which the desired version is INSTALLED"`
	DesiredNodes int            `json:"desiredNodes" doc:"nodes that should run it; without replicas those that the site has chosen"`
	Since        *time.Time     `json:"since,omitempty" doc:"when the state of a node, or what is desired, last changed, by the CO's clock"`
	Reason       string         `json:"reason,omitempty" doc:"why the state is not INSTALLED, is not what the deployments repo says, or may be outdated"`

	Generation         uint64     `json:"generation" doc:"of the site's desired state that last changed the deployment"`
	ObservedGeneration uint64     `json:"observedGeneration" doc:"of the desired state that the site last adopted"`
	SiteOnline         bool       `json:"siteOnline"`
	ReportedAt         *time.Time `json:"reportedAt,omitempty" doc:"when the site last reported anything; absent: never"`
}

// Explain returns, for people, why a deployment is not INSTALLED, why it is although the
// deployments repo does not want it, or why what is shown of it may be outdated: empty where
// it is INSTALLED at a site that is online. fault is what
// a node reported of a failure.
func (d *Deployment) Explain(fault string) string {
	var why []string
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if d.Held != "" {
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
