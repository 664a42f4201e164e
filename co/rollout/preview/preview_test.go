package preview_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/rollout"
	"github.com/colonyfleet/colony/co/rollout/preview"
	"github.com/colonyfleet/colony/placement"
	"github.com/colonyfleet/colony/protocol"
)

// version is what a site has of an application that is for nodes of a hall.
func version(v, hall string) *preview.Version {
	return &preview.Version{App: v, Content: []byte(v + hall), Entry: protocol.SiteEntry{Deployment: "meter", Placement: protocol.Placement{Selector: map[string]string{"hall": hall}}}}
}

func node(id protocol.NodeID, hall string, runs ...protocol.DeploymentName) placement.Node {
	return placement.Node{ID: id, Online: true, Inventory: &protocol.Inventory{Labels: map[string]string{"hall": hall}}, Runs: runs}
}

func facts(running int, nodes ...placement.Node) preview.Facts {
	f := preview.Facts{Online: true, Running: running, Known: true, Nodes: nodes, Versions: map[protocol.NodeID]string{}}
	for _, n := range nodes {
		if len(n.Runs) > 0 {
			f.Versions[n.ID] = "1.0.0"
		}
	}
	return f
}

func input(sites ...preview.Site) preview.Input {
	return preview.Input{
		Fleet: "meter", Commit: "0123456789abcdef", Source: []byte("x"), Limits: proposal.DefaultLimits, Sites: sites,
		Waves: []rollout.OutlineWave{{Percent: 10}, {Percent: 100}},
	}
}

// TestEffects has a site of each effect, with what becomes of its nodes.
func TestEffects(t *testing.T) {
	t.Parallel()
	out := preview.Of(input(
		preview.Site{ID: "left", Wave: -1, Before: version("1.0.0", "7"), Facts: facts(1, node("gw-1", "7", "meter"), node("gw-2", "7"))},
		preview.Site{ID: "new", Wave: 0, After: version("1.1.0", "7"), Facts: facts(0, node("gw-1", "6"), node("gw-2", "7"))},
		preview.Site{ID: "more", Wave: 1, Before: version("1.0.0", "7"), After: version("1.1.0", "7"), Exception: true, Facts: facts(1, node("gw-1", "6", "meter"), node("gw-2", "7", "meter"), node("gw-3", "7"))},
		preview.Site{ID: "same", Wave: 1, Before: version("1.1.0", "7"), After: version("1.1.0", "7"), Facts: facts(1, node("gw-1", "7", "meter"))},
		preview.Site{ID: "own", Wave: 1, Own: true, After: version("1.1.0", "7"), Facts: facts(1, node("gw-1", "7", "meter"))},
		preview.Site{ID: "far", Wave: 1, After: version("1.1.0", "7")},
	))
	if want := map[rollout.Effect]int{rollout.Place: 2, rollout.Update: 1, rollout.Same: 1, rollout.Remove: 1, rollout.Conflict: 1}; !maps.Equal(out.Effects, want) {
		t.Errorf("sites: %v, want %v", out.Effects, want)
	}
	want := []rollout.OutlineSite{
		{Site: "left", Wave: -1, Effect: rollout.Remove, Online: true, From: "1.0.0", Nodes: []rollout.OutlineNode{{Node: "gw-1", Effect: rollout.Remove, From: "1.0.0"}}},
		{Site: "new", Effect: rollout.Place, Online: true, To: "1.1.0", Nodes: []rollout.OutlineNode{
			{Node: "gw-2", Effect: rollout.Place, To: "1.1.0"}, {Node: "gw-1", Effect: rollout.Reject, Why: `its label hall is "6"; wanted "7"`},
		}},
		{Site: "more", Wave: 1, Effect: rollout.Update, Online: true, From: "1.0.0", To: "1.1.0", Values: true, Nodes: []rollout.OutlineNode{
			{Node: "gw-3", Effect: rollout.Place, To: "1.1.0"},
			{Node: "gw-2", Effect: rollout.Update, From: "1.0.0", To: "1.1.0"},
			{Node: "gw-1", Effect: rollout.Remove, From: "1.0.0", Why: `its label hall is "6"; wanted "7"`},
		}},
		{Site: "same", Wave: 1, Effect: rollout.Same, Online: true, From: "1.1.0", To: "1.1.0", Nodes: []rollout.OutlineNode{{Node: "gw-1", Effect: rollout.Same, From: "1.0.0", To: "1.1.0"}}},
		{Site: "own", Wave: 1, Effect: rollout.Conflict, Online: true},
		{Site: "far", Wave: 1, Effect: rollout.Place, To: "1.1.0"},
	}
	if diff := cmp.Diff(want, out.Sites); diff != "" {
		t.Error(diff)
	}
	if out.LookedAt != 5 || out.Waves[0].Sites != 1 || out.Waves[1].Sites != 4 || len(out.Held) != 0 {
		t.Errorf("%+v", out)
	}
	steps := []rollout.OutlineStep{
		{Effect: rollout.Place, To: "1.1.0", Sites: 2},
		{Effect: rollout.Remove, From: "1.0.0", Sites: 1},
		{Effect: rollout.Same, From: "1.1.0", To: "1.1.0", Sites: 1},
		{Effect: rollout.Update, From: "1.0.0", To: "1.1.0", Sites: 1},
	}
	if diff := cmp.Diff(steps, out.Steps); diff != "" {
		t.Error(diff)
	}
}

