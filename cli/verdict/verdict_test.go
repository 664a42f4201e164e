package verdict

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	want, old := protocol.DigestOf([]byte("new")), protocol.DigestOf([]byte("old"))
	on := func(nodes ...fleet.DeploymentNode) fleet.Deployment {
		return fleet.Deployment{Digest: want, Nodes: nodes}
	}
	node := func(s lifecycle.State, d, refused protocol.Digest) fleet.DeploymentNode {
		return fleet.DeploymentNode{Node: "n", State: s, Digest: d, Refused: refused}
	}
	adopted := fleet.Site{Online: true, Generation: 2, Adopted: 2}
	behind := fleet.Site{Online: true, Generation: 2, Adopted: 1}
	away := fleet.Site{Generation: 2, Adopted: 1}
	bad := fleet.Deployment{Problem: "not placeable", Rejected: map[string]string{"n": "no label"}}
	for _, tt := range []struct {
		name    string
		d       fleet.Deployment
		site    fleet.Site
		settled bool
		bad     bool
	}{
		{"not compiled yet", fleet.Deployment{}, adopted, false, false},
		{"no node yet", on(), adopted, false, false},
		{"installed", on(node(lifecycle.Installed, want, "")), adopted, true, false},
		{"installed, but the site has not adopted the change", on(node(lifecycle.Installed, want, "")), behind, false, false},
		{"still the old one", on(node(lifecycle.Installed, old, "")), adopted, false, false},
		{"rolled back", on(node(lifecycle.Installed, old, want)), adopted, true, true},
		{"given up", on(node(lifecycle.Failed, want, want)), adopted, true, true},
		{"failed, but it is tried again", on(node(lifecycle.Failed, want, "")), adopted, false, false},
		{"one is not there", on(node(lifecycle.Installed, want, ""), node(lifecycle.Updating, want, "")), adopted, false, false},
		{"moved to another node", on(node(lifecycle.Deleted, old, ""), node(lifecycle.Installed, want, "")), adopted, true, false},
		{"removed everywhere", on(node(lifecycle.Deleted, old, "")), adopted, false, false},
		{"on fewer nodes than desired", fleet.Deployment{Digest: want, Nodes: []fleet.DeploymentNode{node(lifecycle.Installed, want, "")}, Observation: fleet.Observation{DesiredNodes: 5}}, adopted, false, false},
		{"not placeable", bad, adopted, true, true},
		{"not placeable, from before the change", bad, behind, false, false},
		{"does not compile, and the site is away", bad, away, true, true},
	} {
		settled, err := Judge(tt.d, tt.site)
		if settled != tt.settled || (err != nil) != tt.bad {
			t.Errorf("%s: settled %t, %v", tt.name, settled, err)
		}
	}
}

// TestHealthWindow judges a deployment whose container exits and is restarted, as an
// agent reports it while the deployment stays INSTALLED.
func TestHealthWindow(t *testing.T) {
	t.Parallel()
	is := func(state string, restarts uint32) fleet.Deployment {
		return fleet.Deployment{Observation: fleet.Observation{SiteOnline: true}, Nodes: []fleet.DeploymentNode{
			{Node: "old", State: lifecycle.Deleted, Components: []protocol.ComponentStatus{{State: "exited"}}},
			{Node: "n", State: lifecycle.Installed, Components: []protocol.ComponentStatus{{Component: "c", State: state, Restarts: restarts}}},
		}}
	}
	start := time.Now()
	var w HealthWindow
	for _, tt := range []struct {
		second   int
		state    string
		restarts uint32
		want     bool
	}{
		{0, "running", 0, false},
		{3, "exited", 0, false},
		{14, "exited", 0, false}, // its restart waits
		{15, "running", 1, false},
		{24, "running", 1, false},
		{25, "running", 2, false},
		{34, "running", 2, false},
		{35, "running", 2, true},
	} {
		if got := w.Passed(is(tt.state, tt.restarts), start.Add(time.Duration(tt.second)*time.Second), 10*time.Second); got != tt.want {
			t.Errorf("after %d s, %s with %d restarts: healthy %t, want %t", tt.second, tt.state, tt.restarts, got, tt.want)
		}
	}
}

// TestHealthWindowOfWhatIsOffline judges a deployment whose node, or site, goes offline and is back: what was shown of it meanwhile does not count.
func TestHealthWindowOfWhatIsOffline(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(d *fleet.Deployment){
		"node": func(d *fleet.Deployment) { d.NodesAway = 1 },
		"site": func(d *fleet.Deployment) { d.SiteOnline = false },
	} {
		var w HealthWindow
		start := time.Now()
		for _, tt := range []struct {
			second        int
			offline, want bool
		}{{0, false, false}, {9, true, false}, {60, true, false}, {61, false, false}, {69, false, false}, {70, false, true}} {
			d := fleet.Deployment{Observation: fleet.Observation{SiteOnline: true}, Nodes: []fleet.DeploymentNode{
				{Node: "n", State: lifecycle.Installed, Components: []protocol.ComponentStatus{{Component: "c", State: "running"}}},
			}}
			if tt.offline {
				away(&d)
			}
			if got := w.Passed(d, start.Add(time.Duration(tt.second)*time.Second), 10*time.Second); got != tt.want {
				t.Errorf("%s after %d s, offline %t: healthy %t, want %t", name, tt.second, tt.offline, got, tt.want)
			}
		}
	}
}