// TestWhatWaits has removals and a change of the nodes that would wait until a person confirms them.
func TestWhatWaits(t *testing.T) {
	t.Parallel()
	left := func(site protocol.SiteID, running int) preview.Site {
		return preview.Site{ID: site, Wave: -1, Before: version("1.0.0", "7"), Facts: facts(running, node("gw-1", "7", "meter"))}
	}
	out := preview.Of(input(
		left("a", 1), left("b", 20),
		preview.Site{ID: "c", Before: version("1.0.0", "7"), After: version("1.0.0", "9"), Facts: facts(1, node("gw-1", "7", "meter"))},
		preview.Site{ID: "d", After: version("1.0.0", "9"), Facts: facts(1, node("gw-1", "7"))},
	))
	if diff := cmp.Diff([]rollout.OutlineHold{{Cause: string(proposal.Many), Sites: 1}, {Cause: string(proposal.NoNode), Sites: 1}}, out.Held); diff != "" {
		t.Error(diff)
	}
	if out.Sites[0].Held == "" || out.Sites[1].Held != "" || out.Sites[2].Held == "" || out.Sites[3].Held != "" || len(out.Sites[2].Nodes) != 0 {
		t.Errorf("%+v", out.Sites)
	}
	if len(out.Notes) != 1 || !strings.Contains(out.Notes[0], "at 2 of 2 sites that were looked at no node would run it") || !strings.Contains(out.Notes[0], `d: not placeable: no node matches (gw-1: its label hall is "7"; wanted "9")`) {
		t.Errorf("%q", out.Notes)
	}
}

// TestAPlanNamesWhatItIs compares ids: each effect counts, and whether a site is online does not.
func TestAPlanNamesWhatItIs(t *testing.T) {
	t.Parallel()
	sites := func() []preview.Site {
		return []preview.Site{{ID: "a", After: version("1.0.0", "7"), Facts: facts(0, node("gw-1", "7"))}}
	}
	first := preview.Of(input(sites()...))
	for name, c := range map[string]struct {
		change func(*preview.Input)
		says   string
	}{
		"nothing": {func(*preview.Input) {}, ""},
		"offline": {func(in *preview.Input) { in.Sites[0].Facts.Online = false }, ""},
		"commit":  {func(in *preview.Input) { in.Commit = "ffff456789abcdef" }, "whose head is ffff456789ab now"},
		"file":    {func(in *preview.Input) { in.Source = []byte("y") }, "does not hold any more"},
		"wave":    {func(in *preview.Input) { in.Sites[0].Wave = 1 }, "does not hold any more"},
		"a node":  {func(in *preview.Input) { in.Sites[0].Facts = facts(0, node("gw-2", "7")) }, "does not hold any more"},
		"another site": {func(in *preview.Input) {
			in.Sites = append(in.Sites, preview.Site{ID: "b", After: version("1.0.0", "7")})
		}, "does not hold any more"},
	} {
		in := input(sites()...)
		c.change(&in)
		now := preview.Of(in)
		err := preview.Check(first.ID, &now)
		if c.says == "" && err != nil || c.says != "" && (protocol.KindOf(err) != protocol.Conflict || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if err := preview.Check("x", &first); protocol.KindOf(err) != protocol.Invalid {
		t.Errorf("no id: %v", err)
	}
}

// TestIdle refuses a change that changes nothing, as all sites have deployments of their own.
func TestIdle(t *testing.T) {
	t.Parallel()
	var sites []preview.Site
	for i := range 5 {
		sites = append(sites, preview.Site{ID: protocol.SiteID(fmt.Sprintf("s%d", i)), Own: true, After: version("1.0.0", "7")})
	}
	out := preview.Of(input(sites...))
	if err := preview.Idle(&out); protocol.KindOf(err) != protocol.Invalid || !strings.Contains(err.Error(), "(s0, s1, s2, and 2 more)") {
		t.Errorf("%v", err)
	}
	for _, more := range []preview.Site{{ID: "x", After: version("1.0.0", "7")}, {ID: "y", Wave: -1, Before: version("1.0.0", "7")}} {
		out = preview.Of(input(append(sites, more)...))
		if err := preview.Idle(&out); err != nil {
			t.Errorf("with %s: %v", more.ID, err)
		}
	}
}

// TestManySites are not all named, and all count.
func TestManySites(t *testing.T) {
	t.Parallel()
	var sites []preview.Site
	for i := range rollout.MaxOutlineSites + 7 {
		sites = append(sites, preview.Site{ID: protocol.SiteID(fmt.Sprintf("s%d", i)), After: version("1.0.0", "7")})
	}
	for i := range rollout.MaxOutlineNodes + 3 {
		sites[0].Facts.Nodes = append(sites[0].Facts.Nodes, node(protocol.NodeID(fmt.Sprintf("n%03d", i)), "7"))
	}
	sites[0].Facts.Known = true
	out := preview.Of(input(sites...))
	if len(out.Sites) != rollout.MaxOutlineSites || out.More != 7 || out.Effects[rollout.Place] != rollout.MaxOutlineSites+7 {
		t.Errorf("%d sites, and %d more; %v", len(out.Sites), out.More, out.Effects)
	}
	if len(out.Sites[0].Nodes) != rollout.MaxOutlineNodes || out.Sites[0].More != 3 || out.Nodes[rollout.Place] != rollout.MaxOutlineNodes+3 {
		t.Errorf("%d nodes, and %d more; %v", len(out.Sites[0].Nodes), out.Sites[0].More, out.Nodes)
	}
	other := sites
	other[len(other)-1].Wave = 1
	if now := preview.Of(input(other...)); now.ID == out.ID {
		t.Error("a site that is not named does not count for the id")
	}
}
